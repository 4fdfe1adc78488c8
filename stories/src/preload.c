/* Changes the time of day, and simulates a disk that stalls or fails, and a thread that hangs. Loaded
 * before the C library by LD_PRELOAD. The eight-byte number in CLOCK_FILE is the offset of the time in seconds; the one
 * in DISK_FILE is the state of the disk. Both may change at any time. The monotonic clock is not
 * changed. The disk consists of all files below DISK_BELOW. The thread with the name HUNG_THREAD hangs
 * while the number in HUNG_FILE is not 0. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset, *disk, *hung;
static const char *below, *hung_thread;

static volatile int64_t *mapped(const char *variable) {
  const char *path = getenv(variable);
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return NULL;
  void *page = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  return page == MAP_FAILED ? NULL : page;
}

__attribute__((constructor)) static void map(void) {
  offset = mapped("CLOCK_FILE");
  disk = mapped("DISK_FILE");
  below = getenv("DISK_BELOW");
  hung = mapped("HUNG_FILE");
  hung_thread = getenv("HUNG_THREAD");
}

/* An allocator may ask for the time before the offset is mapped: it gets the right time. */
int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = (int)syscall(SYS_clock_gettime, clock, now);
  if (!failed && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += *offset;
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec exact;
  int failed = clock_gettime(CLOCK_REALTIME, &exact);
  if (!failed) *now = (struct timeval){exact.tv_sec, exact.tv_nsec / 1000};
  return failed;
}

time_t time(time_t *also) {
  struct timespec exact;
  if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
  if (also) *also = exact.tv_sec;
  return exact.tv_sec;
}

enum { WELL, STALLS, FAILS };

static int is_below(const char *path) {
  return below && !strncmp(path, below, strlen(below));
}

/* Waits while the disk stalls. Returns true if the operation must fail. */
static int fails(void) {
  while (*disk == STALLS) usleep(500);
  return *disk == FAILS;
}

static int is_sick(int file) {
  if (!disk || *disk == WELL) return 0;
  char name[32], path[4096];
  snprintf(name, sizeof name, "/proc/self/fd/%d", file);
  ssize_t length = readlink(name, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return is_below(path);
}

#define FAILS_OR(file, call)       \
  do {                             \
    if (is_sick(file) && fails()) { \
      errno = EIO;                 \
      return -1;                   \
    }                              \
    return call;                   \
  } while (0)

int fdatasync(int file) { FAILS_OR(file, (int)syscall(SYS_fdatasync, file)); }
int fsync(int file) { FAILS_OR(file, (int)syscall(SYS_fsync, file)); }

ssize_t write(int file, const void *bytes, size_t count) {
  FAILS_OR(file, syscall(SYS_write, file, bytes, count));
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t at) {
  FAILS_OR(file, syscall(SYS_pwrite64, file, bytes, count, at));
}

ssize_t pread64(int file, void *bytes, size_t count, off64_t at) {
  if (is_sick(file)) fails();
  return syscall(SYS_pread64, file, bytes, count, at);
}

int unlink(const char *path) {
  if (disk && *disk != WELL && is_below(path)) fails();
  return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

static int is_hung(void) {
  char name[17] = "";
  if (!hung || !*hung || !hung_thread) return 0;
  prctl(PR_GET_NAME, name);
  return !strcmp(name, hung_thread);
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int milliseconds) {
  int count = (int)syscall(SYS_epoll_pwait, epoll, events, most, milliseconds, NULL, 8);
  int error = errno;
  while (is_hung()) usleep(500);
  errno = error;
  return count;
}
