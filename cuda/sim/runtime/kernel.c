/* Kernel registration and launches of the runtime: accepted, counted, never run. */
#include <string.h>

#include "runtime.h"

static cudaError_t launched(void) {
  sim_kernel_ran();
  return SIM_OK;
}

/* libtorch_cuda registers some 480 fat binaries, 22,000 kernels and 13,000 variables at load. */
static void *fat_binary[4];
API void **__cudaRegisterFatBinary(void *image) { return (void)image, fat_binary; }
API void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
API void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
API char __cudaInitModule(void **handle) { return (void)handle, 1; }
API void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit,
                                void *a, void *b, void *c, void *d, int *warp) {
  (void)handle, (void)host, (void)device, (void)name, (void)limit, (void)a, (void)b, (void)c, (void)d, (void)warp;
}
API void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t bytes,
                           int constant, int global) {
  (void)handle, (void)host, (void)device, (void)name, (void)external, (void)bytes, (void)constant, (void)global;
}

static __thread struct { Dim3 grid, block; size_t shared; CUhandle stream; } launch;
API unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, CUhandle stream) {
  launch.grid = grid;
  launch.block = block;
  launch.shared = shared;
  launch.stream = stream;
  return 0;
}
API cudaError_t __cudaPopCallConfiguration(Dim3 *grid, Dim3 *block, size_t *shared, CUhandle *stream) {
  *grid = launch.grid;
  *block = launch.block;
  *shared = launch.shared;
  *stream = launch.stream;
  return SIM_OK;
}
API cudaError_t __cudaGetKernel(CUhandle *kernel, const void *function) {
  *kernel = (CUhandle)function;
  return SIM_OK;
}

API cudaError_t __cudaLaunchKernel(CUhandle k, Dim3 grid, Dim3 block, void **arguments, size_t shared, CUhandle s) {
  return (void)k, (void)grid, (void)block, (void)arguments, (void)shared, (void)s, launched();
}
API cudaError_t cudaLaunchKernel(const void *f, Dim3 grid, Dim3 block, void **arguments, size_t shared, CUhandle s) {
  return (void)f, (void)grid, (void)block, (void)arguments, (void)shared, (void)s, launched();
}
API cudaError_t cudaLaunchCooperativeKernel(const void *f, Dim3 grid, Dim3 block, void **arguments, size_t shared,
                                            CUhandle s) {
  return (void)f, (void)grid, (void)block, (void)arguments, (void)shared, (void)s, launched();
}
API cudaError_t cudaLaunchKernelExC(const void *config, const void *function, void **arguments) {
  return (void)config, (void)function, (void)arguments, launched();
}

struct FunctionAttributes { /* the head of cudaFuncAttributes */
  size_t shared, constant, local;
  int max_threads, registers, ptx_version, binary_version, cache_mode, max_dynamic_shared;
};
API cudaError_t cudaFuncGetAttributes(void *out, const void *function) {
  (void)function;
  struct FunctionAttributes *attributes = out;
  memset(out, 0, 144);
  attributes->max_threads = 1024;
  attributes->registers = 32;
  attributes->ptx_version = attributes->binary_version = sim_config()->cc_major * 10 + sim_config()->cc_minor;
  attributes->max_dynamic_shared = 49152;
  return SIM_OK;
}
API cudaError_t cudaFuncSetAttribute(const void *function, int attribute, int value) {
  return (void)function, (void)attribute, (void)value, SIM_OK;
}

static cudaError_t occupancy(int *blocks, int threads) {
  int fitting = 2048 / (threads > 0 ? threads : 1);
  *blocks = fitting > 32 ? 32 : fitting < 1 ? 1 : fitting;
  return SIM_OK;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *f, int threads, size_t shared) {
  return (void)f, (void)shared, occupancy(blocks, threads);
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *f, int threads,
                                                                       size_t shared, unsigned flags) {
  return (void)f, (void)shared, (void)flags, occupancy(blocks, threads);
}

/* torch copies to device symbols and hands their addresses to kernels; room enough for either. */
API cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
  static char room[1 << 16];
  (void)symbol;
  *address = room;
  return SIM_OK;
}
