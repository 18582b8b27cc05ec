/* Devices and their primary contexts: attributes, the current device of each thread, cuCtx*,
 * cuDevice*. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "device.h"

static char active[SIM_MAX_DEVICES], code_loaded[SIM_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int current_device;

API int sim_current_device(void) { return current_device; }
void sim_context_forget(void) {
  memset(active, 0, sizeof active);
  memset(code_loaded, 0, sizeof code_loaded);
}

API int sim_set_current_device(int device) {
  if (device < 0 || device >= sim_config()->device_count) return SIM_INVALID_DEVICE;
  current_device = device;
  return SIM_OK;
}

API int sim_context(int device) {
  SIM_CALL;
  const struct SimConfig *config = sim_config();
  if (device < 0 || device >= config->device_count) return SIM_INVALID_DEVICE;
  if (__atomic_load_n(&active[device], __ATOMIC_ACQUIRE)) return SIM_OK;
  int error = SIM_OK;
  pthread_mutex_lock(&lock);
  if (!active[device]) {
    error = card_charge(device, config->context_bytes);
    if (!error) __atomic_store_n(&active[device], 1, __ATOMIC_RELEASE);
    SIM_TRACE("context on device %d: %d", device, error);
  }
  pthread_mutex_unlock(&lock);
  return error;
}

/* The driver loads kernels at first use and keeps their code and scratch memory. */
void sim_context_load_code(void) {
  int device = current_device;
  if (__atomic_load_n(&code_loaded[device], __ATOMIC_RELAXED)) return;
  if (sim_context(device) || __atomic_exchange_n(&code_loaded[device], 1, __ATOMIC_RELAXED)) return;
  card_charge(device, sim_config()->code_bytes);
}

/* By compute capability, from the table of the CUDA C++ Programming Guide ("Technical
 * Specifications per Compute Capability"). */
struct Limits { int from, threads, blocks, shared; };
static const struct Limits *limits(void) {
  static const struct Limits known[] = {
    {120, 1536, 24, 101376}, {100, 2048, 32, 232448}, {90, 2048, 32, 232448}, {89, 1536, 24, 101376},
    {87, 1536, 16, 166912},  {86, 1536, 16, 101376},  {80, 2048, 32, 166912}, {75, 1024, 16, 65536},
    {0, 2048, 32, 98304},
  };
  const struct SimConfig *config = sim_config();
  const struct Limits *found = known;
  while (found->from > config->cc_major * 10 + config->cc_minor) found++;
  return found;
}

/* cudaDeviceAttr and CUdevice_attribute share their numbers. Values of an H100 SXM; unlisted ones
 * are 0, which for nearly all of them means "this feature is absent". */
API int sim_attribute(int attribute, int device) {
  switch (attribute) {
    case 1: return 1024;               /* max threads per block */
    case 2: case 3: return 1024;       /* max block dim x, y */
    case 4: return 64;                 /* max block dim z */
    case 5: return 2147483647;         /* max grid dim x */
    case 6: case 7: return 65535;      /* max grid dim y, z */
    case 8: return 49152;              /* shared memory per block */
    case 9: return 65536;              /* constant memory */
    case 10: return 32;                /* warp size */
    case 11: return 2147483647;        /* max pitch */
    case 12: return 65536;             /* registers per block */
    case 13: return 1980000;           /* clock rate, kHz */
    case 14: return 512;               /* texture alignment */
    case 15: return 1;                 /* copy overlaps kernels */
    case 16: return sim_config()->multiprocessors;
    case 19: return 1;                 /* can map host memory */
    case 31: return 1;                 /* concurrent kernels */
    case 32: return 1;                 /* ECC */
    case 33: return 1 + device;        /* PCI bus */
    case 36: return 2619000;           /* memory clock, kHz */
    case 37: return 5120;              /* memory bus width */
    case 38: return 52428800;          /* L2 bytes */
    case 39: return limits()->threads; /* per multiprocessor */
    case 40: return 3;                 /* copy engines */
    case 41: return 1;                 /* unified addressing */
    case 75: return sim_config()->cc_major;
    case 76: return sim_config()->cc_minor;
    case 78: return 1;                 /* stream priorities */
    case 79: case 80: return 1;        /* L1 caches globals, locals */
    case 81: return limits()->shared + 1024; /* shared memory per multiprocessor */
    case 82: return 65536;             /* registers per multiprocessor */
    case 83: return 1;                 /* managed memory */
    /* pageable access, concurrent managed, compute preemption */
    case 88: case 89: case 90: return 1;
    case 91: return 1;                 /* host pointers usable on the device */
    case 95: return 1;                 /* cooperative launch */
    case 97: return limits()->shared;  /* shared memory per block, opt in */
    case 99: return 1;                 /* host register */
    case 102: return 1;                /* virtual memory management: expandable segments need it */
    case 106: return limits()->blocks; /* per multiprocessor */
    case 111: return 1024;             /* reserved shared memory per block */
    case 115: return 1;                /* memory pools */
    case 120: return sim_config()->cc_major >= 9; /* cluster launch */
    default: return 0;
  }
}

