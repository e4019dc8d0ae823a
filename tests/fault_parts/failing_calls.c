/* Stands in front of the C library: once armed, the n-th call for a file fails with the error that was asked for. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

static volatile int armed = 0, left = 0, number = 0, counted = 0;

/* Shared with the process that asks for the count. */
static volatile int *shared = 0;

void fault_share(volatile int *memory) { shared = memory; }
void fault_arm(int at, int error) { left = at; number = error; counted = 0; armed = 1; }

static int fails(const char *name) {
  if (!armed) return 0;
  counted++;
  if (shared) shared[0] = counted;
  if (--left) return 0;
  if (shared) { strncpy((char *)(shared + 1), name, 60); }
  errno = number;
  return 1;
}

#define REAL(type, name, ...) \
  static type (*real)(__VA_ARGS__) = 0; \
  if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name);

#define OPEN(NAME) \
  int NAME(const char *path, int flags, ...) { \
    REAL(int, #NAME, const char *, int, ...) \
    va_list list; va_start(list, flags); int mode = va_arg(list, int); va_end(list); \
    if (strncmp(path, "/proc", 5) && fails(#NAME)) return -1; \
    return real(path, flags, mode); }
OPEN(open)
OPEN(open64)

#define CALL(type, NAME, bad, parameters, arguments, ...) \
  type NAME parameters { REAL(type, #NAME, __VA_ARGS__) if (fails(#NAME)) return bad; return real arguments; }

CALL(ssize_t, read, -1, (int f, void *b, size_t n), (f, b, n), int, void *, size_t)
CALL(ssize_t, pread, -1, (int f, void *b, size_t n, off_t o), (f, b, n, o), int, void *, size_t, off_t)
CALL(ssize_t, pread64, -1, (int f, void *b, size_t n, off_t o), (f, b, n, o), int, void *, size_t, off_t)
CALL(ssize_t, pwrite, -1, (int f, const void *b, size_t n, off_t o), (f, b, n, o), int, const void *, size_t, off_t)
CALL(ssize_t, pwrite64, -1, (int f, const void *b, size_t n, off_t o), (f, b, n, o), int, const void *, size_t, off_t)
CALL(int, fsync, -1, (int f), (f), int)
CALL(int, fdatasync, -1, (int f), (f), int)
CALL(int, fchmod, -1, (int f, mode_t m), (f, m), int, mode_t)
CALL(int, ftruncate, -1, (int f, off_t n), (f, n), int, off_t)
CALL(int, ftruncate64, -1, (int f, off_t n), (f, n), int, off_t)
CALL(int, rename, -1, (const char *a, const char *b), (a, b), const char *, const char *)
CALL(int, renameat, -1, (int d, const char *a, int e, const char *b), (d, a, e, b), int, const char *, int, const char *)
CALL(int, linkat, -1, (int d, const char *a, int e, const char *b, int g), (d, a, e, b, g), int, const char *, int, const char *, int)
CALL(int, link, -1, (const char *a, const char *b), (a, b), const char *, const char *)
CALL(int, msync, -1, (void *a, size_t n, int g), (a, n, g), void *, size_t, int)
/* These return the error. */
CALL(int, posix_fallocate, number, (int f, off_t o, off_t n), (f, o, n), int, off_t, off_t)
CALL(int, posix_fallocate64, number, (int f, off_t o, off_t n), (f, o, n), int, off_t, off_t)

/* Memory without a file is the allocator's. */
#define MAP(NAME) \
  void *NAME(void *a, size_t n, int p, int g, int f, off_t o) { \
    REAL(void *, #NAME, void *, size_t, int, int, int, off_t) \
    if (f >= 0 && fails(#NAME)) return MAP_FAILED; \
    return real(a, n, p, g, f, o); }
MAP(mmap)
MAP(mmap64)

/* What goes to stderr is not a file. */
ssize_t write(int f, const void *b, size_t n) {
  REAL(ssize_t, "write", int, const void *, size_t)
  if (f > 2 && fails("write")) return -1;
  return real(f, b, n);
}
