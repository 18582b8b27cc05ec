/* The driver's plain memory calls: cuMemAlloc, cuMemFree, cuMemGetInfo, pointer attributes. */
#include <string.h>

#include "device.h"

API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
  void *start = NULL;
  CUresult error = sim_allocate(sim_current_device(), bytes, RANGE_ALLOCATION, &start);
  if (!error) *out = (CUdeviceptr)start;
  return error;
}

API CUresult cuMemFree_v2(CUdeviceptr start) { return sim_release((void *)start); }

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  int device = sim_current_device();
  CUresult error = sim_context(device);
  if (error) return error;
  uint64_t used = card_used(device), total = sim_config()->total_bytes;
  *total_bytes = total;
  *free_bytes = total > used ? total - used : 0;
  return SIM_OK;
}

API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUhandle stream) {
  (void)stream;
  sim_copy((void *)to, (const void *)from, bytes);
  return SIM_OK;
}

API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUhandle stream) {
  (void)to, (void)value, (void)count, (void)stream;
  sim_kernel_ran(); /* the values are dropped, and old ones must no longer be believed */
  return SIM_OK;
}

static CUresult write_value(void) {
  sim_kernel_ran();
  return SIM_OK;
}
API CUresult cuStreamWriteValue32(CUhandle s, CUdeviceptr a, uint32_t v, unsigned f) {
  (void)s, (void)a, (void)v, (void)f;
  return write_value();
}
API CUresult cuStreamWriteValue32_v2(CUhandle s, CUdeviceptr a, uint32_t v, unsigned f) {
  (void)s, (void)a, (void)v, (void)f;
  return write_value();
}

API CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr pointer) {
  struct Range range = sim_find(pointer);
  if (range.kind == RANGE_NONE) return SIM_INVALID_VALUE;
  switch (attribute) {
    case 2: *(unsigned *)out = range.kind == RANGE_HOST ? 1 : 2; return SIM_OK; /* memory type */
    case 3: *(CUdeviceptr *)out = pointer; return SIM_OK;                       /* device pointer */
    case 6: *(int *)out = 0; return SIM_OK;                                     /* sync memops */
    case 7: *(unsigned long long *)out = range.start; return SIM_OK;            /* buffer id */
    case 8: *(unsigned *)out = 0; return SIM_OK;                                /* is managed */
    case 9: *(int *)out = range.device; return SIM_OK;                          /* device ordinal */
    case 11: *(CUdeviceptr *)out = range.start; return SIM_OK;                  /* range start */
    case 12: *(size_t *)out = range.bytes; return SIM_OK;                       /* range size */
    default: return sim_unsupported("cuPointerGetAttribute (this attribute)", SIM_NOT_SUPPORTED);
  }
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *bytes, CUdeviceptr pointer) {
  struct Range range = sim_find(pointer);
  if (range.kind == RANGE_NONE) return SIM_NOT_FOUND;
  if (start) *start = range.start;
  if (bytes) *bytes = range.bytes;
  return SIM_OK;
}
