/**
 * The configuration of varve: one file `varve.json`, every key also by environment (`sidecar.batchEvents` is
 * `VARVE_SIDECAR_BATCH_EVENTS`). Published as `schemas/published/varve.json.schema.json`. Reading it is
 * `pipelines/config.ts`'s.
 */
import { z } from 'zod';
import { GIB, KIB, MIB } from './limits.ts';

const path = z.string().min(1);
const milliseconds = z.int().min(0);

export const Config = z.strictObject({
  hot: z
    .strictObject({
      logs: path.default('.varve/hot').describe('Directories of hot logs: a path, or a glob such as /var/lib/varve/*'),
    })
    .prefault({}),
  warm: z
    .strictObject({
      databaseUrl: z
        .string()
        .optional()
        .describe('PostgreSQL 15 or newer. Without it (and without DATABASE_URL) an embedded server is used'),
      directory: path.default('.varve/warm').describe('Where the embedded server keeps its data'),
      poolSize: z.int().min(2).max(64).default(4).describe('Most connections of one process'),
      statementTimeoutMs: milliseconds.default(60_000).describe('Longest time of one statement, in milliseconds'),
      daysAhead: z.int().min(2).max(366).default(7).describe('Days for which partitions are made ahead'),
    })
    .prefault({}),
  cold: z
    .strictObject({
      store: path.default('file:.varve/cold').describe('Object store: file:<directory> or s3://<bucket>/<prefix>'),
      endpoint: z.url().optional().describe('Of an S3 store that is not AWS, such as https://s3.example.net'),
      region: z.string().min(1).optional().describe("Region of an S3 store; without it, AWS's own settings decide"),
      pathStyle: z
        .boolean()
        .default(false)
        .describe('Name the bucket in the path, as many S3 stores of others need it'),
      offloadOverBytes: z
        .int()
        .min(1 * KIB)
        .max(1 * MIB)
        .default(16 * KIB)
        .describe('Compaction moves strings of more bytes than this out of their payloads, into blobs'),
      scratch: path.default('.varve/scratch').describe('Where files are made before they are put: some GB of room'),
      cacheDirectory: path
        .default('.varve/cache')
        .describe('Where queries spill, and keep files of a store that is not a directory'),
      cacheBytes: z
        .int()
        .min(16 * MIB)
        .default(10 * GIB)
        .describe('Most bytes of such files; a query that needs more is refused'),
      queryMemoryBytes: z
        .int()
        .min(64 * MIB)
        .default(1 * GIB)
        .describe('What a query may hold in memory; then it spills to cacheDirectory'),
      queryThreads: z.int().min(0).max(1024).default(0).describe('Threads of a query; 0: one for each core'),
    })
    .prefault({}),
  compact: z
    .strictObject({
      olderThanDays: z.number().min(0).default(7).describe('Closed trajectories move to cold at this age'),
      minFileBytes: z
        .int()
        .min(0)
        .default(4 * MIB)
        .describe('A partition with less than this to move waits for more'),
      maxHoldDays: z.number().min(0).default(3).describe('Longest time that it waits, beyond olderThanDays'),
      concurrency: z.int().min(1).max(16).default(1).describe('Files that are made at once; each takes some 300 MB'),
      claimTtlMs: z
        .int()
        .min(1000)
        .max(3_600_000)
        .default(60_000)
        .describe('A run that says nothing for this long has lost what it claimed, in milliseconds'),
    })
    .prefault({}),
  sidecar: z
    .strictObject({
      batchEvents: z.int().min(1).max(5000).default(1000).describe('Most records of one transaction'),
      batchBytes: z
        .int()
        .min(64 * KIB)
        .max(64 * MIB)
        .default(2 * MIB)
        .describe('Most bytes of one transaction, but for a single larger event'),
      host: z.string().default('127.0.0.1').describe('Address of the HTTP server for health and metrics'),
      port: z.int().min(0).max(65_535).default(9464).describe('Its port; 0 takes a free one'),
      stalledAfterMs: milliseconds
        .default(60_000)
        .describe('Without progress for this long while records wait, /readyz fails'),
      drainTimeoutMs: milliseconds.default(60_000).describe('Longest time that --drain takes, in milliseconds'),
      retryMaxMs: milliseconds.default(10_000).describe('Longest pause between two tries, in milliseconds'),
    })
    .prefault({}),
  lifecycle: z
    .strictObject({
      importIdleMinutes: z.int().min(0).default(60).describe('An import with nothing new for this long is closed'),
      abandonAfterDays: z
        .int()
        .min(1)
        .default(30)
        .describe('A trajectory without a lease and idle for this long is abandoned'),
    })
    .prefault({}),
  log: z
    .strictObject({
      level: z
        .enum(['trace', 'debug', 'info', 'warn', 'error'])
        .default('info')
        .describe('Least level that is written'),
    })
    .prefault({}),
});

export type Config = z.infer<typeof Config>;
