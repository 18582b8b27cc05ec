/* The device address space: which ranges are allocated, reserved or mapped, and where the next one
 * goes.
 *
 * Ranges are real anonymous mappings without reserved memory: the host can read and write PyTorch's
 * addresses, and untouched ones cost nothing. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device.h"

#define SPACE_LOW 0x600000000000ull
#define SPACE_HIGH 0x700000000000ull
#define DEVICE_SPAN (1ull << 39)

static struct Range *ranges; /* by start; equal starts in insertion order */
static size_t range_count, range_capacity;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t allocation_number;

void space_lock(void) { pthread_mutex_lock(&lock); }
void space_unlock(void) { pthread_mutex_unlock(&lock); }

/* Index of the first range that starts above `address`. */
static size_t first_above(uintptr_t address) {
  size_t low = 0, high = range_count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (ranges[middle].start <= address) low = middle + 1;
    else high = middle;
  }
  return low;
}

void space_insert(struct Range range) {
  if (range_count == range_capacity) {
    range_capacity = range_capacity ? range_capacity * 2 : 256;
    ranges = realloc(ranges, range_capacity * sizeof *ranges);
    if (!ranges) abort();
  }
  size_t at = first_above(range.start);
  memmove(ranges + at + 1, ranges + at, (range_count - at) * sizeof *ranges);
  ranges[at] = range;
  range_count++;
}

static struct Range take_index(size_t at) {
  struct Range range = ranges[at];
  memmove(ranges + at, ranges + at + 1, (range_count - at - 1) * sizeof *ranges);
  range_count--;
  return range;
}

struct Range space_take(uintptr_t start, enum RangeKind kind) {
  for (size_t i = first_above(start); i-- > 0 && ranges[i].start == start;)
    if (ranges[i].kind == kind) return take_index(i);
  return (struct Range){0};
}

struct Range space_take_inside(uintptr_t start, size_t bytes, enum RangeKind kind) {
  size_t i = first_above(start);
  while (i > 0 && ranges[i - 1].start == start) i--;
  for (; i < range_count && ranges[i].start < start + bytes; i++)
    if (ranges[i].kind == kind && ranges[i].start + ranges[i].bytes <= start + bytes) return take_index(i);
  return (struct Range){0};
}

/* The innermost range with `address`; a bare reservation is none. */
struct Range space_at(uintptr_t address) {
  for (size_t i = first_above(address); i-- > 0;) {
    int inside = address < ranges[i].start + ranges[i].bytes;
    if (ranges[i].kind == RANGE_RESERVATION) {
      if (inside) break;
      continue;
    }
    if (inside) return ranges[i];
    /* A mapping that ends before the address may be in a reservation that covers it: no range. */
    break;
  }
  return (struct Range){0};
}

/* First gap of `bytes` in [low, high), backed by a mapping; 0 if there is none. */
uintptr_t space_place(uintptr_t low, uintptr_t high, size_t bytes, int protection) {
  uintptr_t candidate = low;
  for (size_t i = first_above(low - 1); i < range_count && ranges[i].start < high; i++) {
    if (ranges[i].kind == RANGE_MAPPING) continue;
    if (ranges[i].start >= candidate + bytes) break;
    uintptr_t end = ROUND_UP(ranges[i].start + ranges[i].bytes, SIM_PAGE);
    if (end > candidate) candidate = end;
  }
  if (candidate + bytes > high) return 0;
  void *got = mmap((void *)candidate, bytes, protection,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == MAP_FAILED) {
    fprintf(stderr, "simulated CUDA: cannot map %zu bytes at %#zx: %s\n", bytes, candidate, strerror(errno));
    return 0;
  }
  return candidate;
}

API struct Range sim_find(uintptr_t address) {
  space_lock();
  struct Range range = space_at(address);
  space_unlock();
  return range;
}

API int sim_is_device_address(const void *address) {
  uintptr_t value = (uintptr_t)address;
  return value >= SPACE_LOW && value < SPACE_HIGH;
}

/* At its place, if it has one that is free. Others lie above all places. */
static uintptr_t place_allocation(uintptr_t low, size_t bytes) {
  int protection = PROT_READ | PROT_WRITE;
  uintptr_t high = low + DEVICE_SPAN;
  if (places_exist()) {
    size_t offset = places_take(bytes);
    low += DEVICE_SPAN / 2;
    if (offset < DEVICE_SPAN / 2) {
      uintptr_t start = low - DEVICE_SPAN / 2 + offset;
      start = space_place(start, start + bytes, bytes, protection);
      if (start) return start;
    }
  }
  return space_place(low, high, bytes, protection);
}

/* Device memory of one kind. Pooled memory is charged by its pool, not here. */
API int sim_allocate(int device, size_t bytes, enum RangeKind kind, void **out) {
  SIM_CALL;
  const struct SimConfig *config = sim_config();
  int error = sim_context(device);
  if (error) return error;
  if (!bytes) return SIM_INVALID_VALUE;
  /* Large requests take whole 2 MiB pages of the card; small ones share a page, so only their own
   * bytes count. A pool counts requested bytes. */
  size_t charged = kind == RANGE_POOLED ? bytes : bytes >= (1u << 20) ? ROUND_UP(bytes, SIM_PAGE) : ROUND_UP(bytes, 512);
  space_lock();
  int denied = ++allocation_number == config->fail_alloc_n;
  if (denied || (kind == RANGE_ALLOCATION && card_charge(device, charged))) {
    space_unlock();
    SIM_TRACE("allocate device %d %zu: out of memory", device, bytes);
    return SIM_OUT_OF_MEMORY;
  }
  uintptr_t low = SPACE_LOW + ((uintptr_t)device << 40);
  uintptr_t start = place_allocation(low, ROUND_UP(charged, SIM_PAGE));
  if (start) space_insert((struct Range){.start = start, .bytes = charged, .device = device, .kind = kind});
  else if (kind == RANGE_ALLOCATION) card_uncharge(device, charged);
  space_unlock();
  if (!start) return SIM_OUT_OF_MEMORY;
  if (config->alloc_ms) usleep((useconds_t)config->alloc_ms * 1000);
  *out = (void *)start;
  SIM_TRACE("allocate device %d %zu -> %#zx", device, bytes, start);
  return SIM_OK;
}

/* Pinned host memory lives outside the device's addresses, but cudaPointerGetAttributes knows
 * it. */
API int sim_host_allocate(size_t bytes, void **out) {
  void *got = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return SIM_OUT_OF_MEMORY;
  space_lock();
  space_insert((struct Range){.start = (uintptr_t)got, .bytes = bytes ? bytes : 1, .kind = RANGE_HOST});
  space_unlock();
  *out = got;
  return SIM_OK;
}

/* Frees memory of sim_allocate or sim_host_allocate; pooled memory goes through
 * sim_pool_release. */
API int sim_release(void *start) {
  SIM_CALL;
  if (!start) return SIM_OK;
  space_lock();
  struct Range range = space_take((uintptr_t)start, RANGE_ALLOCATION);
  if (range.kind == RANGE_NONE) range = space_take((uintptr_t)start, RANGE_HOST);
  if (range.kind != RANGE_NONE)
    munmap(start, range.kind == RANGE_HOST ? range.bytes : ROUND_UP(range.bytes, SIM_PAGE));
  if (range.kind == RANGE_ALLOCATION) card_uncharge(range.device, range.bytes);
  space_unlock();
  SIM_TRACE("release %p %zu", start, range.bytes);
  return range.kind == RANGE_NONE ? SIM_INVALID_VALUE : SIM_OK;
}
