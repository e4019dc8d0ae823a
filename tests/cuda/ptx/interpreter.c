// Runs the instructions of a kernel, block by block. All threads of a block that stand at an instruction do it together;
// those that stand lowest in the code go first, so that they meet again where paths join.
#include "machine.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t Lane;
typedef int64_t Signed;

// Of a run: one at a time.
static struct {
  Program *program;
  const Instruction *at;
  Lane *slots;
  int threads, warps;
  unsigned grid[3], block[3];
  int64_t block_number;
  const uint8_t *parameters;
  Allocation *allowed[MOST_ALLOWED];
  int allowed_count;
  uint8_t *shared, *shared_written;
  uint64_t *shared_writers, *shared_readers;
  unsigned shared_bytes;
  uint64_t launch, epoch;
  uint8_t warp_epoch[MOST_THREADS / 32];
  int counting;
  jmp_buf failure;
} run;

static int active[MOST_THREADS], active_count, active_warps;
static int chosen[MOST_THREADS];
static int place[MOST_THREADS];  // where a thread stands; the codes below where it does not run
enum { WAITS = 1 << 30, GONE = 1 << 30 | 1 };
static int waits_at[MOST_THREADS];
static char message[1024];

const char *ptx_message(void) { return message; }

static void line_text(int line, char *to, size_t size) {
  const char *from = run.program->text;
  for (int i = 1; i < line && from; i++) from = (from = strchr(from, '\n')) ? from + 1 : 0;
  while (from && (*from == ' ' || *from == '\t')) from++;
  size_t n = from ? strcspn(from, "\n") : 0;
  if (n >= size) n = size - 1;
  memcpy(to, from ? from : "", n);
  to[n] = 0;
}

__attribute__((noreturn, format(printf, 2, 3))) static void fail(int thread, const char *format, ...) {
  char what[400], text[200];
  va_list rest;
  va_start(rest, format);
  vsnprintf(what, sizeof what, format, rest);
  va_end(rest);
  line_text(run.at->line, text, sizeof text);
  snprintf(message, sizeof message, "%s, line %d, `%s`: %s (thread %d of block %lld)", run.program->name, run.at->line,
           text, what, thread, (long long)run.block_number);
  longjmp(run.failure, 1);
}

static inline Lane *slot(int number) { return run.slots + (size_t)number * run.threads; }
static inline Lane bits_mask(int bits) { return bits == 64 ? ~0ull : (1ull << bits) - 1; }
static inline Signed extended(Lane value, int shift) { return (Signed)(value << shift) >> shift; }

// Who touched a byte: an atomic 1, launch 13, block 24, barriers passed 8, those of the warp 7, thread 11.
enum { SEVERAL = 0x7ff, SEVERAL_OF_WARP = 0x400 };
static const uint64_t BY_ATOMIC = 1ull << 63;
static inline uint64_t tag_of(int thread) {
  return run.launch << 50 | (uint64_t)(run.block_number & 0xffffff) << 26 | (run.epoch & 0xff) << 18 |
         (uint64_t)(run.warp_epoch[thread / 32] & 0x7f) << 11 | (unsigned)thread;
}
// Whether the access of `tag` may meet what `before` says without anything between that orders them.
static inline int races(uint64_t before, uint64_t tag, int shared) {
  uint64_t differs = (before ^ tag) & ~BY_ATOMIC;
  if (differs >> 50 || !before) return 0;  // of another launch
  if (differs >> 26) return !shared;       // of another block, whose shared memory is its own
  if (differs >> 18) return 0;             // a barrier lies between
  unsigned a = before & 0x7ff, b = tag & 0x7ff;
  if (a == b || !differs) return 0;
  if (a == SEVERAL) return 1;
  int warp = a & SEVERAL_OF_WARP ? a & 31 : a / 32;
  return warp != (int)b / 32 || !(differs >> 11 & 0x7f);
}
static inline uint64_t read_together(uint64_t before, uint64_t tag) {
  if (before >> 18 != tag >> 18 || before == tag) return before >> 26 == tag >> 26 || before >> 50 != tag >> 50 ? tag : before | SEVERAL;
  unsigned a = before & 0x7ff, b = tag & 0x7ff;
  int warp = a == SEVERAL ? -1 : a & SEVERAL_OF_WARP ? (int)(a & 31) : (int)a / 32;
  return (tag & ~0x7ffull) | (warp == (int)b / 32 ? SEVERAL_OF_WARP | warp : SEVERAL);
}

static __attribute__((noreturn)) void fail_race(uint64_t before, int thread, const char *verb, const char *did, uintptr_t at) {
  unsigned other = before & 0x7ff;
  char who[60];
  if (other & SEVERAL_OF_WARP) snprintf(who, sizeof who, "several threads");
  else snprintf(who, sizeof who, "thread %u", other);
  fail(thread, "race: it %s byte %#zx, which %s of block %u %s, with no barrier between", verb, (size_t)at, who,
       (unsigned)(before >> 26 & 0xffffff), did);
}

static inline void touch_to_write(uint64_t *writers, uint64_t *readers, size_t o, int size, int thread, int shared, uintptr_t at) {
  uint64_t tag = tag_of(thread);
  for (int j = 0; j < size; j++) {
    if (races(writers[o + j], tag, shared)) fail_race(writers[o + j], thread, "writes", "wrote", at + j);
    if (races(readers[o + j], tag, shared)) fail_race(readers[o + j], thread, "writes", "read", at + j);
    writers[o + j] = tag;
  }
}
static inline void touch_to_read(uint64_t *writers, uint64_t *readers, size_t o, int size, int thread, int shared, uintptr_t at) {
  uint64_t tag = tag_of(thread);
  for (int j = 0; j < size; j++) {
    if (races(writers[o + j], tag, shared)) fail_race(writers[o + j], thread, "reads", "wrote", at + j);
    readers[o + j] = read_together(readers[o + j], tag);
  }
}

