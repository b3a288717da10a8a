/**
 * One live file of the table: is it there, is it what was committed, and are its rows what they say?
 *
 *   object    its length, and its SHA-256, which is its name
 *   segments  the list beside it has the hash, the count, the bounds and the rows that the table log names
 *   rows      payloads, chains, numbers, partition (verify-scan.ts), and that they are the rows of the list
 *   derived   the files of derived rows have their hash and agree with the list
 *
 * A file with other bytes than its name says is read all the same, as far as it goes, so that what is wrong in it is
 * named by its event. What is found is in the verdict; an error is thrown only where nothing could be found out.
 */
import type { DuckDb } from './duckdb.ts';
import { type ColdProblem, Findings } from './findings.ts';
import { type LocalCopy, type LocalCopyOptions, localCopy } from './local-copy.ts';
import type { ObjectStore } from './object-store.ts';
import type { Segment, SegmentList } from './segments.ts';
import { parquetKey, segmentsKey } from './table-keys.ts';
import { type LiveFile, NO_ROWS } from './table-log-plan.ts';
import { verifyDerived, withRows } from './verify-derived.ts';
import { checkedList, checkPlace, firstEventOf, nameOfFile } from './verify-list.ts';
import { type FileToScan, isDamage, type Part, partsOf, readRowGroups, wholeFile } from './verify-parts.ts';
import { type FoundRun, RowsCheck } from './verify-rows.ts';

export type FileVerdict = {
  readonly key: string;
  /** Events whose payload and hash were looked at. */
  readonly events: number;
  /** Those of them with bodies in blobs, or without a payload after an erasure: only the chain covers these. */
  readonly standIns: RowsCheck['standIns'];
  /** Of the list of segments; where it cannot be trusted, what the rows are. */
  readonly segments: readonly FileSegment[];
  readonly findings: Findings;
};

/** A segment, and what is known of its ends. */
export type FileSegment = Omit<Segment, 'row_groups' | 'trajectory_id' | 'previous_hash'> & {
  readonly trajectory_id: string;
  /** undefined where only the rows are known. */
  readonly previous_hash: string | undefined;
  readonly first: FoundRun['first_pace'] | undefined;
  readonly last: FoundRun['last_pace'] | undefined;
};

export type VerifyFileOptions = LocalCopyOptions & {
  /** Looks at the payloads of a file that can be read, to its last row. @default nobody */
  readonly onReadable?: ((path: string, report: (problem: ColdProblem) => void) => Promise<void>) | undefined;
};

export async function verifyFile(
  store: ObjectStore,
  duck: DuckDb,
  file: LiveFile,
  options: VerifyFileOptions,
): Promise<FileVerdict> {
  const findings = new Findings();
  const report = (problem: ColdProblem) => findings.add(problem);
  const key = parquetKey(file.stem);
  const list = await checkedList(store, file, report, options);
  checkPlace(file, list, report);
  const { runs, ...counts } = await dataOf(store, duck, file, list, findings, options);
  await checkDerivedFiles(store, duck, file, list, report, options);
  return { key, ...counts, segments: segmentsOf(list, runs), findings };
}

async function dataOf(
  store: ObjectStore,
  duck: DuckDb,
  file: LiveFile,
  list: SegmentList | undefined,
  findings: Findings,
  options: VerifyFileOptions,
): Promise<Scanned> {
  const key = parquetKey(file.stem);
  await using copy = await namedCopy(store, key, nameOfFile(file), options);
  if (copy !== undefined) return await checkData(duck, file, copy, list, findings, options);
  findings.add({ kind: 'file', key, ...firstEventOf(file, list), what: 'the data file is missing' });
  return NOTHING;
}

/** A copy with that hash, or what there is after a second look: a transfer that went wrong is no damage. */
async function namedCopy(
  store: ObjectStore,
  key: string,
  sha256: string,
  options: VerifyFileOptions,
): Promise<LocalCopy | undefined> {
  const copy = await localCopy(store, key, options);
  if (copy === undefined || copy.sha256 === sha256) return copy;
  await copy[Symbol.asyncDispose]();
  return await localCopy(store, key, options);
}

type Scanned = Pick<FileVerdict, 'events' | 'standIns'> & { readonly runs: readonly FoundRun[] };

const NOTHING: Scanned = { events: 0, standIns: { offloaded: 0, redacted: 0 }, runs: [] };

