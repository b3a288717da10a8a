/*
 * A disk that fails, for one process: LD_PRELOAD this and write(2), pwrite(2), writev(2), fsync(2) and fdatasync(2) on
 * files below EIO_UNDER fail as the trigger file says. Without a trigger file nothing fails.
 *
 *   EIO_UNDER=<directory>  EIO_TRIGGER=<file outside of it>, which holds
 *
 *   <call> <how> <count> <part of the path>
 *     call   write, sync
 *     how    EIO, ENOSPC      the call fails and does nothing
 *            short            (write) half of the bytes are written; the next write to such a path fails with ENOSPC
 *            lost             (sync) after 0.1 s what was not synced before is gone from the file and the call fails with
 *                             EIO: what the kernel does with dirty pages that it could not write
 *     count  how many calls fail before the disk is well again; 0: it stays ill
 *
 * Each failure adds a line to <trigger>.hits, so that a test knows that it has happened.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum how { WELL, FAIL_EIO, FAIL_ENOSPC, SHORT, LOST };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct stat seen;   /* the trigger that `left` belongs to */
static int left;           /* failures to come; -1: no end */
static int after_short;    /* the write after a short one fails */
static off_t synced[4096]; /* by descriptor: size at its last sync */

static int real_sync(int fd, int data_only) {
  return syscall(data_only ? SYS_fdatasync : SYS_fsync, fd);
}

/* Decides, under the mutex, what happens to this call. */
static enum how decide(const char *call, int fd) {
  static const char *under, *trigger;
  if (under == NULL) { under = getenv("EIO_UNDER"); trigger = getenv("EIO_TRIGGER"); }
  if (under == NULL || trigger == NULL || fd < 0) return WELL;

  struct stat now;
  if (stat(trigger, &now) != 0) return WELL;
  char link[64], path[PATH_MAX], text[512] = "", wanted[16], how[16], part[256];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return WELL;
  path[length] = 0;
  if (strncmp(path, under, strlen(under)) != 0) return WELL;

  int file = open(trigger, O_RDONLY | O_CLOEXEC), count;
  if (file < 0) return WELL;
  ssize_t got = read(file, text, sizeof text - 1);
  close(file);
  if (got <= 0 || sscanf(text, "%15s %15s %d %255s", wanted, how, &count, part) != 4) return WELL;
  if (strcmp(wanted, call) != 0 || strstr(path, part) == NULL) return WELL;

  int is_new = now.st_ino != seen.st_ino || now.st_mtim.tv_nsec != seen.st_mtim.tv_nsec || now.st_mtim.tv_sec != seen.st_mtim.tv_sec;
  if (is_new) { seen = now; left = count == 0 ? -1 : count; after_short = 0; }
  if (left == 0) return WELL;
  enum how what = strcmp(how, "EIO") == 0 ? FAIL_EIO : strcmp(how, "ENOSPC") == 0 ? FAIL_ENOSPC
                : strcmp(how, "short") == 0 ? SHORT : strcmp(how, "lost") == 0 ? LOST : WELL;
  if (what == SHORT && after_short) { what = FAIL_ENOSPC; after_short = 0; if (left > 0) left--; }
  else if (what == SHORT) after_short = 1;
  else if (left > 0) left--;

  char hits[PATH_MAX];
  snprintf(hits, sizeof hits, "%s.hits", trigger);
  int out = open(hits, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (out >= 0) {
    int size = snprintf(text, sizeof text, "%s %s %s\n", call, how, path);
    syscall(SYS_write, out, text, (size_t)size);
    close(out);
  }
  return what;
}

static enum how locked_decide(const char *call, int fd) {
  int kept = errno;
  pthread_mutex_lock(&mutex);
  enum how what = decide(call, fd);
  pthread_mutex_unlock(&mutex);
  errno = kept;
  return what;
}

static ssize_t fail(enum how what) {
  errno = what == FAIL_ENOSPC ? ENOSPC : EIO;
  return -1;
}

ssize_t write(int fd, const void *bytes, size_t count) {
  enum how what = locked_decide("write", fd);
  if (what == SHORT && count > 1) return syscall(SYS_write, fd, bytes, count / 2);
  if (what == FAIL_EIO || what == FAIL_ENOSPC) return fail(what);
  return syscall(SYS_write, fd, bytes, count);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
  enum how what = locked_decide("write", fd);
  if (what == SHORT && count > 1) return syscall(SYS_pwrite64, fd, bytes, count / 2, at);
  if (what == FAIL_EIO || what == FAIL_ENOSPC) return fail(what);
  return syscall(SYS_pwrite64, fd, bytes, count, at);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) { return pwrite64(fd, bytes, count, at); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
  enum how what = locked_decide("write", fd);
  if (what == SHORT) return syscall(SYS_write, fd, parts[0].iov_base, parts[0].iov_len > 1 ? parts[0].iov_len / 2 : 1);
  if (what == FAIL_EIO || what == FAIL_ENOSPC) return fail(what);
  return syscall(SYS_writev, fd, parts, count);
}

static int sync_or_fail(int fd, int data_only) {
  enum how what = locked_decide("sync", fd);
  if (what == LOST) {
    /* A slow disk first: whoever does not wait for it is seen. */
    usleep(100 * 1000);
    if (fd >= 0 && fd < 4096 && ftruncate(fd, synced[fd]) != 0) return -1;
  }
  if (what != WELL) return (int)fail(what);
  struct stat now;
  int known = fd >= 0 && fd < 4096 && fstat(fd, &now) == 0;
  int result = real_sync(fd, data_only);
  if (known && result == 0) synced[fd] = now.st_size;
  return result;
}

int fsync(int fd) { return sync_or_fail(fd, 0); }
int fdatasync(int fd) { return sync_or_fail(fd, 1); }

/* A descriptor is given out again: nothing of the new file was synced yet. */
int close(int fd) {
  if (fd >= 0 && fd < 4096) synced[fd] = 0;
  return syscall(SYS_close, fd);
}
