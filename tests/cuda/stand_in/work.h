// What the stand-in driver is asked to do, in the order of CUDA's streams, and as late as CUDA allows.
#pragma once
#include "../ptx/machine.h"
#include <stddef.h>
#include <stdint.h>

typedef enum { LAUNCH, COPY, FILL, RECORD, AWAIT, RELEASE } WorkKind;

typedef struct {
  WorkKind kind;
  void *stream, *event;
  int64_t awaited;                    // of AWAIT: the number of the work that records the event; -1 for none
  Program *program;
  unsigned grid[3], block[3], shared;
  uint8_t *parameters;
  uintptr_t to, from;
  void *staged;                       // of COPY from memory that the host may write again: what it held
  size_t size;
  unsigned value;
  int done;
} Work;

// One lock, taken again by who has it: a launch holds allocations, which others add and remove.
void work_lock(void);
void work_unlock(void);
int work_is_run(void);                // whether kernels run at all
void work_add(Work one);
void work_finish_stream(void *stream);
void work_finish_all(void);
void work_finish_event(void *event);
int work_event_is_done(void *event);
int64_t work_of_event(void *event);
void work_stream_made(void *stream, unsigned flags);
int work_failed(void);
Program *work_assembled(const char *ptx);
void work_release(uintptr_t at);      // libcuda.c frees the memory
