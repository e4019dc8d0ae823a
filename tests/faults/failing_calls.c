/* Stands in front of the C library: once armed, the n-th call for a file fails, or does a part of what is asked. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* An error number, or this: the call does half of it. */
#define SHORT -1
#define LONGEST 16
#define MOST 4000

static volatile int armed = 0, left = 0, number = 0, counted = 0;

/* Shared with the process that asks: the count, the name of the call that failed, the names of all calls. */
static char *shared = 0;

void fault_share(char *memory) { shared = memory; }
void fault_arm(int at, int error) { left = at; number = error; counted = 0; armed = 1; }

/* Whether this is the call; its error is set. */
static int hit(const char *name) {
  if (!armed) return 0;
  int mine = __sync_fetch_and_add(&counted, 1);
  if (shared) {
    *(volatile int *)shared = mine + 1;
    if (mine < MOST) strncpy(shared + LONGEST * (mine + 2), name, LONGEST - 1);
  }
  if (mine + 1 != left) return 0;
  if (shared) strncpy(shared + 4, name, LONGEST - 5);
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
    if (strncmp(path, "/proc", 5) && hit("open")) return -1; \
    return real(path, flags, mode); }
OPEN(open)
OPEN(open64)

/* What has no part fails instead. */
#define CALL(type, NAME, TOLD, parameters, arguments, ...) \
  type NAME parameters { REAL(type, #NAME, __VA_ARGS__) \
    if (hit(TOLD)) { if (number == SHORT) errno = EIO; return -1; } \
    return real arguments; }

/* What goes to stderr is not a file. */
#define PART(NAME, TOLD, QUALIFIER, TYPE, PARAMETERS, ...) \
  ssize_t NAME(int f, QUALIFIER void *b, size_t n PARAMETERS) { REAL(ssize_t, #NAME, int, QUALIFIER void *, size_t TYPE) \
    if (f > 2 && hit(TOLD)) { if (number != SHORT) return -1; n = (n + 1) / 2; } \
    return real(f, b, n __VA_ARGS__); }
#define COMMA ,
PART(read, "read", , , )
PART(write, "write", const, , )
PART(pread, "pread", , COMMA off_t, COMMA off_t o, COMMA o)
PART(pread64, "pread", , COMMA off_t, COMMA off_t o, COMMA o)
PART(pwrite, "pwrite", const, COMMA off_t, COMMA off_t o, COMMA o)
PART(pwrite64, "pwrite", const, COMMA off_t, COMMA off_t o, COMMA o)

#define VECTOR(NAME, TOLD, TYPES, PARAMETERS, ...) \
  ssize_t NAME(int f, const struct iovec *v, int n, off_t o PARAMETERS) { \
    REAL(ssize_t, #NAME, int, const struct iovec *, int, off_t TYPES) \
    if (hit(TOLD)) { \
      if (number != SHORT) return -1; \
      struct iovec half = { v->iov_base, (v->iov_len + 1) / 2 }; \
      return real(f, &half, 1, o __VA_ARGS__); } \
    return real(f, v, n, o __VA_ARGS__); }
VECTOR(preadv, "preadv", , , )
VECTOR(preadv64, "preadv", , , )
VECTOR(preadv2, "preadv", COMMA int, COMMA int g, COMMA g)
VECTOR(preadv64v2, "preadv", COMMA int, COMMA int g, COMMA g)
VECTOR(pwritev, "pwritev", , , )
VECTOR(pwritev64, "pwritev", , , )
VECTOR(pwritev2, "pwritev", COMMA int, COMMA int g, COMMA g)
VECTOR(pwritev64v2, "pwritev", COMMA int, COMMA int g, COMMA g)

CALL(int, fsync, "fsync", (int f), (f), int)
CALL(int, fdatasync, "fsync", (int f), (f), int)
CALL(int, fchmod, "fchmod", (int f, mode_t m), (f, m), int, mode_t)
CALL(int, ftruncate, "ftruncate", (int f, off_t n), (f, n), int, off_t)
CALL(int, ftruncate64, "ftruncate", (int f, off_t n), (f, n), int, off_t)
CALL(int, rename, "rename", (const char *a, const char *b), (a, b), const char *, const char *)
CALL(int, renameat, "rename", (int d, const char *a, int e, const char *b), (d, a, e, b), int, const char *, int, const char *)
CALL(int, linkat, "linkat", (int d, const char *a, int e, const char *b, int g), (d, a, e, b, g), int, const char *, int, const char *, int)
CALL(int, link, "linkat", (const char *a, const char *b), (a, b), const char *, const char *)
CALL(int, msync, "msync", (void *a, size_t n, int g), (a, n, g), void *, size_t, int)

/* A file that could not be closed is closed. */
int close(int f) {
  REAL(int, "close", int)
  int is_written = (fcntl(f, F_GETFL) & O_ACCMODE) != O_RDONLY;
  if (f <= 2 || !hit(is_written ? "close" : "close of input")) return real(f);
  real(f);
  errno = number == SHORT ? EIO : number;
  return -1;
}

/* These return the error. */
#define RESERVE(NAME) \
  int NAME(int f, off_t o, off_t n) { \
    REAL(int, #NAME, int, off_t, off_t) \
    if (hit("fallocate")) return number == SHORT ? EIO : number; \
    return real(f, o, n); }
RESERVE(posix_fallocate)
RESERVE(posix_fallocate64)

/* Memory without a file is the allocator's. */
#define MAP(NAME) \
  void *NAME(void *a, size_t n, int p, int g, int f, off_t o) { \
    REAL(void *, #NAME, void *, size_t, int, int, int, off_t) \
    if (f >= 0 && hit("mmap")) { if (number == SHORT) errno = EIO; return MAP_FAILED; } \
    return real(a, n, p, g, f, o); }
MAP(mmap)
MAP(mmap64)
