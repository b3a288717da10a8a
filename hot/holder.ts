/**
 * Who has a log open.
 *
 * RocksDB's LOCK arbitrates and nobody else ever opens that file: closing any descriptor of it would release the lock
 * of its own process. Who holds it is said by `writer.json` beside the database, and by the tail socket. Both are only
 * hints for people and for waiting; a stale one never keeps a log shut, and a missing one never opens it twice.
 */
import { readFile, stat } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { readIfThere, removeFile, replaceFile } from './files.ts';
import type { Role } from './tail-protocol.ts';
import { askTail } from './tail-server.ts';

export type WriterFile = {
  readonly pid: number;
  /** The process's start in kernel ticks, so that a reused pid is not taken for it; '' where the system has no /proc. */
  readonly start_time: string;
  readonly host: string;
  readonly epoch: string;
  readonly role: Role;
  /** Device and inode of the log's directory: a copy of it has another one, and nobody has that open. */
  readonly directory: string;
  /** Absolute path of the tail socket. */
  readonly socket?: string;
};

export type Holder = { readonly pid: number; readonly role: Role; readonly socket: string | undefined };

function pathIn(dir: string): string {
  return join(dir, 'writer.json');
}

/** undefined: there is none, it is torn, or it came with a copy of another directory. */
export async function readWriterFile(dir: string): Promise<WriterFile | undefined> {
  const content = await readIfThere(pathIn(dir)).catch(() => undefined);
  if (content === undefined) return undefined;
  try {
    const file = JSON.parse(content.toString('utf8')) as WriterFile;
    return typeof file.pid === 'number' && file.directory === (await identityOf(dir)) ? file : undefined;
  } catch {
    return undefined;
  }
}

async function identityOf(dir: string): Promise<string> {
  const { dev, ino } = await stat(dir, { bigint: true });
  return `${dev}:${ino}`;
}

export async function writeWriterFile(
  dir: string,
  epoch: string,
  role: Role,
  socket: string | undefined,
): Promise<void> {
  const [start_time, directory] = await Promise.all([startTime(process.pid), identityOf(dir)]);
  const file = { pid: process.pid, start_time, host: hostname(), epoch, role, directory };
  await replaceFile(pathIn(dir), `${JSON.stringify(socket === undefined ? file : { ...file, socket })}\n`);
}

/** Removes the file where it is still of this epoch. */
export async function removeWriterFile(dir: string, epoch: string): Promise<void> {
  if ((await readWriterFile(dir))?.epoch === epoch) await removeFile(pathIn(dir));
}

/** The process that has the log open, as far as anybody can tell without the lock. */
export async function findHolder(dir: string, socketPath: string): Promise<Holder | undefined> {
  const file = await readWriterFile(dir);
  const socket = file?.socket ?? socketPath;
  const answer = await askTail(socket, 'who', 250);
  if (answer !== undefined) return { pid: answer.pid, role: answer.role, socket };
  if (file === undefined || file.host !== hostname()) return undefined;
  // No answer, but alive: stopped, busy, or without a tail.
  if ((await startTime(file.pid)) !== file.start_time || !isAlive(file.pid)) return undefined;
  return { pid: file.pid, role: file.role, socket: file.socket };
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

/** Field 22 of /proc/pid/stat (proc(5)); '' where it cannot be read and for a zombie, which holds no lock. */
async function startTime(pid: number): Promise<string> {
  try {
    const stat = await readFile(`/proc/${pid}/stat`, 'latin1');
    // The second field is the command in parentheses and may itself hold spaces.
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return fields[0] === 'Z' ? '' : (fields[19] ?? '');
  } catch {
    return '';
  }
}
