/** `npm run publish:schemas`: writes `schemas/published/`. Nothing imports this file. */
import { mkdir, writeFile } from 'node:fs/promises';
import { publishedFiles } from './published.ts';

const folder = new URL('published/', import.meta.url);
await mkdir(folder, { recursive: true });
for (const [name, content] of publishedFiles()) await writeFile(new URL(name, folder), content);
