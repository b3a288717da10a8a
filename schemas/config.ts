/**
 * The configuration of varve: one file `varve.json`, every key also by environment (`sidecar.batchEvents` is
 * `VARVE_SIDECAR_BATCH_EVENTS`). Published as `schemas/published/varve.json.schema.json`. Reading it is
 * `pipelines/config.ts`'s.
 */
import { z } from 'zod';
import { KIB, MIB } from './limits.ts';

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