static inline void touch_to_update(uint64_t *writers, uint64_t *readers, size_t o, int size, int thread, int shared, uintptr_t at) {
  uint64_t tag = tag_of(thread);
  for (int j = 0; j < size; j++) {
    // Atomics do not race among themselves.
    if (!(writers[o + j] & BY_ATOMIC) && races(writers[o + j], tag, shared)) fail_race(writers[o + j], thread, "updates", "wrote", at + j);
    if (races(readers[o + j], tag, shared)) fail_race(readers[o + j], thread, "updates", "read", at + j);
    writers[o + j] = tag | BY_ATOMIC;
  }
}

static inline void check_written(const uint8_t *written, size_t o, int size, int thread, uintptr_t at) {
  uint32_t bits;
  memcpy(&bits, written + o / 8, 4);
  uint32_t wanted = (1u << size) - 1, found = bits >> o % 8 & wanted;
  if (found != wanted) fail(thread, "reads memory that was never written, at %#zx, %d bytes", (size_t)at, size);
}
static inline void set_written(uint8_t *written, size_t o, int size) {
  uint32_t bits;
  memcpy(&bits, written + o / 8, 4);
  bits |= ((1u << size) - 1) << o % 8;
  memcpy(written + o / 8, &bits, 4);
}

static __attribute__((noreturn, noinline)) void fail_outside(uintptr_t at, int size, int thread) {
  long long best = 1ll << 62;
  size_t of = 0;
  for (int i = 0; i < run.allowed_count; i++) {
    Allocation *one = run.allowed[i];
    long long past = (long long)(at + size) - (long long)(one->base + one->size);
    long long before = (long long)one->base - (long long)at;
    long long distance = past > before ? past : -before;
    if (llabs(distance) < llabs(best)) best = distance, of = one->size;
  }
  fail(thread, "touches %d bytes at %#zx, outside every array of the launch; the nearest, of %zu bytes, is missed by %lld",
       size, (size_t)at, of, best);
}
static inline int allowed_at(uintptr_t at, int size, int thread, int *hint) {
  Allocation *one = run.allowed[*hint];
  if (at >= one->base && at + size <= one->base + one->size) return *hint;
  for (int i = 0; i < run.allowed_count; i++) {
    one = run.allowed[i];
    if (at >= one->base && at + size <= one->base + one->size) return *hint = i;
  }
  fail_outside(at, size, thread);
}

// Memory of a thread at an address, checked: for reading (1) or writing (2), or for both as an atomic (3).
static inline uint8_t *memory_at(uintptr_t at, int size, int space, int thread, int kind, int *hint, int64_t *counts) {
  if (at % size) fail(thread, "misaligned: %d bytes at %#zx", size, (size_t)at);
  if (space == GENERIC) {
    space = at >= SHARED_WINDOW && at < SHARED_WINDOW + (1 << 24) ? SHARED : GLOBAL;
    if (space == SHARED) at -= SHARED_WINDOW;
  }
  if (space == SHARED) {
    if (at + size > run.shared_bytes || at > run.shared_bytes)
      fail(thread, "touches %d bytes at %#zx of shared memory, which has %u", size, (size_t)at, run.shared_bytes);
    if (kind & 1) check_written(run.shared_written, at, size, thread, at);
    if (kind == 1) touch_to_read(run.shared_writers, run.shared_readers, at, size, thread, 1, at);
    if (kind == 2) touch_to_write(run.shared_writers, run.shared_readers, at, size, thread, 1, at);
    if (kind == 3) touch_to_update(run.shared_writers, run.shared_readers, at, size, thread, 1, at);
    if (kind & 2) set_written(run.shared_written, at, size);
    return run.shared + at;
  }
  int number = allowed_at(at, size, thread, hint);
  Allocation *one = run.allowed[number];
  size_t o = at - one->base;
  if (kind & 1) {
    if (one->patterned) ptx_materialise(one, o, size);
    check_written(one->written, o, size, thread, at);
  }
  if (one->writers) {
    if (kind == 1) touch_to_read(one->writers, one->readers, o, size, thread, 0, at);
    if (kind == 2) touch_to_write(one->writers, one->readers, o, size, thread, 0, at);
    if (kind == 3) touch_to_update(one->writers, one->readers, o, size, thread, 0, at);
  }
  if (kind & 2) set_written(one->written, o, size);
  if (counts) {
    size_t sector = (at >> 5) - (one->base >> 5);
    counts[6] |= 1ll << number;
    one->sectors[sector] |= kind;
    for (int i = 0; i < 2; i++)
      if (kind >> i & 1 && one->last_block[i][sector] != (uint32_t)run.block_number + 1) {
        one->last_block[i][sector] = (uint32_t)run.block_number + 1;
        one->block_sectors[i]++;
      }
  }
  return (uint8_t *)at;
}

static inline Lane loaded(const uint8_t *from, int size, int is_signed) {
  switch (size) {
  case 1: return is_signed ? (Lane)(Signed)*(const int8_t *)from : *from;
  case 2: { uint16_t v; memcpy(&v, from, 2); return is_signed ? (Lane)(Signed)(int16_t)v : v; }
  case 4: { uint32_t v; memcpy(&v, from, 4); return is_signed ? (Lane)(Signed)(int32_t)v : v; }
  default: { Lane v; memcpy(&v, from, 8); return v; }
  }
}

// Counts of one instruction, warp by warp: sectors of 32 bytes, and of shared memory how often the banks are asked.
static void count_sectors(const uintptr_t *at, int lanes, int size, int64_t *counts) {
  uintptr_t seen[64];
  int found = 0;
  for (int i = 0; i < lanes; i++) {
    int j = found - 1;
    while (j >= 0 && seen[j] != at[i] >> 5) j--;
    if (j < 0) seen[found++] = at[i] >> 5;
  }
  counts[3] += found;
}
// 4 bytes or less: all lanes at once; 8: half of them; 16: a quarter. A bank gives one word to all who ask for that word.
static void count_wavefronts(const uintptr_t *at, const int *lane, int lanes, int size, int64_t *counts) {
  int parts = size <= 4 ? 1 : size / 4, per = 32 / parts;
  for (int part = 0; part < parts; part++) {
    uintptr_t words[32][32];
    int held[32] = {0}, worst = 0, any = 0;
    for (int i = 0; i < lanes; i++) {
      if (lane[i] / per != part) continue;
      any = 1;
      for (int w = 0; w < (size + 3) / 4; w++) {
        uintptr_t word = at[i] / 4 + w;
        int bank = word % 32, j = 0;
        while (j < held[bank] && words[bank][j] != word) j++;
        if (j == held[bank]) words[bank][held[bank]++] = word;
        if (held[bank] > worst) worst = held[bank];
      }
    }
    counts[4] += worst;
    counts[5] += any;
  }
}
static void count_access(const int *list, int n, const Lane *base, int64_t offset, int size, int space, int64_t *counts) {
  uintptr_t at[32];
  int lane[32];
  for (int i = 0; i < n;) {
    int warp = list[i] / 32, lanes = 0;
    for (; i < n && list[i] / 32 == warp; i++) at[lanes] = base[list[i]] + offset, lane[lanes++] = list[i] % 32;
    counts[0]++;
    counts[1] += lanes;
    counts[2] += (int64_t)lanes * size;
    if (space == SHARED) count_wavefronts(at, lane, lanes, size, counts);
    else count_sectors(at, lanes, size, counts);
  }
}

