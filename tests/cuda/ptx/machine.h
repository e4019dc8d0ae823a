// What the parts of the emulator share: instructions as numbers, allocations with their shadows, counts.
#pragma once
#include <stddef.h>
#include <stdint.h>

enum {
#define OPERATION(name) name,
#include "operations.def"
#undef OPERATION
  OPERATION_COUNT
};
enum { GLOBAL = 1, SHARED = 3, GENERIC = 0 };
enum { MOST_THREADS = 1024, MOST_ALLOWED = 32, COUNTS = 7, SPECIALS = 14 };

// Shared memory of a block: without asking for more, and in all, which is what sm_90 has; static memory has the first.
enum { SHARED_UNASKED = 48 << 10, MOST_SHARED = 227 << 10 };

// Generic addresses of shared memory begin here.
#define SHARED_WINDOW 0x7e0000000000ull

// One instruction. Operands are slots: an array with a value for each thread, 0 in the bits above its type.
typedef struct {
  int32_t operation, line;
  int32_t guard, negated;           // the slot of a predicate, or -1
  int32_t bits, is_signed;          // of the type
  int32_t from_bits, from_signed;   // of cvt's source
  int32_t d[4], a, b, c, e;         // e: a fourth operand; of a store, the values are in d
  int32_t count;                    // of a vector
  int32_t space, mode, combined;    // combined: of setp, how the fourth operand comes in; -1 without it
  int64_t offset;                   // of an address; the target of a branch; the immediate of lop3
} Instruction;

typedef struct {
  char name[64];
  const char *text;
  Instruction *code;
  int count, slots, constants;
  uint64_t *constant_values;        // slots from 0 on
  int special;                      // slots from here on: tid, ntid, ctaid, nctaid, each x, y, z; laneid, warpid
  int parameter_bytes, shared_bytes, most_threads, most_dynamic;
  int parameter_count;
  int32_t (*parameters)[2];         // offset and bytes of each
  int64_t (*counts)[COUNTS];        // an instruction: requests, lanes, bytes, sectors, wavefronts, least wavefronts, arrays
  int64_t thread_instructions, warp_instructions;
  int64_t bytes_in_flight;          // the most that the first thread of a block has loaded and not yet used
} Program;

// Device memory. Bits say which bytes were ever written. Tags say who touched a byte last, of arrays that are not large.
typedef struct {
  uintptr_t base;
  size_t size;
  uint8_t *written;
  uint64_t *writers, *readers;
  uint8_t *sectors;                 // those that a counted launch touched: 1 read, 2 written
  uint32_t *last_block[2];          // of a sector: the last block that read it, and that wrote it, from 1 on
  int64_t block_sectors[2];         // sectors read and written, one that several blocks touch counted for each
  uint64_t launch;
  int patterned;                    // what nobody has written holds a mix of where it is, as ptx_materialise says
} Allocation;

void ptx_memory_add(uintptr_t base, size_t size);
void ptx_memory_remove(uintptr_t base);
void ptx_memory_written(uintptr_t at, size_t size);
void ptx_memory_pattern(uintptr_t base);
void ptx_materialise(Allocation *one, size_t offset, size_t size);
void ptx_memory_copied(uintptr_t to, uintptr_t from, size_t size);
int64_t ptx_memory_sectors(uintptr_t base, int kind);
int64_t ptx_memory_block_sectors(uintptr_t base, int kind);
Allocation *ptx_allocation_of(uintptr_t at);
void ptx_forget_tags(void);
void ptx_prepare_allocation(Allocation *one, uint64_t launch, int counting);

Program *ptx_program(const char *name, const char *text, const Instruction *code, int count, const uint64_t *constants,
                     int constant_count, int registers, const int32_t (*parameters)[2], int parameter_count, int shared_bytes,
                     int most_threads);
void ptx_program_free(Program *program);
// Blocks from first to last, or each step-th of them. Return 0, or 1 where something is wrong: ptx_message says what.
int ptx_launch(Program *program, const unsigned grid[3], const unsigned block[3], unsigned dynamic_shared,
               const uint8_t *parameters, int64_t first_block, int64_t last_block, int64_t step, int counting);
const char *ptx_message(void);
// Return why no GPU starts a launch, or null.
const char *ptx_limits(const Program *program, const unsigned grid[3], const unsigned block[3], unsigned dynamic_shared);