static CUhandle context_handle(int device) { return (CUhandle)(uintptr_t)(0x5000 + device); }

static int valid(int device) { return device >= 0 && device < sim_config()->device_count; }

API CUresult cuInit(unsigned flags) {
  (void)flags;
  return sim_config()->device_count ? SIM_OK : SIM_NO_DEVICE;
}

API CUresult cuDriverGetVersion(int *version) {
  *version = 13000;
  return SIM_OK;
}

API CUresult cuDeviceGetCount(int *count) {
  *count = sim_config()->device_count;
  return SIM_OK;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  if (!valid(ordinal)) return SIM_INVALID_DEVICE;
  *device = ordinal;
  return SIM_OK;
}

API CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
  if (!valid(device)) return SIM_INVALID_DEVICE;
  snprintf(name, (size_t)length, "%s", sim_config()->name);
  return SIM_OK;
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  if (!valid(device)) return SIM_INVALID_DEVICE;
  *bytes = sim_config()->total_bytes;
  return SIM_OK;
}

API CUresult cuDeviceGetUuid_v2(unsigned char uuid[16], CUdevice device) {
  if (!valid(device)) return SIM_INVALID_DEVICE;
  memset(uuid, 0x51, 16);
  uuid[15] = (unsigned char)device;
  return SIM_OK;
}

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
  if (!valid(device)) return SIM_INVALID_DEVICE;
  *value = sim_attribute(attribute, device);
  return SIM_OK;
}

API CUresult cuDevicePrimaryCtxRetain(CUhandle *context, CUdevice device) {
  CUresult error = sim_context(device);
  if (!error) *context = context_handle(device);
  return error;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return valid(device) ? SIM_OK : SIM_INVALID_DEVICE; }

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *is_active) {
  if (!valid(device)) return SIM_INVALID_DEVICE;
  if (flags) *flags = 0;
  *is_active = active[device];
  return SIM_OK;
}

API CUresult cuCtxGetCurrent(CUhandle *context) {
  sim_config();
  *context = active[current_device] ? context_handle(current_device) : NULL;
  return SIM_OK;
}

API CUresult cuCtxSetCurrent(CUhandle context) {
  if (!context) return SIM_OK;
  return sim_set_current_device((int)((uintptr_t)context - 0x5000)) ? SIM_INVALID_CONTEXT : SIM_OK;
}

API CUresult cuCtxGetDevice(CUdevice *device) {
  *device = current_device;
  return SIM_OK;
}

API CUresult cuCtxSynchronize(void) { return SIM_OK; }

static const struct { int code; const char *name, *text; } errors[] = {
  {SIM_OK, "CUDA_SUCCESS", "no error"},
  {SIM_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
  {SIM_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
  {SIM_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
  {SIM_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
  {SIM_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
  {SIM_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
  {SIM_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
  {SIM_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
  {SIM_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
  {SIM_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported (by the simulated device)"},
};

API CUresult cuGetErrorString(CUresult code, const char **text) {
  *text = "unknown error";
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) *text = errors[i].text;
  return SIM_OK;
}

API CUresult cuGetErrorName(CUresult code, const char **name) {
  *name = "CUDA_ERROR_UNKNOWN";
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) *name = errors[i].name;
  return SIM_OK;
}
