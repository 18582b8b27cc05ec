/* The stream-ordered allocator's default pool of each device (cudaMallocAsync and its counters).
 *
 * Like the real pool it takes the card's memory in 32 MiB steps, keeps it up to its release
 * threshold, and counts requested bytes, unrounded. Fragmentation is not modelled. */
#include <sys/mman.h>

#include "device.h"

#define POOL_STEP (32ull << 20)

/* cudaMemPoolAttr */
enum { POOL_RELEASE_THRESHOLD = 4, POOL_RESERVED, POOL_RESERVED_HIGH, POOL_USED, POOL_USED_HIGH };

static struct Pool { uint64_t used, used_high, reserved, reserved_high, threshold; } pools[SIM_MAX_DEVICES];

/* Brings the reserved bytes to `target`; the caller holds the space lock. */
static int reserve(int device, uint64_t target) {
  struct Pool *pool = &pools[device];
  if (target > pool->reserved && card_charge(device, target - pool->reserved)) return SIM_OUT_OF_MEMORY;
  if (target < pool->reserved) card_uncharge(device, pool->reserved - target);
  pool->reserved = target;
  if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
  return SIM_OK;
}

API int sim_pool_allocate(int device, size_t bytes, void **out) {
  SIM_CALL;
  int error = sim_allocate(device, bytes, RANGE_POOLED, out);
  if (error) return error;
  space_lock();
  struct Pool *pool = &pools[device];
  uint64_t used = pool->used + space_at((uintptr_t)*out).bytes;
  error = used > pool->reserved ? reserve(device, ROUND_UP(used, POOL_STEP)) : SIM_OK;
  if (!error) {
    pool->used = used;
    if (used > pool->used_high) pool->used_high = used;
  } else {
    struct Range range = space_take((uintptr_t)*out, RANGE_POOLED);
    munmap(*out, ROUND_UP(range.bytes, SIM_PAGE));
  }
  space_unlock();
  return error;
}

/* Answers SIM_NOT_FOUND for memory of another kind: cudaFreeAsync accepts cudaMalloc's as well. */
API int sim_pool_release(void *start) {
  SIM_CALL;
  space_lock();
  struct Range range = space_take((uintptr_t)start, RANGE_POOLED);
  if (range.kind == RANGE_POOLED) {
    struct Pool *pool = &pools[range.device];
    munmap(start, ROUND_UP(range.bytes, SIM_PAGE));
    pool->used -= range.bytes;
    uint64_t needed = ROUND_UP(pool->used, POOL_STEP);
    if (pool->reserved > pool->threshold && needed < pool->reserved)
      reserve(range.device, needed > pool->threshold ? needed : pool->threshold);
  }
  space_unlock();
  return range.kind == RANGE_POOLED ? SIM_OK : SIM_NOT_FOUND;
}

API int sim_pool_trim(int device, uint64_t keep) {
  SIM_CALL;
  space_lock();
  struct Pool *pool = &pools[device];
  uint64_t target = ROUND_UP(pool->used > keep ? pool->used : keep, POOL_STEP);
  if (target < pool->reserved) reserve(device, target);
  space_unlock();
  return SIM_OK;
}

API uint64_t sim_pool_get(int device, int attribute) {
  struct Pool *pool = &pools[device];
  switch (attribute) {
    case POOL_RELEASE_THRESHOLD: return pool->threshold;
    case POOL_RESERVED: return pool->reserved;
    case POOL_RESERVED_HIGH: return pool->reserved_high;
    case POOL_USED: return pool->used;
    case POOL_USED_HIGH: return pool->used_high;
    default: return 1; /* the three "reuse" switches, all on by default */
  }
}

API int sim_pool_set(int device, int attribute, uint64_t value) {
  struct Pool *pool = &pools[device];
  switch (attribute) {
    case POOL_RELEASE_THRESHOLD: pool->threshold = value; return SIM_OK;
    /* High-water marks can only be reset, and only to the present value. */
    case POOL_RESERVED_HIGH: pool->reserved_high = pool->reserved; return SIM_OK;
    case POOL_USED_HIGH: pool->used_high = pool->used; return SIM_OK;
    case POOL_RESERVED: case POOL_USED: return SIM_INVALID_VALUE;
    default: return SIM_OK;
  }
}