#define EACH for (int k = 0, i; k < n && (i = list[k], 1); k++)

static void do_load(const Instruction *o, const int *list, int n) {
  const Lane *base = slot(o->a);
  int size = o->bits / 8, whole = size * o->count, hint = 0;
  int64_t *counts = run.counting ? run.program->counts[o - run.program->code] : 0;
  if (counts) count_access(list, n, base, o->offset, whole, o->space, counts);
  Lane keep = bits_mask(o->from_bits);
  static Lane unwanted[MOST_THREADS];
  Lane values[4], *to[4];
  for (int v = 0; v < o->count; v++) to[v] = o->d[v] < 0 ? unwanted : slot(o->d[v]);
  uintptr_t before = 0;
  int warp = -1, again = 0;
  EACH {
    uintptr_t at = base[i] + o->offset;
    // Of what two lanes of a warp have read, a third tells nothing new: most reads of tables.
    again = at == before && i / 32 == warp ? again + 1 : 0;
    before = at, warp = i / 32;
    if (again < 2) {
      const uint8_t *from = memory_at(at, whole, o->space, i, 1, &hint, counts);
      for (int v = 0; v < o->count; v++) values[v] = loaded(from + v * size, size, o->is_signed) & keep;
    }
    for (int v = 0; v < o->count; v++) to[v][i] = values[v];
  }
}

static void do_store(const Instruction *o, const int *list, int n) {
  const Lane *base = slot(o->a);
  int size = o->bits / 8, whole = size * o->count, hint = 0;
  int64_t *counts = run.counting ? run.program->counts[o - run.program->code] : 0;
  if (counts) count_access(list, n, base, o->offset, whole, o->space, counts);
  EACH {
    uint8_t *to = memory_at(base[i] + o->offset, whole, o->space, i, 2, &hint, counts);
    for (int v = 0; v < o->count; v++) memcpy(to + v * size, &slot(o->d[v])[i], size);
  }
}

enum { ATOM_ADD, ATOM_MIN, ATOM_MAX, ATOM_AND, ATOM_OR, ATOM_XOR, ATOM_EXCH, ATOM_CAS };
static void do_atomic(const Instruction *o, const int *list, int n) {
  const Lane *base = slot(o->a), *b = slot(o->b), *c = o->c < 0 ? 0 : slot(o->c);
  int size = o->bits / 8, hint = 0, shift = 64 - o->bits;
  int64_t *counts = run.counting ? run.program->counts[o - run.program->code] : 0;
  if (counts) count_access(list, n, base, o->offset, size, o->space, counts);
  EACH {
    uint8_t *at = memory_at(base[i] + o->offset, size, o->space, i, 3, &hint, counts);
    Lane old = loaded(at, size, 0), new = b[i];
    int less = o->is_signed ? extended(b[i], shift) < extended(old, shift) : b[i] < old;
    switch (o->mode) {
    case ATOM_ADD: new = old + b[i]; break;
    case ATOM_MIN: new = less ? b[i] : old; break;
    case ATOM_MAX: new = less ? old : b[i]; break;
    case ATOM_AND: new = old & b[i]; break;
    case ATOM_OR: new = old | b[i]; break;
    case ATOM_XOR: new = old ^ b[i]; break;
    case ATOM_CAS: new = old == b[i] ? c[i] : old; break;
    }
    memcpy(at, &new, size);
    if (o->d[0] >= 0) slot(o->d[0])[i] = old;
  }
}

// What cp.async has read, on its way to shared memory until its group is waited for.
typedef struct { int thread, group, size; uintptr_t to; uint8_t bytes[16]; const Instruction *by; } Copy;
static Copy *copies;
static int copy_count, copy_room, groups[MOST_THREADS];

static void do_copy(const Instruction *o, const int *list, int n) {
  const Lane *to = slot(o->a), *from = slot(o->b), *given = o->c < 0 ? 0 : slot(o->c);
  int hint = 0, size = o->mode;
  int64_t *counts = run.counting ? run.program->counts[o - run.program->code] : 0;
  if (counts) count_access(list, n, from, o->offset, size, GLOBAL, counts);
  EACH {
    if (copy_count == copy_room) copies = realloc(copies, (copy_room = 2 * copy_room + 1024) * sizeof *copies);
    Copy *one = &copies[copy_count++];
    *one = (Copy){.thread = i, .group = groups[i], .size = size, .to = to[i], .by = o};
    int part = given && given[i] < (Lane)size ? (int)given[i] : size;
    for (int j = 0; j < part; j++)
      one->bytes[j] = *memory_at(from[i] + o->offset + j, 1, GLOBAL, i, 1, &hint, counts);
    if (part && (from[i] + o->offset) % size) fail(i, "misaligned: %d bytes at %#zx", size, (size_t)(from[i] + o->offset));
  }
}
static void finish_copies(const int *list, int n, int left) {
  EACH {
    int kept = 0;
    for (int j = 0; j < copy_count; j++) {
      Copy one = copies[j];
      if (one.thread == i && one.group < groups[i] - left) {
        const Instruction *waiter = run.at;
        run.at = one.by;
        memcpy(memory_at(one.to, one.size, SHARED, i, 2, 0, 0), one.bytes, one.size);
        run.at = waiter;
      } else copies[kept++] = one;
    }
    copy_count = kept;
  }
}

