// A stand-in for libcuda.so.1 with two devices: memory is host memory, streams and events are numbers. A kernel does
// nothing, unless stand_in_run was called: then all work runs in the emulator, in the order of its streams (work.c).
// What the tests ask about is written to the file that STAND_IN_LOG names, one line a call.
#include "work.h"
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef int R;
enum { OK = 0, BAD_VALUE = 1, OUT_OF_MEMORY = 2, NO_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600, BAD_ADDRESS = 700 };
static __thread intptr_t stack[64];
static __thread int depth;
static uint64_t next_handle = 0x1000;
static int capturing;

static void say(const char *format, ...) {
  static FILE *log;
  const char *name = getenv("STAND_IN_LOG");
  if (!name) return;
  work_lock();
  if (!log) log = fopen(name, "a");
  va_list rest;
  va_start(rest, format);
  vfprintf(log, format, rest);
  va_end(rest);
  fputc('\n', log);
  fflush(log);
  work_unlock();
}
static void *fresh(void) { return (void *)(__atomic_add_fetch(&next_handle, 16, __ATOMIC_SEQ_CST)); }

// Memory: each block knows its device and its size, so that a pointer can be asked about.
typedef struct { uintptr_t at; size_t size; int device; } Block;
enum { MOST_BLOCKS = 1 << 16 };
static Block blocks[MOST_BLOCKS];
static int block_count;   // places below it may be free again
static int device_now(void) { return depth ? (int)(stack[depth - 1] & 0xff) - 1 : -1; }
// The block that holds an address; its size is 0 if there is none.
static Block block_of(uintptr_t at) {
  Block found = {0};
  work_lock();
  for (int i = block_count - 1; i >= 0 && !found.size; i--)
    if (blocks[i].size && at >= blocks[i].at && at < blocks[i].at + blocks[i].size) found = blocks[i];
  work_unlock();
  return found;
}

R cuInit(unsigned f) { return OK; }
R cuDriverGetVersion(int *v) { *v = 13000; return OK; }
R cuDeviceGetCount(int *n) { *n = 2; return OK; }
R cuDeviceGet(int *d, int n) { *d = n; return n < 2 ? OK : 101; }
R cuDeviceGetName(char *s, int n, int d) { snprintf(s, n, "Stand-in %d", d); return OK; }
R cuDeviceGetUuid(char *u, int d) { memset(u, 1 + d, 16); return OK; }
R cuDeviceTotalMem(size_t *n, int d) { *n = (size_t)1 << 34; return OK; }
R cuDeviceGetAttribute(int *v, int a, int d) {
  const char *capability = getenv("STAND_IN_CAPABILITY");
  switch (a) {
  case 75: *v = capability ? capability[0] - '0' : 9; break;
  case 76: *v = capability ? capability[1] - '0' : 0; break;
  case 10: *v = 32; break;         // warp
  case 1: case 2: *v = 1024; break;
  case 5: *v = 2147483647; break;
  case 16: *v = 132; break;
  default: *v = 1;
  }
  return OK;
}
static R retain(void **c, int d) { *c = (void *)(intptr_t)(0x100 + d + 1); return OK; }
R cuDevicePrimaryCtxRetain(void **c, int d) { return retain(c, d); }
R cuDevicePrimaryCtxRelease(int d) { return OK; }
R cuDevicePrimaryCtxReset(int d) { return OK; }
R cuDevicePrimaryCtxGetState(int d, unsigned *f, int *a) { *f = 0; *a = 1; return OK; }
R cuDevicePrimaryCtxSetFlags(int d, unsigned f) { return OK; }
R cuCtxGetCurrent(void **c) { say("query"); *c = depth ? (void *)stack[depth - 1] : 0; return OK; }
R cuCtxSetCurrent(void *c) { if (depth) stack[depth - 1] = (intptr_t)c; else stack[depth++] = (intptr_t)c; return OK; }
R cuCtxPushCurrent(void *c) { stack[depth++] = (intptr_t)c; return OK; }
R cuCtxPopCurrent(void **c) { if (!depth) return NO_CONTEXT; *c = (void *)stack[--depth]; return OK; }
R cuCtxGetDevice(int *d) { if (!depth) return NO_CONTEXT; *d = device_now(); return OK; }
R cuCtxGetDevice_v2(int *d, void *c) { *d = c ? (int)((intptr_t)c & 0xff) - 1 : device_now(); return OK; }
static R done(void) { return work_failed() ? BAD_ADDRESS : OK; }
R cuCtxSynchronize(void) { say("synchronize context"); work_finish_all(); return done(); }
R cuCtxSynchronize_v2(void *c) { return cuCtxSynchronize(); }
R cuCtxGetFlags(unsigned *f) { *f = 0; return OK; }
R cuCtxGetApiVersion(void *c, unsigned *v) { *v = 3020; return OK; }

