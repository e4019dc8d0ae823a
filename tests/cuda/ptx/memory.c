// Device memory as the emulator sees it: where each allocation begins and ends, and what was ever written.
#include "machine.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// Tags take 16 bytes for each byte of memory.
#define MOST_TAGGED ((size_t)16 << 20)

static Allocation *allocations;
static int allocation_count, room;

Allocation *ptx_allocation_of(uintptr_t at) {
  int low = 0, high = allocation_count;
  while (low < high) {
    int middle = (low + high) / 2;
    if (allocations[middle].base + allocations[middle].size <= at) low = middle + 1;
    else high = middle;
  }
  return low < allocation_count && allocations[low].base <= at ? &allocations[low] : 0;
}

// Zeros, of which the system gives only what is touched, however many are asked for.
static void *reserved(size_t size) {
  void *found = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return 0;
  // A page of 2 MiB for a byte would be most of the work.
  madvise(found, size, MADV_NOHUGEPAGE);
  return found;
}

void ptx_memory_add(uintptr_t base, size_t size) {
  if (allocation_count == room) {
    room = room ? 2 * room : 256;
    allocations = realloc(allocations, room * sizeof *allocations);
  }
  int at = allocation_count++;
  while (at && allocations[at - 1].base > base) {
    allocations[at] = allocations[at - 1];
    at--;
  }
  allocations[at] = (Allocation){.base = base, .size = size, .written = reserved(size / 8 + 9)};
}

void ptx_memory_remove(uintptr_t base) {
  Allocation *found = ptx_allocation_of(base);
  if (!found) return;
  munmap(found->written, found->size / 8 + 9);
  free(found->writers);
  free(found->readers);
  free(found->sectors);
  free(found->last_block[0]);
  free(found->last_block[1]);
  int at = found - allocations;
  memmove(found, found + 1, (--allocation_count - at) * sizeof *found);
}

static void mark(Allocation *one, size_t begin, size_t size) {
  size_t end = begin + size;
  while (begin < end && begin % 8) one->written[begin / 8] |= 1 << begin % 8, begin++;
  size_t whole = (end - begin) / 8;
  memset(one->written + begin / 8, 0xff, whole);
  for (begin += 8 * whole; begin < end; begin++) one->written[begin / 8] |= 1 << begin % 8;
}

void ptx_memory_written(uintptr_t at, size_t size) {
  Allocation *found = ptx_allocation_of(at);
  if (found && size) mark(found, at - found->base, size);
}

// From now on bytes that nobody wrote hold a mix of all bits of their number: gigabytes of which few are ever touched.
void ptx_memory_pattern(uintptr_t base) {
  Allocation *found = ptx_allocation_of(base);
  if (found) found->patterned = 1;
}
void ptx_materialise(Allocation *one, size_t offset, size_t size) {
  for (size_t o = offset; o < offset + size; o++) {
    if (one->written[o / 8] >> o % 8 & 1) continue;
    ((uint8_t *)one->base)[o] = (uint64_t)o * 0x9e3779b97f4a7c15u >> 56;
    one->written[o / 8] |= 1 << o % 8;
  }
}

// What was never written stays so where it is copied to.
void ptx_memory_copied(uintptr_t to, uintptr_t from, size_t size) {
  Allocation *target = ptx_allocation_of(to), *source = ptx_allocation_of(from);
  if (!target || !size) return;
  if (!source) {
    mark(target, to - target->base, size);
    return;
  }
  for (size_t i = 0; i < size; i++) {
    size_t s = from - source->base + i, d = to - target->base + i;
    uint8_t bit = source->written[s / 8] >> s % 8 & 1;
    target->written[d / 8] = (target->written[d / 8] & ~(1 << d % 8)) | bit << d % 8;
  }
}

// Return how many 32-byte sectors the last counted launch read (1), wrote (2) or touched (3).
int64_t ptx_memory_sectors(uintptr_t base, int kind) {
  Allocation *found = ptx_allocation_of(base);
  int64_t sum = 0;
  if (found && found->sectors)
    for (size_t i = 0; i < found->size / 32 + 2; i++) sum += (found->sectors[i] & kind) != 0;
  return sum;
}

// Return the same where a sector counts once for each block that touches it: read (1) or written (2).
int64_t ptx_memory_block_sectors(uintptr_t base, int kind) {
  Allocation *found = ptx_allocation_of(base);
  return found ? found->block_sectors[kind - 1] : 0;
}

// Launches are numbered anew.
void ptx_forget_tags(void) {
  for (int i = 0; i < allocation_count; i++) {
    free(allocations[i].writers);
    free(allocations[i].readers);
    allocations[i].writers = allocations[i].readers = 0;
  }
}

void ptx_prepare_allocation(Allocation *one, uint64_t launch, int counting) {
  if (one->size <= MOST_TAGGED && !one->writers) {
    one->writers = calloc(one->size + 16, sizeof(uint64_t));
    one->readers = calloc(one->size + 16, sizeof(uint64_t));
  }
  if (counting && one->launch != launch) {
    free(one->sectors);
    one->sectors = calloc(one->size / 32 + 2, 1);
    for (int i = 0; i < 2; i++) {
      free(one->last_block[i]);
      one->last_block[i] = calloc(one->size / 32 + 2, 4);
      one->block_sectors[i] = 0;
    }
  }
  one->launch = launch;
}