enum { SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_BUTTERFLY, SHUFFLE_INDEX };
static void do_shuffle(const Instruction *o, const int *list, int n) {
  const Lane *a = slot(o->a), *b = slot(o->b), *c = slot(o->c), *members = slot(o->e);
  static Lane results[MOST_THREADS], valid[MOST_THREADS];
  Lane absent[MOST_THREADS / 32] = {0};
  for (int i = 0; i < run.threads; i++) absent[i / 32] |= 1ull << i % 32;
  EACH absent[i / 32] &= ~(1ull << i % 32);
  EACH {
    int lane = i % 32, bound = c[i] & 31, segment = c[i] >> 8 & 31, by = b[i] & 31;
    int highest = (lane & segment) | (bound & ~segment), lowest = lane & segment, j, inside;
    switch (o->mode) {
    case SHUFFLE_UP: j = lane - by; inside = j >= highest; break;
    case SHUFFLE_DOWN: j = lane + by; inside = j <= highest; break;
    case SHUFFLE_BUTTERFLY: j = lane ^ by; inside = j <= highest; break;
    default: j = lowest | (by & ~segment); inside = j <= highest;
    }
    if (!inside) j = lane;
    Lane missing = members[i] & absent[i / 32];
    if (missing) fail(i, "lane %d is named in the mask %#llx and does not take part", __builtin_ctzll(missing), (unsigned long long)members[i]);
    if (!(members[i] >> lane & 1)) fail(i, "it is not named in the mask %#llx", (unsigned long long)members[i]);
    if (!(members[i] >> j & 1)) fail(i, "reads lane %d, which is not named in the mask", j);
    results[i] = a[i / 32 * 32 + j];
    valid[i] = inside;
  }
  EACH {
    slot(o->d[0])[i] = results[i];
    if (o->d[1] >= 0) slot(o->d[1])[i] = valid[i];
  }
}

enum { VOTE_ALL, VOTE_ANY, VOTE_UNIFORM, VOTE_BALLOT };
static void do_vote(const Instruction *o, const int *list, int n) {
  const Lane *a = slot(o->a);
  Lane votes[MOST_THREADS / 32] = {0}, present[MOST_THREADS / 32] = {0};
  EACH {
    votes[i / 32] |= (a[i] ^ (o->combined & 1)) << i % 32;
    present[i / 32] |= 1ull << i % 32;
  }
  EACH {
    Lane members = slot(o->b)[i], yes = votes[i / 32] & members;
    if (members & ~present[i / 32]) fail(i, "lanes are named in the mask %#llx that do not take part", (unsigned long long)members);
    Lane found = yes;
    if (o->mode == VOTE_ALL) found = yes == members;
    if (o->mode == VOTE_ANY) found = yes != 0;
    if (o->mode == VOTE_UNIFORM) found = yes == 0 || yes == members;
    slot(o->d[0])[i] = found;
  }
}

static void do_active_mask(const Instruction *o, const int *list, int n) {
  Lane present[MOST_THREADS / 32] = {0};
  EACH present[i / 32] |= 1ull << i % 32;
  EACH slot(o->d[0])[i] = present[i / 32];
}

// Arithmetic. Every value is masked to the bits of its type; signed ones are extended before they are compared.

static Lane high_product(Lane a, Lane b, int bits, int is_signed) {
  int shift = 64 - bits;
  if (is_signed) return (Lane)((__int128)extended(a, shift) * extended(b, shift) >> bits);
  return (Lane)((unsigned __int128)a * b >> bits);
}
static Lane divided(Lane a, Lane b, int bits, int is_signed, int remainder, int thread) {
  if (!b) fail(thread, "divides by zero");
  if (!is_signed) return remainder ? a % b : a / b;
  Signed x = extended(a, 64 - bits), y = extended(b, 64 - bits);
  if (y == -1) return remainder ? 0 : -(Lane)x;
  return remainder ? x % y : x / y;
}
static Lane permuted(Lane a, Lane b, Lane selector) {
  Lane both = a | b << 32, found = 0;
  for (int i = 0; i < 4; i++) {
    Lane pick = selector >> 4 * i & 15, byte = both >> 8 * (pick & 7) & 255;
    byte = pick & 8 ? -(byte >> 7) & 255 : byte;
    found |= byte << 8 * i;
  }
  return found;
}
static Lane field(Lane a, Lane begin, Lane length, int bits, int is_signed) {
  unsigned p = begin & 255, n = length & 255, top = p + n - 1 < (unsigned)bits - 1 ? p + n - 1 : (unsigned)bits - 1;
  Lane sign = is_signed && n ? a >> top & 1 : 0, found = 0;
  for (unsigned i = 0; i < (unsigned)bits; i++) found |= (i < n && p + i < (unsigned)bits ? a >> (p + i) & 1 : sign) << i;
  return found;
}
static Lane inserted(Lane a, Lane b, Lane begin, Lane length, int bits) {
  unsigned p = begin & 255, n = length & 255;
  for (unsigned i = 0; i < n && p + i < (unsigned)bits; i++) b = (b & ~(1ull << (p + i))) | (a >> i & 1) << (p + i);
  return b;
}
static Lane by_table(Lane a, Lane b, Lane c, int table) {
  Lane found = 0;
  for (int i = 0; i < 8; i++)
    if (table >> i & 1) found |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return found;
}
static Lane funnel(Lane low, Lane high, Lane by, int left, int clamp) {
  Lane both = low | high << 32;
  int n = clamp ? (by > 32 ? 32 : by) : by & 31;
  return left ? both << n >> 32 : both >> n;
}
static Lane reversed(Lane a, int bits) {
  Lane found = 0;
  for (int i = 0; i < bits; i++) found |= (a >> i & 1) << (bits - 1 - i);
  return found;
}

// A loop over all threads, which the compiler turns into vectors, or over those of a list.
#define FOR(expression)                                                                                       \
  do {                                                                                                        \
    if (n == run.threads) {                                                                                   \
      int threads = run.threads;                                                                              \
      _Pragma("GCC ivdep") for (int i = 0; i < threads; i++) d[i] = (expression) & keep;                      \
    } else EACH d[i] = (expression) & keep;                                                                   \
  } while (0)
