/* The time of day, some seconds off. Loaded before the C library by LD_PRELOAD; how far off is read
 * from the eight bytes that CLOCK_FILE holds, which may change at any moment. The monotonic clock is
 * the kernel's own. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void map(void) {
  const char *path = getenv("CLOCK_FILE");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *page = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
  if (page != MAP_FAILED) offset = page;
  close(file);
}

/* An allocator may ask for the time before anything is set up: it gets the right one. */
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
