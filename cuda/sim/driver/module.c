/* Modules and kernels through the driver: everything loads, a launch computes nothing. */
#include <string.h>

#include "device.h"

/* Callers only return these to us, so one address serves for every module and function. */
static int placeholder[16];

static CUresult give(CUhandle *out) {
  *out = placeholder;
  return SIM_OK;
}
static CUresult launched(void) {
  sim_kernel_ran();
  return SIM_OK;
}

API CUresult cuModuleLoad(CUhandle *module, const char *file) { return (void)file, give(module); }
API CUresult cuModuleLoadData(CUhandle *module, const void *image) { return (void)image, give(module); }
API CUresult cuModuleLoadDataEx(CUhandle *module, const void *image, unsigned n, int *options, void **values) {
  return (void)image, (void)n, (void)options, (void)values, give(module);
}
API CUresult cuModuleUnload(CUhandle module) { return (void)module, SIM_OK; }
API CUresult cuModuleGetFunction(CUhandle *function, CUhandle module, const char *name) {
  return (void)module, (void)name, give(function);
}

API CUresult cuFuncGetAttribute(int *value, int attribute, CUhandle function) {
  (void)function;
  *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0; /* max threads per block; registers */
  return SIM_OK;
}
API CUresult cuFuncSetAttribute(CUhandle function, int attribute, int value) {
  return (void)function, (void)attribute, (void)value, SIM_OK;
}
API CUresult cuFuncSetCacheConfig(CUhandle function, int config) { return (void)function, (void)config, SIM_OK; }

API CUresult cuLaunchKernel(CUhandle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                            unsigned bz, unsigned shared, CUhandle stream, void **arguments, void **extra) {
  (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream;
  (void)arguments, (void)extra;
  return launched();
}
API CUresult cuLaunchCooperativeKernel(CUhandle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                       unsigned by, unsigned bz, unsigned shared, CUhandle stream, void **arguments) {
  (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream;
  (void)arguments;
  return launched();
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUhandle function, int threads, size_t shared) {
  (void)function, (void)threads, (void)shared;
  *blocks = 2;
  return SIM_OK;
}

API CUresult cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *sizes,
                                    const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                                    int interleave, int swizzle, int promotion, int fill) {
  (void)type, (void)rank, (void)address, (void)sizes, (void)strides, (void)box, (void)element_strides;
  (void)interleave, (void)swizzle, (void)promotion, (void)fill;
  memset(map, 0, 128); /* sizeof(CUtensorMap); only a kernel would read it */
  return SIM_OK;
}