#define S(v) extended(v[i], shift)

enum { EQ, NE, LT, LE, GT, GE };
static void do_compare(const Instruction *o, const int *list, int n) {
  Lane *d = slot(o->d[0]), *q = o->d[1] < 0 ? 0 : slot(o->d[1]);
  const Lane *a = slot(o->a), *b = slot(o->b), keep = 1;
  int shift = 64 - o->bits;
  if (o->combined < 0 && !q) {
    switch (o->mode) {
    case EQ: FOR(a[i] == b[i]); return;
    case NE: FOR(a[i] != b[i]); return;
    case LT: if (o->is_signed) FOR(S(a) < S(b)); else FOR(a[i] < b[i]); return;
    case LE: if (o->is_signed) FOR(S(a) <= S(b)); else FOR(a[i] <= b[i]); return;
    case GT: if (o->is_signed) FOR(S(a) > S(b)); else FOR(a[i] > b[i]); return;
    default: if (o->is_signed) FOR(S(a) >= S(b)); else FOR(a[i] >= b[i]); return;
    }
  }
  const Lane *c = o->combined < 0 ? 0 : slot(o->c);
  EACH {
    Signed x = o->is_signed ? S(a) : 0, y = o->is_signed ? S(b) : 0;
    int less = o->is_signed ? x < y : a[i] < b[i], equal = a[i] == b[i], t;
    switch (o->mode) {
    case EQ: t = equal; break;
    case NE: t = !equal; break;
    case LT: t = less; break;
    case LE: t = less || equal; break;
    case GT: t = !less && !equal; break;
    default: t = !less;
    }
    // and, or, xor; 4 more where the predicate is negated
    Lane with = c ? c[i] ^ (o->combined >> 2 & 1) : 0, p = t, no = !t;
    if (c) switch (o->combined & 3) {
      case 0: p = t & with; no = (!t) & with; break;
      case 1: p = t | with; no = (!t) | with; break;
      default: p = t ^ with; no = (!t) ^ with;
    }
    d[i] = p;
    if (q) q[i] = no;
  }
}

static Lane sum(Lane a, Lane b, int bits, int minus);
static void do_arithmetic(const Instruction *o, const int *list, int n) {
  Lane *d = slot(o->d[0]);
  const Lane *a = slot(o->a), *b = o->b < 0 ? a : slot(o->b), *c = o->c < 0 ? a : slot(o->c);
  const Lane keep = bits_mask(o->operation == MUL_WIDE || o->operation == MAD_WIDE ? 2 * o->bits : o->bits);
  int bits = o->bits, shift = 64 - bits, is_signed = o->is_signed;
  switch (o->operation) {
  case MOV: FOR(a[i]); break;
  case ADD: FOR(a[i] + b[i]); break;
  case SUB: FOR(a[i] - b[i]); break;
  case MUL_LO: FOR(a[i] * b[i]); break;
  case MUL_HI: FOR(high_product(a[i], b[i], bits, is_signed)); break;
  case MUL_WIDE: if (is_signed) FOR((Lane)S(a) * (Lane)S(b)); else FOR(a[i] * b[i]); break;
  case MAD_LO: FOR(a[i] * b[i] + c[i]); break;
  case MAD_HI: FOR(high_product(a[i], b[i], bits, is_signed) + c[i]); break;
  case MAD_WIDE: if (is_signed) FOR((Lane)S(a) * (Lane)S(b) + c[i]); else FOR(a[i] * b[i] + c[i]); break;
  case DIV: EACH d[i] = divided(a[i], b[i], bits, is_signed, 0, i) & keep; break;
  case REM: EACH d[i] = divided(a[i], b[i], bits, is_signed, 1, i) & keep; break;
  case ABS: FOR((Lane)(S(a) < 0 ? -(Lane)S(a) : (Lane)S(a))); break;
  case NEG: FOR(-a[i]); break;
  case MIN: if (is_signed) FOR(S(a) < S(b) ? a[i] : b[i]); else FOR(a[i] < b[i] ? a[i] : b[i]); break;
  case MAX: if (is_signed) FOR(S(a) > S(b) ? a[i] : b[i]); else FOR(a[i] > b[i] ? a[i] : b[i]); break;
  case AND: FOR(a[i] & b[i]); break;
  case OR: FOR(a[i] | b[i]); break;
  case XOR: FOR(a[i] ^ b[i]); break;
  case NOT: FOR(~a[i]); break;
  case CNOT: FOR((Lane)(a[i] == 0)); break;
  case SHL: FOR(b[i] >= (Lane)bits ? 0 : a[i] << (b[i] & 63)); break;
  case SHR:
    if (is_signed) FOR((Lane)(S(a) >> (b[i] >= (Lane)bits ? bits - 1 : (int)b[i])));
    else FOR(b[i] >= (Lane)bits ? 0 : a[i] >> (b[i] & 63));
    break;
  case SHF_L_WRAP: FOR(funnel(a[i], b[i], c[i], 1, 0)); break;
  case SHF_L_CLAMP: FOR(funnel(a[i], b[i], c[i], 1, 1)); break;
  case SHF_R_WRAP: FOR(funnel(a[i], b[i], c[i], 0, 0)); break;
  case SHF_R_CLAMP: FOR(funnel(a[i], b[i], c[i], 0, 1)); break;
  case POPC: FOR((Lane)__builtin_popcountll(a[i])); break;
  case CLZ: FOR((Lane)(a[i] ? __builtin_clzll(a[i]) - shift : bits)); break;
  case BREV: FOR(reversed(a[i], bits)); break;
  case BFE: FOR(field(a[i], b[i], c[i], bits, is_signed)); break;
  case BFI: {
    const Lane *e = slot(o->e);
    FOR(inserted(a[i], b[i], c[i], e[i], bits));
    break;
  }
  case PRMT: FOR(permuted(a[i], b[i], c[i])); break;
  case LOP3: FOR(by_table(a[i], b[i], c[i], (int)o->offset)); break;
  case SELP: FOR(c[i] ? a[i] : b[i]); break;
  case FADD: FOR(sum(a[i], b[i], bits, 0)); break;
  case FSUB: FOR(sum(a[i], b[i], bits, 1)); break;
  case CVT: {
    const Lane from = bits_mask(o->from_bits);
    shift = 64 - o->from_bits;
    if (o->from_signed) FOR((Lane)S(a)); else FOR(a[i] & from);
    break;
  }
  default: fail(list[0], "the emulator does not know operation %d", o->operation);
  }
}