async function checkData(
  duck: DuckDb,
  file: LiveFile,
  copy: LocalCopy,
  list: SegmentList | undefined,
  findings: Findings,
  options: VerifyFileOptions,
): Promise<Scanned> {
  const key = parquetKey(file.stem);
  const report = (problem: ColdProblem) => findings.add(problem);
  const isOriginal = copy.sha256 === nameOfFile(file);
  const toScan = { path: copy.path, partition: file.add.partitionValues, isOriginal };
  let scanned: Scan | undefined;
  try {
    scanned = await scan(duck, toScan, key, list, options);
    findings.addAll(scanned.findings);
    if (!scanned.hasHoles) await options.onReadable?.(copy.path, report);
  } catch (error) {
    if (!isDamage(error, isOriginal)) throw error;
    report({ kind: 'file', key, ...firstEventOf(file, list), what: 'the data file cannot be read as Parquet' });
  }
  const isWhole = scanned?.findings.isEmpty === true;
  const but = isWhole ? '; the events in it are whole, other columns may not be' : '';
  if (copy.bytes !== file.add.size) {
    const what = `the data file has ${copy.bytes} bytes and should have ${file.add.size}${but}`;
    report({ kind: 'file', key, what });
  } else if (!isOriginal) {
    report({ kind: 'file', key, what: `the data file has other bytes than its name says${but}` });
  } else if (list !== undefined && copy.bytes - 8 - copy.tail.readUInt32LE(0) !== list.footer_start) {
    const what = 'it says that the footer of the data file begins elsewhere than it does';
    report({ kind: 'segments', key: segmentsKey(file.stem), ...firstEventOf(file, list), what });
  }
  if (scanned === undefined) return NOTHING;
  const { rows: events, standIns, runs } = scanned.check;
  return { events, standIns, runs };
}

type Scan = { readonly check: RowsCheck; readonly findings: Findings; readonly hasHoles: boolean };

/** All rows: at once, or as far as they can be read. */
async function scan(
  duck: DuckDb,
  file: FileToScan,
  key: string,
  list: SegmentList | undefined,
  options: VerifyFileOptions,
): Promise<Scan> {
  const groups = await readRowGroups(duck, file.path, options);
  const rows = groups.reduce((sum, count) => sum + count, 0);
  const through = async (parts: AsyncIterable<Part>): Promise<Scan> => {
    const findings = new Findings();
    const check = new RowsCheck(key, list, (problem) => findings.add(problem));
    let hasHoles = false;
    for await (const part of parts) {
      check.add(part);
      hasHoles ||= part.kind === 'hole';
    }
    check.finish(rows);
    return { check, findings, hasHoles };
  };
  const scanned = await through(wholeFile(duck, file, rows, options)).catch(async (error: unknown) => {
    if (!isDamage(error, file.isOriginal)) throw error;
    return await through(partsOf(duck, file, groups, options));
  });
  if (list !== undefined && groups.join() !== list.row_groups.join()) {
    const what = `its row groups have ${groups.join(', ')} rows; the list of segments says ${list.row_groups.join(', ')}`;
    scanned.findings.add({ kind: 'rows', key, ...scanned.check.eventAt(0), what });
  }
  return scanned;
}

async function checkDerivedFiles(
  store: ObjectStore,
  duck: DuckDb,
  file: LiveFile,
  list: SegmentList | undefined,
  report: (problem: ColdProblem) => void,
  options: VerifyFileOptions,
): Promise<void> {
  for (const table of ['trajectories', 'imports'] as const) {
    const key = file[table];
    const sha256 = file.add.tags[table];
    if (sha256 === NO_ROWS && list !== undefined && withRows(list, file.add.tags.cut).length > 0) {
      const what = 'the table log says that no trajectory ends in it, and one does';
      report({ kind: 'derived', key: parquetKey(file.stem), what });
    }
    if (key === undefined || sha256 === undefined) continue;
    await using copy = await namedCopy(store, key, sha256, options);
    if (copy === undefined) report({ kind: 'derived', key, what: `the file of ${table} is missing` });
    else if (copy.sha256 !== sha256) report({ kind: 'derived', key, what: 'it has other bytes than its name says' });
    else if (list !== undefined) {
      await verifyDerived(duck, { table, key, path: copy.path }, list, file.add, report, options);
    }
  }
}

function segmentsOf(list: SegmentList | undefined, runs: readonly FoundRun[]): FileSegment[] {
  if (list === undefined) {
    return runs.map((run) => ({ ...run, previous_hash: undefined, first: run.first_pace, last: run.last_pace }));
  }
  const firsts = new Map(runs.map((run) => [`${run.trajectory_id} ${run.first_sequence_number}`, run.first_pace]));
  const lasts = new Map(runs.map((run) => [`${run.trajectory_id} ${run.last_sequence_number}`, run.last_pace]));
  return list.segments.map((segment) => ({
    ...segment,
    first: firsts.get(`${segment.trajectory_id} ${segment.first_sequence_number}`),
    last: lasts.get(`${segment.trajectory_id} ${segment.last_sequence_number}`),
  }));
}
