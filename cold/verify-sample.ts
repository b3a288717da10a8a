/** Which files of a table are verified where not all of them are: the same ones for the same seed. */
import { hash } from 'node:crypto';
import { VarveError } from '../schemas/errors.ts';

/** A share of all, above 0 and up to 1, or a number of files. */
export type SampleSize = { readonly share: number } | { readonly files: number };

export type Sample = { readonly size: SampleSize; readonly seed: string };

/** `1%`, `0.5%`, or a number of files. @throws VarveError INVALID_OPTION */
export function parseSampleSize(text: string): SampleSize {
  const percent = /^(\d{1,3}(?:\.\d{1,6})?)%$/.exec(text)?.[1];
  const share = Number(percent) / 100;
  if (percent !== undefined && share > 0 && share <= 1) return { share };
  const files = Number(text);
  if (/^\d{1,9}$/.test(text) && files > 0) return { files };
  throw new VarveError('INVALID_OPTION', 'a sample is a share such as 1%, or a number of files');
}

/** At least one file where there is one; in the order given. Pure. */
export function chooseSample<File extends { readonly stem: string }>(files: readonly File[], sample: Sample): File[] {
  const { size, seed } = sample;
  const wanted = 'share' in size ? Math.ceil(files.length * size.share) : size.files;
  const rank = new Map(files.map((file) => [file, hash('sha256', `${seed}\n${file.stem}`, 'hex')]));
  const byRank = files.toSorted((a, b) => ((rank.get(a) as string) < (rank.get(b) as string) ? -1 : 1));
  const chosen = new Set(byRank.slice(0, wanted));
  return files.filter((file) => chosen.has(file));
}