// Floats. A GPU promises nothing about the payload of NaN: here each result that is NaN has all bits but its sign's.
static double as_float(Lane bits, int width) {
  if (width == 64) { double v; memcpy(&v, &bits, 8); return v; }
  uint32_t low = (uint32_t)bits;
  float v;
  memcpy(&v, &low, 4);
  return v;
}
static Lane single_of(float v) {
  uint32_t bits;
  memcpy(&bits, &v, 4);
  return v != v ? 0x7fffffff : bits;
}
static Lane double_of(double v) {
  Lane bits;
  memcpy(&bits, &v, 8);
  return v != v ? 0x7fffffffffffffffull : bits;
}
static Lane sum(Lane a, Lane b, int bits, int minus) {
  double x = as_float(a, bits), y = minus ? -as_float(b, bits) : as_float(b, bits);
  return bits == 64 ? double_of(x + y) : single_of((float)x + (float)y);
}
static Lane cut(double v, int bits, int is_signed) {
  if (v != v) return bits == 64 ? 1ull << 63 : 0;
  double end = is_signed ? (double)(1ull << (bits - 1)) : 2.0 * (double)(1ull << (bits - 1));
  if (v >= end) return bits_mask(is_signed ? bits - 1 : bits);
  if (is_signed) return v <= -end ? (Lane)1 << (bits - 1) : (Lane)(Signed)v & bits_mask(bits);
  return v <= 0 ? 0 : (Lane)v;
}
enum { OF_UNSIGNED, OF_SIGNED, OF_FLOAT };
static void do_float_conversion(const Instruction *o, const int *list, int n) {
  Lane *d = slot(o->d[0]);
  const Lane *a = slot(o->a);
  int shift = 64 - o->from_bits;
  EACH {
    Lane low = a[i] & bits_mask(o->from_bits);
    if (o->from_signed == OF_FLOAT) {
      double v = as_float(low, o->from_bits);
      d[i] = o->is_signed != OF_FLOAT ? cut(v, o->bits, o->is_signed) : o->bits == 64 ? double_of(v) : single_of((float)v);
    } else {
      Signed s = S(a);
      if (o->bits == 64) d[i] = double_of(o->from_signed ? (double)s : (double)low);
      else d[i] = single_of(o->from_signed ? (float)s : (float)low);
    }
  }
}
static void do_float_comparison(const Instruction *o, const int *list, int n) {
  Lane *d = slot(o->d[0]);
  const Lane *a = slot(o->a), *b = slot(o->b), *c = o->combined < 0 ? 0 : slot(o->c);
  EACH {
    double x = as_float(a[i], o->bits), y = as_float(b[i], o->bits);
    int no = x != x || y != y, t;
    switch (o->mode) {
    case 12: t = !no; break;
    case 13: t = no; break;
    default:
      switch (o->mode % 6) {
      case EQ: t = x == y; break;
      case NE: t = x != y; break;
      case LT: t = x < y; break;
      case LE: t = x <= y; break;
      case GT: t = x > y; break;
      default: t = x >= y;
      }
      t = no ? o->mode >= 6 : t;
    }
    if (c) {
      int with = (int)(c[i] ^ (Lane)(o->combined >> 2 & 1));
      t = (o->combined & 3) == 0 ? t & with : (o->combined & 3) == 1 ? t | with : t ^ with;
    }
    d[i] = (Lane)t;
  }
}

static void do_pack(const Instruction *o, const int *list, int n) {
  int part = o->bits / o->count;
  if (o->operation == PACK) {
    int from[4] = {o->a, o->b, o->c, o->e};
    Lane *d = slot(o->d[0]);
    EACH {
      Lane sum = 0;
      for (int v = 0; v < o->count; v++) sum |= (slot(from[v])[i] & bits_mask(part)) << v * part;
      d[i] = sum;
    }
  } else {
    const Lane *a = slot(o->a);
    EACH {
      Lane value = a[i];
      for (int v = 0; v < o->count; v++)
        if (o->d[v] >= 0) slot(o->d[v])[i] = value >> v * part & bits_mask(part);
    }
  }
}

// Which threads go on, and where.

static int choose(void) {
  int lowest = WAITS;
  for (int i = 0; i < run.threads; i++)
    if (place[i] < lowest) lowest = place[i];
  active_count = active_warps = 0;
  int warp = -1;
  if (lowest < WAITS)
    for (int i = 0; i < run.threads; i++)
      if (place[i] == lowest) {
        active[active_count++] = i;
        if (i / 32 != warp) warp = i / 32, active_warps++;
      }
  return lowest;
}
static int next_other(int here) {
  int lowest = WAITS;
  if (active_count == run.threads) return WAITS;
  for (int i = 0; i < run.threads; i++)
    if (place[i] != here && place[i] < lowest) lowest = place[i];
  return lowest;
}

static void arrive(const Instruction *o, const int *list, int n) {
  for (int k = 0; k < n;) {
    int warp = list[k] / 32, lanes = 0, alive = 0;
    for (; k < n && list[k] / 32 == warp; k++) lanes++;
    for (int i = 32 * warp; i < 32 * warp + 32 && i < run.threads; i++) alive += place[i] != GONE;
    if (lanes != alive) fail(list[k - 1], "divergent barrier: %d of the %d threads of warp %d reach it", lanes, alive, warp);
  }
  EACH waits_at[i] = (int)(o - run.program->code), place[i] = WAITS;
}
static void release(void) {
  int first = -1, gone = -1;
  for (int i = 0; i < run.threads; i++) {
    if (place[i] == GONE) gone = i;
    else if (first < 0) first = i;
  }
  if (first < 0) return;
  run.at = run.program->code + waits_at[first];
  if (gone >= 0) fail(first, "divergent barrier: thread %d has ended and never reaches it", gone);
  for (int i = 0; i < run.threads; i++)
    if (run.program->code[waits_at[i]].mode != run.at->mode || waits_at[i] != waits_at[first])
      fail(i, "divergent barrier: thread %d waits at line %d", i, run.program->code[waits_at[i]].line);
  for (int i = 0; i < run.threads; i++) place[i] = waits_at[i] + 1;
  run.epoch++;
}