// Bytes on both sides of a block that belong to none.
enum { FENCE = 4096 };
static size_t free_bytes(void) {
  const char *given = getenv("STAND_IN_FREE_BYTES");
  return given ? strtoull(given, 0, 10) : (size_t)1 << 34;
}
// What is larger is addresses alone, which the system gives memory where they are touched: more than this machine has.
#define MOST_FILLED ((size_t)64 << 20)
static void *taken(size_t n) {
  void *found = 0;
  if (n <= MOST_FILLED) return posix_memalign(&found, FENCE, n + 2 * FENCE) ? 0 : found;
  found = mmap(0, n + 2 * FENCE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return 0;
  madvise(found, n + 2 * FENCE, MADV_NOHUGEPAGE);
  return found;
}
static void given_back(void *memory, size_t n) {
  if (n <= MOST_FILLED) free(memory);
  else munmap(memory, n + 2 * FENCE);
}
R cuMemAlloc(uintptr_t *p, size_t n) {
  if (n > free_bytes()) return OUT_OF_MEMORY;
  void *memory = taken(n);
  if (!memory) return OUT_OF_MEMORY;
  memory = (char *)memory + FENCE;
  // What nobody has written is neither zero nor what it was before.
  if (n <= MOST_FILLED) memset(memory, 0xcb, n);
  work_lock();
  int place = 0;
  while (place < block_count && blocks[place].size) place++;
  if (place == MOST_BLOCKS) {
    work_unlock();
    given_back((char *)memory - FENCE, n);
    return OUT_OF_MEMORY;
  }
  if (place == block_count) block_count++;
  blocks[place] = (Block){(uintptr_t)memory, n ? n : 1, device_now()};
  if (work_is_run()) ptx_memory_add((uintptr_t)memory, n ? n : 1);
  work_unlock();
  *p = (uintptr_t)memory;
  say("alloc %zu on %d", n, device_now());
  return OK;
}
void work_release(uintptr_t p) {
  work_lock();
  Block found = block_of(p);
  for (int i = 0; i < block_count; i++)
    if (blocks[i].at == found.at) blocks[i].size = 0;
  if (found.size && work_is_run()) ptx_memory_remove(found.at);
  work_unlock();
  if (!found.size) return;
  if (found.size <= MOST_FILLED) memset((void *)found.at, 0xdd, found.size);
  given_back((void *)(found.at - FENCE), found.size);
}
R cuMemFree(uintptr_t p) {
  Block found = block_of(p);
  if (!found.size || found.at != p) return BAD_VALUE;
  say("free %zu", found.size);
  work_finish_all();
  work_release(p);
  return OK;
}
R cuMemAllocAsync(uintptr_t *p, size_t n, void *s) { return cuMemAlloc(p, n); }
R cuMemAllocFromPoolAsync(uintptr_t *p, size_t n, void *pool, void *s) { return cuMemAlloc(p, n); }
R cuMemFreeAsync(uintptr_t p, void *s) {
  if (!work_is_run()) return cuMemFree(p);
  work_add((Work){.kind = RELEASE, .stream = s, .to = p});
  return OK;
}
R cuMemGetInfo(size_t *f, size_t *t) { *f = *t = free_bytes(); return OK; }
R cuMemGetAddressRange(uintptr_t *b, size_t *n, uintptr_t p) {
  Block found = block_of(p);
  if (!found.size) return 1;
  if (b) *b = found.at;
  if (n) *n = found.size;
  return OK;
}
// Host memory that copies read and write when their turn comes; all other is read at the call.
static struct { uintptr_t at; size_t size; } pinned[1024];
static int is_pinned(uintptr_t at) {
  int found = 0;
  work_lock();
  for (int i = 0; i < 1024 && !found; i++)
    found = pinned[i].size && at >= pinned[i].at && at < pinned[i].at + pinned[i].size;
  work_unlock();
  return found;
}
R cuMemAllocHost(void **p, size_t n) {
  *p = malloc(n ? n : 1);
  work_lock();
  for (int i = 0; i < 1024; i++)
    if (!pinned[i].size) {
      pinned[i].at = (uintptr_t)*p, pinned[i].size = n ? n : 1;
      break;
    }
  work_unlock();
  return OK;
}
R cuMemHostAlloc(void **p, size_t n, unsigned f) { return cuMemAllocHost(p, n); }
R cuMemFreeHost(void *p) {
  work_finish_all();
  work_lock();
  for (int i = 0; i < 1024; i++)
    if (pinned[i].at == (uintptr_t)p) pinned[i].size = 0;
  work_unlock();
  free(p);
  return OK;
}
R cuMemHostGetDevicePointer(uintptr_t *d, void *p, unsigned f) { *d = (uintptr_t)p; return OK; }

static R copy(uintptr_t to, uintptr_t from, size_t n, void *stream, int waits) {
  if (!n) return OK;
  Work one = {.kind = COPY, .stream = stream, .to = to, .from = from, .size = n};
  Block inside = block_of(from), target = block_of(to);
  int from_host = !inside.size, to_host = !target.size;
  if (work_is_run()) {
    if (!from_host && from + n > inside.at + inside.size) return BAD_VALUE;
    if (!to_host && to + n > target.at + target.size) return BAD_VALUE;
    if (from_host && !is_pinned(from) && !waits) one.staged = memcpy(malloc(n), (void *)from, n);
    work_add(one);
    if (waits || (to_host && !is_pinned(to))) work_finish_stream(stream);
    return done();
  }
  memcpy((void *)to, (void *)from, n);
  return OK;
}
R cuMemcpyHtoD(uintptr_t d, const void *s, size_t n) { return copy(d, (uintptr_t)s, n, 0, 1); }
R cuMemcpyHtoDAsync(uintptr_t d, const void *s, size_t n, void *q) { say("copy in %zu stream %p", n, q); return copy(d, (uintptr_t)s, n, q, 0); }
R cuMemcpyDtoH(void *d, uintptr_t s, size_t n) { say("copy out %zu blocking", n); return copy((uintptr_t)d, s, n, 0, 1); }
R cuMemcpyDtoHAsync(void *d, uintptr_t s, size_t n, void *q) { say("copy out %zu stream %p", n, q); return copy((uintptr_t)d, s, n, q, 0); }
R cuMemcpyDtoD(uintptr_t d, uintptr_t s, size_t n) { return copy(d, s, n, 0, 0); }
R cuMemcpyDtoDAsync(uintptr_t d, uintptr_t s, size_t n, void *q) { return copy(d, s, n, q, 0); }
R cuMemcpy(uintptr_t d, uintptr_t s, size_t n) { return copy(d, s, n, 0, 1); }
R cuMemcpyAsync(uintptr_t d, uintptr_t s, size_t n, void *q) { return copy(d, s, n, q, 0); }
static R fill(uintptr_t d, unsigned char v, size_t n, void *q) {
  if (work_is_run()) work_add((Work){.kind = FILL, .stream = q, .to = d, .value = v, .size = n});
  else memset((void *)d, v, n);
  return OK;
}
R cuMemsetD8(uintptr_t d, unsigned char v, size_t n) { return fill(d, v, n, 0); }
R cuMemsetD8Async(uintptr_t d, unsigned char v, size_t n, void *q) { return fill(d, v, n, q); }
R cuPointerGetAttribute(void *out, int a, uintptr_t p) {
  Block found = block_of(p);
  if (!found.size) return BAD_VALUE;
  switch (a) {
  case 1: *(void **)out = (void *)(intptr_t)(0x100 + found.device + 1); break;
  case 2: *(unsigned *)out = 2; break;
  case 3: *(uintptr_t *)out = p; break;
  case 9: *(int *)out = found.device; break;
  default: *(int *)out = 0;
  }
  return OK;
}
R cuPointerGetAttributes(unsigned n, int *a, void **out, uintptr_t p) {
  for (unsigned i = 0; i < n; i++)
    if (!block_of(p).size) {
      if (a[i] == 2) *(unsigned *)out[i] = 0;
      else if (a[i] == 9) *(int *)out[i] = -2;
      else if (a[i] == 8) *(int *)out[i] = 0;
      else *(uintptr_t *)out[i] = 0;
    } else cuPointerGetAttribute(out[i], a[i], p);
  return OK;
}
R cuDeviceGetDefaultMemPool(void **p, int d) { *p = fresh(); return OK; }
R cuDeviceGetMemPool(void **p, int d) { *p = fresh(); return OK; }
R cuMemPoolSetAttribute(void *p, int a, void *v) { return OK; }
R cuMemPoolGetAttribute(void *p, int a, void *v) { *(uint64_t *)v = 0; return OK; }

R cuStreamCreate(void **s, unsigned f) { *s = fresh(); work_stream_made(*s, f); return OK; }
R cuStreamCreateWithPriority(void **s, unsigned f, int p) { return cuStreamCreate(s, f); }
R cuStreamDestroy(void *s) { return OK; }
R cuStreamSynchronize(void *s) { say("synchronize stream %p", s); work_finish_stream(s); return done(); }
R cuStreamQuery(void *s) { work_finish_stream(s); return done(); }
R cuStreamWaitEvent(void *s, void *e, unsigned f) {
  say("wait %p for %p", s, e);
  if (work_is_run()) work_add((Work){.kind = AWAIT, .stream = s, .event = e, .awaited = work_of_event(e)});
  return OK;
}
R cuStreamGetCtx(void *s, void **c) { *c = depth ? (void *)stack[depth - 1] : 0; return OK; }
R cuStreamGetFlags(void *s, unsigned *f) { *f = 1; return OK; }
R cuStreamGetPriority(void *s, int *p) { *p = 0; return OK; }
R cuStreamGetDevice(void *s, int *d) { *d = device_now(); return OK; }
R cuStreamGetId(void *s, unsigned long long *i) { *i = (uintptr_t)s; return OK; }
R cuStreamIsCapturing(void *s, int *c) { *c = capturing; return OK; }
R cuStreamGetCaptureInfo(void *s, int *c, uint64_t *i, void *g, void *d, size_t *n) { *c = capturing; if (i) *i = 1; return OK; }
R cuCtxGetStreamPriorityRange(int *a, int *b) { *a = *b = 0; return OK; }
R cuEventCreate(void **e, unsigned f) { *e = fresh(); return OK; }
R cuEventDestroy(void *e) { return OK; }
R cuEventRecord(void *e, void *s) {
  say("record %p on %p", e, s);
  if (work_is_run()) work_add((Work){.kind = RECORD, .stream = s, .event = e});
  return OK;
}
R cuEventRecordWithFlags(void *e, void *s, unsigned f) { return cuEventRecord(e, s); }
// Nothing is ever done by itself, so what waits for an event is held until stand_in_finish, or until work.c does it.
static int finished;
R cuEventQuery(void *e) { return finished || (work_is_run() && work_event_is_done(e)) ? OK : NOT_READY; }
R cuEventSynchronize(void *e) { work_finish_event(e); return done(); }
R cuEventElapsedTime(float *t, void *a, void *b) { *t = 1; return OK; }
void stand_in_finish(int on) { finished = on; }
void stand_in_capture(int on) { capturing = on; }

R cuModuleLoadDataEx(void **m, const void *i, unsigned n, void *o, void *v) { say("load module"); *m = fresh(); return OK; }
R cuModuleLoadData(void **m, const void *i) { return cuModuleLoadDataEx(m, i, 0, 0, 0); }
R cuModuleUnload(void *m) { return OK; }
R cuModuleGetFunction(void **f, void *m, const char *n) { *f = fresh(); return OK; }
R cuModuleGetGlobal(uintptr_t *p, size_t *n, void *m, const char *s) { return NOT_FOUND; }
// A library is its one kernel where kernels run: what cuLinkComplete gave is PTX still.
R cuLibraryLoadData(void **l, const void *c, void *o, void *v, unsigned n, void *p, void *q, unsigned k) {
  say("load library");
  *l = work_is_run() ? (void *)work_assembled(c) : fresh();
  return *l ? OK : BAD_VALUE;
}
R cuLibraryUnload(void *l) { return OK; }
R cuLibraryGetKernel(void **k, void *l, const char *n) { *k = work_is_run() ? l : fresh(); return OK; }
R cuLibraryGetModule(void **k, void *l) { *k = fresh(); return OK; }
R cuLibraryGetGlobal(uintptr_t *p, size_t *n, void *l, const char *s) { return NOT_FOUND; }
R cuKernelGetFunction(void **f, void *k) { *f = k; return OK; }
R cuKernelGetLibrary(void **l, void *k) { *l = fresh(); return OK; }
R cuKernelGetAttribute(int *v, int a, void *k, int d) { *v = 32; return OK; }
R cuKernelGetParamInfo(void *k, size_t i, size_t *o, size_t *n) {
  const Program *program = work_is_run() ? k : 0;
  if (i >= (program ? (size_t)program->parameter_count : 21)) return BAD_VALUE;
  *o = program ? program->parameters[i][0] : 8 * i;
  if (n) *n = program ? program->parameters[i][1] : 8;
  return OK;
}
R cuFuncGetAttribute(int *v, int a, void *f) { *v = 32; return OK; }
R cuFuncSetAttribute(void *f, int a, int v) {
  // 8: the most bytes of shared memory that a launch may ask for, which are 48 KiB where nobody says more.
  if (a == 8 && work_is_run()) {
    if (v < 0 || v + ((Program *)f)->shared_bytes > MOST_SHARED) return BAD_VALUE;
    ((Program *)f)->most_dynamic = v;
  }
  return OK;
}
R cuFuncSetCacheConfig(void *f, int c) { return OK; }
R cuFuncGetModule(void **m, void *f) { *m = fresh(); return OK; }
R cuLaunchKernel(void *f, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned m, void *s, void **p, void **e) {
  say("launch %u blocks of %u on device %d stream %p", x, a, device_now(), s);
  if (!work_is_run()) return OK;
  Program *program = f;
  unsigned grid[3] = {x, y, z}, block[3] = {a, b, c};
  if (ptx_limits(program, grid, block, m)) return BAD_VALUE;
  uint8_t *given = calloc(program->parameter_bytes + 1, 1);
  for (int i = 0; i < program->parameter_count; i++) memcpy(given + program->parameters[i][0], p[i], program->parameters[i][1]);
  work_add((Work){.kind = LAUNCH, .stream = s, .program = program, .grid = {x, y, z}, .block = {a, b, c}, .shared = m, .parameters = given});
  return done();
}
typedef struct { unsigned x, y, z, a, b, c, shared; void *stream; void *attributes; unsigned count; } Config;
R cuLaunchKernelEx(const Config *g, void *f, void **p, void **e) {
  return cuLaunchKernel(f, g->x, g->y, g->z, g->a, g->b, g->c, g->shared, g->stream, p, e);
}
// A link of one PTX gives it back as it is.
typedef struct { char *text; size_t size; } Link;
R cuLinkCreate(unsigned n, void *o, void *v, void **s) { *s = calloc(1, sizeof(Link)); return work_is_run() ? OK : NOT_FOUND; }
R cuLinkAddData(Link *s, int type, void *data, size_t size, const char *name, unsigned n, void *o, void *v) {
  if (type != 1 || s->text) return BAD_VALUE;
  s->text = calloc(size + 1, 1);
  memcpy(s->text, data, size);
  s->size = size + 1;
  return OK;
}
R cuLinkComplete(Link *s, void **code, size_t *size) {
  *code = s->text, *size = s->size;
  return s->text ? OK : BAD_VALUE;
}
R cuLinkDestroy(Link *s) { free(s->text); free(s); return OK; }
R cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *f, int b, size_t m) { *n = 4; return OK; }
R cuGetErrorName(int e, const char **s) {
  *s = e == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : e == NOT_READY ? "CUDA_ERROR_NOT_READY"
       : e == BAD_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_STAND_IN";
  return OK;
}
R cuGetErrorString(int e, const char **s) { *s = "the stand-in says no"; return OK; }
R cuProfilerStart(void) { return OK; }
R cuProfilerStop(void) { return OK; }

R cuGetProcAddress_v2(const char *name, void **f, int version, uint64_t flags, int *status) {
  char wanted[128];
  if (!strcmp(name, "cuGetProcAddress")) name = "cuGetProcAddress_v2";
  if (!strcmp(name, "cuCtxGetDevice") && version >= 13000) snprintf(wanted, sizeof wanted, "cuCtxGetDevice_v2");
  else if (!strcmp(name, "cuCtxSynchronize") && version >= 13000) snprintf(wanted, sizeof wanted, "cuCtxSynchronize_v2");
  else snprintf(wanted, sizeof wanted, "%s", name);
  *f = dlsym(RTLD_DEFAULT, wanted);
  if (!*f) {
    void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (self) *f = dlsym(self, wanted);
  }
  if (status) *status = *f ? 0 : 1;
  if (!*f) say("missing %s", name);
  return *f ? OK : NOT_FOUND;
}
R cuGetProcAddress(const char *name, void **f, int version, uint64_t flags) { return cuGetProcAddress_v2(name, f, version, flags, 0); }
