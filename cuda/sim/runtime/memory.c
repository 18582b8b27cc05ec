/* Runtime calls that allocate, free, copy and describe memory. */
#include <string.h>

#include "runtime.h"

API cudaError_t cudaMalloc(void **out, size_t bytes) {
  if (!bytes) {
    *out = NULL;
    return SIM_OK;
  }
  /* Through the exported driver call, as the real runtime does: a profiler may watch that
   * symbol. */
  extern CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
  CUdeviceptr start = 0;
  cudaError_t error = cuMemAlloc_v2(&start, bytes);
  *out = (void *)start;
  return result(error);
}

API cudaError_t cudaFree(void *start) {
  /* cudaFree(0): the usual way to warm up */
  if (!start) return result(sim_context(sim_current_device()));
  if (sim_pool_release(start) == SIM_OK) return SIM_OK;
  extern CUresult cuMemFree_v2(CUdeviceptr);
  return result(cuMemFree_v2((CUdeviceptr)start));
}

API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  extern CUresult cuMemGetInfo_v2(size_t *, size_t *);
  return result(cuMemGetInfo_v2(free_bytes, total_bytes));
}

/* ---- the stream-ordered allocator ---- */

API cudaError_t cudaMallocAsync(void **out, size_t bytes, CUhandle stream) {
  (void)stream;
  return result(sim_pool_allocate(sim_current_device(), bytes, out));
}
API cudaError_t cudaFreeAsync(void *start, CUhandle stream) { return (void)stream, cudaFree(start); }

#define POOL_HANDLE 0x7000
static int pool_device(CUhandle pool) { return (int)((uintptr_t)pool - POOL_HANDLE); }
static int pool_valid(CUhandle pool) {
  return pool_device(pool) >= 0 && pool_device(pool) < sim_config()->device_count;
}

API cudaError_t cudaDeviceGetDefaultMemPool(CUhandle *pool, int device) {
  *pool = (CUhandle)(uintptr_t)(POOL_HANDLE + device);
  return result(pool_valid(*pool) ? SIM_OK : SIM_INVALID_DEVICE);
}
/* Attributes 1 to 3 are ints, 4 to 8 are 64-bit. */
API cudaError_t cudaMemPoolGetAttribute(CUhandle pool, int attribute, void *value) {
  if (!pool_valid(pool)) return result(SIM_INVALID_VALUE);
  uint64_t answer = sim_pool_get(pool_device(pool), attribute);
  if (attribute <= 3) *(int *)value = (int)answer;
  else *(uint64_t *)value = answer;
  return SIM_OK;
}
API cudaError_t cudaMemPoolSetAttribute(CUhandle pool, int attribute, void *value) {
  if (!pool_valid(pool)) return result(SIM_INVALID_VALUE);
  return result(sim_pool_set(pool_device(pool), attribute, attribute <= 3 ? 0 : *(uint64_t *)value));
}
API cudaError_t cudaMemPoolSetAccess(CUhandle pool, const CUmemAccessDesc *access, size_t count) {
  (void)access, (void)count;
  return result(pool_valid(pool) ? SIM_OK : SIM_INVALID_VALUE);
}
API cudaError_t cudaMemPoolTrimTo(CUhandle pool, size_t keep) {
  if (!pool_valid(pool)) return result(SIM_INVALID_VALUE);
  return result(sim_pool_trim(pool_device(pool), keep));
}

/* ---- host memory ---- */

API cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags) {
  (void)flags;
  return result(sim_host_allocate(bytes, out));
}
API cudaError_t cudaMallocHost(void **out, size_t bytes) { return cudaHostAlloc(out, bytes, 0); }
API cudaError_t cudaFreeHost(void *start) { return result(sim_release(start)); }
API cudaError_t cudaHostRegister(void *start, size_t bytes, unsigned flags) {
  return (void)start, (void)bytes, (void)flags, SIM_OK;
}
API cudaError_t cudaHostUnregister(void *start) { return (void)start, SIM_OK; }
API cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned flags) {
  (void)flags;
  *out = host;
  return SIM_OK;
}

/* The part of cudaPointerAttributes that every version has; later ones only append reserved
 * words. */
struct PointerAttributes {
  int type, device; /* type: 0 unregistered, 1 host, 2 device */
  void *device_pointer, *host_pointer;
};

API cudaError_t cudaPointerGetAttributes(struct PointerAttributes *out, const void *pointer) {
  struct Range range = sim_find((uintptr_t)pointer);
  *out = (struct PointerAttributes){.type = 0, .device = -1};
  if (range.kind == RANGE_NONE) return SIM_OK;
  out->type = range.kind == RANGE_HOST ? 1 : 2;
  out->device = range.device;
  out->device_pointer = (void *)pointer;
  if (range.kind == RANGE_HOST) out->host_pointer = (void *)pointer;
  return SIM_OK;
}

/* ---- copies: all of them are done when the call returns ---- */

API cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
  (void)kind;
  sim_copy(to, from, bytes);
  return SIM_OK;
}
API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, CUhandle stream) {
  return (void)stream, cudaMemcpy(to, from, bytes, kind);
}
API cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                    CUhandle stream) {
  return (void)to_device, (void)from_device, (void)stream, cudaMemcpy(to, from, bytes, 3);
}
API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                  size_t height, int kind, CUhandle stream) {
  (void)kind, (void)stream;
  for (size_t row = 0; row < height; row++)
    sim_copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  return SIM_OK;
}
API cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset, int kind) {
  /* only kernels read symbols */
  return (void)symbol, (void)from, (void)bytes, (void)offset, (void)kind, SIM_OK;
}
API cudaError_t cudaMemset(void *to, int value, size_t bytes) {
  sim_set(to, value, bytes);
  return SIM_OK;
}
API cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, CUhandle stream) {
  return (void)stream, cudaMemset(to, value, bytes);
}

/* ---- sharing memory between processes is not simulated ---- */

API cudaError_t cudaIpcGetMemHandle(void *handle, void *start) {
  return (void)handle, (void)start, result(sim_unsupported("cudaIpcGetMemHandle", SIM_NOT_SUPPORTED));
}
API cudaError_t cudaIpcCloseMemHandle(void *start) {
  return (void)start, result(sim_unsupported("cudaIpcCloseMemHandle", SIM_NOT_SUPPORTED));
}