static void step_memory_or_more(const Instruction *o, const int *list, int n) {
  switch (o->operation) {
  case LD: do_load(o, list, n); break;
  case ST: do_store(o, list, n); break;
  case LD_PARAM: {
    if (o->offset < 0 || o->offset + o->bits / 8 * o->count > run.program->parameter_bytes) fail(list[0], "reads behind the parameters");
    for (int v = 0; v < o->count; v++) {
      Lane value = loaded(run.parameters + o->offset + v * o->bits / 8, o->bits / 8, o->is_signed) & bits_mask(o->from_bits);
      EACH slot(o->d[v])[i] = value;
    }
    break;
  }
  case ATOM: do_atomic(o, list, n); break;
  case CP_ASYNC: do_copy(o, list, n); break;
  case CP_COMMIT: EACH groups[i]++; break;
  case CP_WAIT: {
    if (o->mode < 0) EACH groups[i]++;
    finish_copies(list, n, o->mode < 0 ? 0 : o->mode);
    break;
  }
  case SHFL: do_shuffle(o, list, n); break;
  case VOTE: do_vote(o, list, n); break;
  case ACTIVE_MASK: do_active_mask(o, list, n); break;
  case WARP_SYNC: {
    int warp = -1;
    EACH if (i / 32 != warp) run.warp_epoch[warp = i / 32]++;
    break;
  }
  default: fail(list[0], "the emulator does not know operation %d", o->operation);
  }
}

// Loads wait for nobody until their value is used.
static void follow_loads(const Instruction *o, int reads) {
  static uint8_t *pending;
  static int64_t waiting, room;
  if (room < run.program->slots) pending = realloc(pending, room = run.program->slots);
  if (!o) {
    memset(pending, 0, room);
    waiting = 0;
    return;
  }
  int from[8] = {o->guard, o->a, o->b, o->c, o->e, -1, -1, -1};
  if (o->operation == ST) memcpy(from + 4, o->d, sizeof o->d);
  for (int i = 0; i < 8; i++)
    if (from[i] >= 0 && pending[from[i]]) {
      memset(pending, 0, room);
      waiting = 0;
    }
  if (!reads) return;
  for (int v = 0; v < o->count; v++)
    if (o->d[v] >= 0) pending[o->d[v]] = 1;
  waiting += o->bits / 8 * o->count;
  if (waiting > run.program->bytes_in_flight) run.program->bytes_in_flight = waiting;
}

// Return whether threads stand elsewhere than behind the instruction now.
static int step(const Instruction *o, int here) {
  const int *list = active;
  int n = active_count;
  if (o->guard >= 0) {
    const Lane *guard = slot(o->guard), wanted = !o->negated;
    n = 0;
    for (int k = 0; k < active_count; k++)
      if (guard[active[k]] == wanted) chosen[n++] = active[k];
    list = chosen;
  }
  run.program->thread_instructions += n;
  run.program->warp_instructions += active_warps;
  if (!n) return 0;
  if (run.counting && list[0] == 0) follow_loads(o, o->operation == LD && o->space != SHARED);
  switch (o->operation) {
  case BRA:
    for (int k = 0; k < active_count; k++) place[active[k]] = here + 1;
    EACH place[i] = (int)o->offset;
    return 1;
  case RET:
    for (int k = 0; k < active_count; k++) place[active[k]] = here + 1;
    EACH place[i] = GONE;
    return 1;
  case BAR:
    for (int k = 0; k < active_count; k++) place[active[k]] = here + 1;
    arrive(o, list, n);
    return 1;
  case NOTHING: return 0;
  case SETP: do_compare(o, list, n); return 0;
  case FSETP: do_float_comparison(o, list, n); return 0;
  case FCVT: do_float_conversion(o, list, n); return 0;
  case PACK: case UNPACK: do_pack(o, list, n); return 0;
  default:
    if (o->operation < LD) do_arithmetic(o, list, n);
    else step_memory_or_more(o, list, n);
    return 0;
  }
}

// What a block of ours takes is a few thousand steps; one that never ends takes more than this.
#ifndef MOST_STEPS
#define MOST_STEPS (1ll << 26)
#endif

static void run_block(void) {
  const Program *program = run.program;
  int64_t steps = 0;
  for (int i = 0; i < run.threads; i++) place[i] = groups[i] = 0;
  copy_count = 0;
  memset(run.shared_written, 0, run.shared_bytes / 8 + 8);
  memset(run.shared, 0xa5, run.shared_bytes);
  for (;;) {
    int here = choose();
    if (here >= WAITS) {
      release();
      if ((here = choose()) >= WAITS) return;
    }
    int other = next_other(here);
    for (;;) {
      if (here >= program->count) {
        for (int k = 0; k < active_count; k++) place[active[k]] = GONE;
        break;
      }
      run.at = program->code + here;
      if (++steps > MOST_STEPS) fail(active[0], "the block has not ended after %lld instructions", (long long)MOST_STEPS);
      if (step(run.at, here)) {
        // Where all went the same way, nothing is to be chosen.
        int to = place[active[0]];
        if (to >= other || to >= WAITS) break;
        int together = 1;
        for (int k = 1; k < active_count && together; k++) together = place[active[k]] == to;
        if (!together) break;
        here = to;
        continue;
      }
      if (++here >= other) {
        for (int k = 0; k < active_count; k++) place[active[k]] = here;
        break;
      }
    }
  }
}

