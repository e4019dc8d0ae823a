// Work waits in its stream until somebody waits for it: a stream that is not waited for shows as stale or unwritten bytes.
#include "work.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Program *(*assemble)(const char *);
static Work *works;
static int64_t begin, count, room;   // works[i - begin], for i from begin up to count
static char failure[1100];
static pthread_mutex_t lock;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_lock(void) {
  pthread_mutexattr_t kind;
  pthread_mutexattr_init(&kind);
  pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&lock, &kind);
}
void work_lock(void) {
  pthread_once(&once, make_lock);
  pthread_mutex_lock(&lock);
}
void work_unlock(void) { pthread_mutex_unlock(&lock); }

// Kernels run from now on; `given` makes a program of PTX.
void stand_in_run(Program *(*given)(const char *)) { assemble = given; }
int work_is_run(void) { return assemble != 0; }
Program *work_assembled(const char *ptx) { return assemble ? assemble(ptx) : 0; }

int work_failed(void) { return failure[0] != 0; }
// Return what went wrong since the last time it was asked for, or null, after all work is done.
const char *stand_in_failure(void) {
  static char told[sizeof failure];
  work_lock();
  work_finish_all();
  memcpy(told, failure, sizeof told);
  failure[0] = 0;
  work_unlock();
  return told[0] ? told : 0;
}

// Streams that do not wait for the default stream, nor it for them.
static void *independent[4096];
static int independent_count;
void work_stream_made(void *stream, unsigned flags) {
  work_lock();
  if (flags & 1 && independent_count < 4096) independent[independent_count++] = stream;
  work_unlock();
}
static int is_default(void *stream) { return (uintptr_t)stream <= 1; }
static int is_independent(void *stream) {
  for (int i = 0; i < independent_count; i++)
    if (independent[i] == stream) return 1;
  return 0;
}
static int in_order(void *a, void *b) {
  if (a == b || (is_default(a) && is_default(b))) return 1;
  return (is_default(a) && !is_independent(b)) || (is_default(b) && !is_independent(a));
}

static Work *work_at(int64_t number) { return &works[number - begin]; }

// Of a launch with more blocks than this only so many run, the first, the last and others as far apart; 0: all run.
static int64_t most_blocks;
void stand_in_most_blocks(int64_t most) { most_blocks = most; }

static int run_blocks(const Work *one, int64_t first, int64_t last) {
  return ptx_launch(one->program, one->grid, one->block, one->shared, one->parameters, first, last, 1, 0);
}
static int run_launch(const Work *one) {
  int64_t blocks = (int64_t)one->grid[0] * one->grid[1] * one->grid[2];
  if (!most_blocks || blocks <= most_blocks) return run_blocks(one, 0, blocks);
  for (int64_t k = 0; k < most_blocks; k++) {
    int64_t number = most_blocks > 1 ? (int64_t)((__int128)k * (blocks - 1) / (most_blocks - 1)) : blocks - 1;
    if (run_blocks(one, number, number + 1)) return 1;
  }
  return 0;
}

static void execute(Work *one) {
  switch (one->kind) {
  case LAUNCH:
    if (run_launch(one) && !failure[0]) {
      snprintf(failure, sizeof failure, "%s", ptx_message());
      fprintf(stderr, "stand-in driver: %s\n", failure);
    }
    free(one->parameters);
    break;
  case COPY:
    memcpy((void *)one->to, one->staged ? one->staged : (void *)one->from, one->size);
    ptx_memory_copied(one->to, one->from, one->size);
    free(one->staged);
    break;
  case FILL:
    memset((void *)one->to, one->value, one->size);
    ptx_memory_written(one->to, one->size);
    break;
  case RELEASE: work_release(one->to); break;
  default: break;
  }
}

static void finish(int64_t number) {
  if (number < begin || work_at(number)->done) return;
  // The end of one moves `begin`, perhaps beyond the next.
  for (int64_t i = begin; i < number; i++)
    if (i >= begin && !work_at(i)->done && in_order(work_at(i)->stream, work_at(number)->stream)) finish(i);
  if (work_at(number)->kind == AWAIT) finish(work_at(number)->awaited);
  Work *one = work_at(number);
  one->done = 1;
  execute(one);
  while (begin < count && works[0].done) {
    int64_t done = 0;
    while (begin + done < count && works[done].done) done++;
    memmove(works, works + done, (count - begin - done) * sizeof *works);
    begin += done;
  }
}

void work_add(Work one) {
  work_lock();
  if (count - begin == room) works = realloc(works, (room = 2 * room + 64) * sizeof *works);
  one.done = 0;
  works[count++ - begin] = one;
  work_unlock();
}
void work_finish_all(void) {
  work_lock();
  int64_t last = count;
  while (begin < last) finish(begin);
  work_unlock();
}
void work_finish_stream(void *stream) {
  work_lock();
  for (int64_t i = count - 1; i >= begin; i--)
    if (work_at(i)->stream == stream || (is_default(stream) && in_order(work_at(i)->stream, stream))) finish(i);
  work_unlock();
}
int64_t work_of_event(void *event) {
  int64_t found = -1;
  work_lock();
  for (int64_t i = count - 1; i >= begin && found < 0; i--)
    if (work_at(i)->kind == RECORD && work_at(i)->event == event) found = i;
  work_unlock();
  return found;
}
void work_finish_event(void *event) {
  work_lock();
  int64_t number = work_of_event(event);
  if (number >= 0) finish(number);
  work_unlock();
}
// Who asks a second time would wait for ever: then it is done.
int work_event_is_done(void *event) {
  static void *asked;
  work_lock();
  int64_t number = work_of_event(event);
  int done = number < 0 || work_at(number)->done;
  if (!done && asked == event) finish(number);
  asked = event;
  work_unlock();
  return done;
}
