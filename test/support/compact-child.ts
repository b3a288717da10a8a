/** `varve compact` as users run it, compiled, and what the process took at its peak: `done <events> <files> <blobs> <peak resident bytes> <µs of CPU>`. */
import { readFileSync, writeSync } from 'node:fs';
import { compact } from '../../pipelines/compact.ts';
import { loadConfig } from '../../pipelines/config.ts';
import { AT_ONCE } from '../../pipelines/start-cold.ts';

const { config } = await loadConfig({ environment: process.env });
const report = await compact(config, AT_ONCE, new AbortController().signal);
const kib = /^VmHWM:\s+(\d+) kB/m.exec(readFileSync('/proc/self/status', 'latin1'))?.[1];
const { user, system } = process.cpuUsage();
writeSync(1, `done ${report.events} ${report.files} ${report.blobs} ${Number(kib) * 1024} ${user + system}\n`);
process.exit(report.skipped === 0 ? 0 : 3);