static void begin_block(int64_t number) {
  Program *program = run.program;
  unsigned x = number % run.grid[0], y = number / run.grid[0] % run.grid[1], z = number / run.grid[0] / run.grid[1];
  run.block_number = number;
  run.epoch++;
  Lane values[3] = {x, y, z};
  for (int axis = 0; axis < 3; axis++)
    for (int i = 0; i < run.threads; i++) slot(program->special + 6 + axis)[i] = values[axis];
  memset(run.warp_epoch, 0, sizeof run.warp_epoch);
}

static void set_up_threads(void) {
  Program *program = run.program;
  for (int k = 0; k < program->constants; k++)
    for (int i = 0; i < run.threads; i++) slot(k)[i] = program->constant_values[k];
  for (int i = 0; i < run.threads; i++) {
    unsigned parts[3] = {i % run.block[0], i / run.block[0] % run.block[1], i / run.block[0] / run.block[1]};
    for (int axis = 0; axis < 3; axis++) {
      slot(program->special + axis)[i] = parts[axis];
      slot(program->special + 3 + axis)[i] = run.block[axis];
      slot(program->special + 9 + axis)[i] = run.grid[axis];
    }
    slot(program->special + 12)[i] = i % 32;
    slot(program->special + 13)[i] = i / 32;
  }
}

static int set_up_memory(const uint8_t *parameters, int counting) {
  run.allowed_count = 0;
  for (int at = 0; at + 8 <= run.program->parameter_bytes; at += 8) {
    uintptr_t value;
    memcpy(&value, parameters + at, 8);
    Allocation *found = ptx_allocation_of(value);
    // The end of an array is given too.
    for (int i = 0; found && i < run.allowed_count; i++)
      if (run.allowed[i] == found) found = 0;
    if (!found) continue;
    if (run.allowed_count == MOST_ALLOWED) return 0;
    ptx_prepare_allocation(found, run.launch, counting);
    run.allowed[run.allowed_count++] = found;
  }
  static Allocation none;
  if (!run.allowed_count) run.allowed[0] = &none;
  return 1;
}

Program *ptx_program(const char *name, const char *text, const Instruction *code, int count, const uint64_t *constants,
                     int constant_count, int registers, const int32_t (*parameters)[2], int parameter_count, int shared_bytes,
                     int most_threads) {
  Program *made = calloc(1, sizeof *made);
  snprintf(made->name, sizeof made->name, "%s", name);
  made->text = strdup(text);
  made->code = memcpy(malloc(count * sizeof *code), code, count * sizeof *code);
  made->count = count;
  made->constants = constant_count;
  made->constant_values = memcpy(malloc(constant_count * 8 + 8), constants, constant_count * 8);
  made->special = constant_count;
  made->slots = constant_count + SPECIALS + registers;
  made->parameter_count = parameter_count;
  made->parameters = memcpy(malloc(parameter_count * 8 + 8), parameters, parameter_count * 8);
  for (int i = 0; i < parameter_count; i++) made->parameter_bytes = parameters[i][0] + parameters[i][1];
  made->shared_bytes = shared_bytes;
  made->most_threads = most_threads;
  made->counts = calloc(count, sizeof *made->counts);
  return made;
}

void ptx_program_free(Program *program) {
  free((void *)program->text);
  free(program->code);
  free(program->constant_values);
  free(program->counts);
  free(program->parameters);
  free(program);
}

const char *ptx_limits(const Program *program, const unsigned grid[3], const unsigned block[3], unsigned dynamic_shared) {
  static char found[200];
  uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
  unsigned most = program->most_dynamic ? program->most_dynamic : SHARED_UNASKED - (unsigned)program->shared_bytes;
  if (!threads || threads > (unsigned)program->most_threads || block[0] > 1024 || block[1] > 1024 || block[2] > 64)
    snprintf(found, sizeof found, "a block of %u by %u by %u threads, of at most %d", block[0], block[1], block[2],
             program->most_threads);
  else if (!grid[0] || !grid[1] || !grid[2] || grid[0] > 0x7fffffff || grid[1] > 65535 || grid[2] > 65535)
    snprintf(found, sizeof found, "a grid of %u by %u by %u blocks, of at most 2147483647 by 65535 by 65535", grid[0],
             grid[1], grid[2]);
  else if (dynamic_shared > most)
    snprintf(found, sizeof found, "%u bytes of shared memory at the launch, of at most %u", dynamic_shared, most);
  else return 0;
  return found;
}

int ptx_launch(Program *program, const unsigned grid[3], const unsigned block[3], unsigned dynamic_shared,
               const uint8_t *parameters, int64_t first_block, int64_t last_block, int64_t step, int counting) {
  static uint64_t launches;
  run.program = program;
  run.at = program->code;
  run.threads = block[0] * block[1] * block[2];
  run.block_number = -1;
  memcpy(run.grid, grid, sizeof run.grid);
  memcpy(run.block, block, sizeof run.block);
  run.parameters = parameters;
  if (launches % 0x1fff == 0) ptx_forget_tags();
  run.launch = 1 + launches++ % 0x1fff;
  run.epoch = 0;
  run.counting = counting;
  run.shared_bytes = program->shared_bytes + dynamic_shared;
  run.slots = 0;
  run.shared = 0;
  message[0] = 0;
  if (setjmp(run.failure) == 0) {
    const char *limit = ptx_limits(program, grid, block, dynamic_shared);
    if (limit) fail(0, "%s", limit);
    if (!set_up_memory(parameters, counting)) fail(0, "more than %d arrays", MOST_ALLOWED);
    size_t lanes = (size_t)program->slots * run.threads;
    run.slots = aligned_alloc(64, (lanes * sizeof(Lane) + 63) / 64 * 64);
    memset(run.slots, 0x5a, lanes * sizeof(Lane));
    run.shared = malloc(run.shared_bytes + 16);
    run.shared_written = malloc(run.shared_bytes / 8 + 16);
    run.shared_writers = calloc(run.shared_bytes + 16, 8);
    run.shared_readers = calloc(run.shared_bytes + 16, 8);
    set_up_threads();
    for (int64_t number = first_block; number < last_block; number += step) {
      begin_block(number);
      if (counting) follow_loads(0, 0);
      run_block();
    }
  }
  if (run.shared) free(run.shared_written), free(run.shared_writers), free(run.shared_readers);
  free(run.slots);
  free(run.shared);
  return message[0] != 0;
}
