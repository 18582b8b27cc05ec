/* Runtime calls about devices, versions and errors. */
#include <stdio.h>
#include <string.h>

#include "runtime.h"

#ifndef CUDART_MAJOR
#error "build.py defines CUDART_MAJOR as the wheel's CUDA major version"
#endif

static __thread cudaError_t last_error;

cudaError_t result(cudaError_t error) {
  if (error) last_error = error;
  return error;
}

API cudaError_t cudaGetLastError(void) {
  cudaError_t error = last_error;
  last_error = SIM_OK;
  return error;
}
API cudaError_t cudaPeekAtLastError(void) { return last_error; }

static const struct { int code; const char *name, *text; } errors[] = {
  {SIM_OK, "cudaSuccess", "no error"},
  {SIM_INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
  {SIM_OUT_OF_MEMORY, "cudaErrorMemoryAllocation", "out of memory"},
  {SIM_NO_DEVICE, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
  {SIM_INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
  {SIM_NOT_FOUND, "cudaErrorSymbolNotFound", "named symbol not found"},
  {SIM_NOT_READY, "cudaErrorNotReady", "device not ready"},
  {SIM_PEER_ACCESS_ALREADY_ENABLED, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
  {SIM_NOT_SUPPORTED, "cudaErrorNotSupported", "operation not supported (by the simulated device)"},
};

API const char *cudaGetErrorName(cudaError_t code) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) return errors[i].name;
  return "cudaErrorUnknown";
}
API const char *cudaGetErrorString(cudaError_t code) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) return errors[i].text;
  return "unknown error";
}

API cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_MAJOR * 1000;
  return SIM_OK;
}
API cudaError_t cudaDriverGetVersion(int *version) {
  *version = 13000;
  return SIM_OK;
}

static int valid(int device) { return device >= 0 && device < sim_config()->device_count; }

API cudaError_t cudaGetDeviceCount(int *count) {
  *count = sim_config()->device_count;
  return result(*count ? SIM_OK : SIM_NO_DEVICE);
}
API cudaError_t cudaGetDevice(int *device) {
  *device = sim_current_device();
  return SIM_OK;
}
API cudaError_t cudaSetDevice(int device) {
  cudaError_t error = sim_set_current_device(device);
  return result(error ? error : sim_context(device)); /* makes the context, since CUDA 12 */
}
API cudaError_t cudaDeviceSynchronize(void) { return SIM_OK; }
API cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device) {
  if (!valid(device)) return result(SIM_INVALID_DEVICE);
  *value = sim_attribute(attribute, device);
  return SIM_OK;
}
API cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
  if (!valid(device)) return result(SIM_INVALID_DEVICE);
  snprintf(text, (size_t)length, "0000:%02X:00.0", 1 + device);
  return SIM_OK;
}
API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return SIM_OK;
}
API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  if (!valid(device) || !valid(peer)) return result(SIM_INVALID_DEVICE);
  *can = device != peer;
  return SIM_OK;
}
API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  (void)flags;
  return result(valid(peer) ? SIM_OK : SIM_INVALID_DEVICE);
}

/* Where cudaDeviceProp keeps each field: {offset, attribute}. The head of the struct is the same in
 * all versions; CUDA 13 dropped a few deprecated fields, which moved the rest. */
struct PropertyField { unsigned short offset, attribute; };

static const struct PropertyField common_fields[] = {
  {304, 12}, {308, 10}, {320, 1}, {324, 2}, {328, 3}, {332, 4}, {336, 5}, {340, 6}, {344, 7}, {360, 75}, {364, 76},
};
#if CUDART_MAJOR >= 13
#define PROPERTY_BYTES 1008
static const struct PropertyField version_fields[] = {
  {384, 16}, {392, 19}, {560, 31}, {564, 32}, {568, 33}, {584, 40}, {588, 41}, {592, 37}, {596, 38}, {604, 39},
  {608, 78}, {632, 82}, {636, 83}, {652, 88}, {656, 89}, {660, 90}, {668, 95}, {688, 106}, {704, 99}, {720, 115},
  {748, 120},
};
static const struct PropertyField version_sizes[] = {{624, 81}, {672, 97}, {696, 111}};
#else
#define PROPERTY_BYTES 1032
static const struct PropertyField version_fields[] = {
  {388, 16}, {400, 19}, {576, 31}, {580, 32}, {584, 33}, {600, 40}, {604, 41}, {612, 37}, {616, 38}, {624, 39},
  {628, 78}, {648, 82}, {652, 83}, {672, 88}, {676, 89}, {680, 90}, {688, 95}, {712, 106}, {728, 99}, {744, 115},
  {772, 120},
};
static const struct PropertyField version_sizes[] = {{640, 81}, {696, 97}, {720, 111}};
#endif
static const struct PropertyField common_sizes[] = {{296, 8}, {312, 11}, {352, 9}, {368, 14}};

static void fill_ints(char *properties, const struct PropertyField *fields, size_t count, int device) {
  for (size_t i = 0; i < count; i++) *(int *)(properties + fields[i].offset) = sim_attribute(fields[i].attribute, device);
}
static void fill_sizes(char *properties, const struct PropertyField *fields, size_t count, int device) {
  for (size_t i = 0; i < count; i++)
    *(size_t *)(properties + fields[i].offset) = (size_t)sim_attribute(fields[i].attribute, device);
}
#define FILL(how, fields) how(properties, fields, sizeof fields / sizeof *fields, device)

static cudaError_t get_properties(char *properties, int device) {
  if (!valid(device)) return result(SIM_INVALID_DEVICE);
  memset(properties, 0, PROPERTY_BYTES);
  snprintf(properties, 256, "%s", sim_config()->name);
  memset(properties + 256, 0x51, 16); /* UUID, as cuDeviceGetUuid gives it */
  properties[271] = (char)device;
  *(size_t *)(properties + 288) = sim_config()->total_bytes;
  FILL(fill_ints, common_fields);
  FILL(fill_sizes, common_sizes);
  FILL(fill_ints, version_fields);
  FILL(fill_sizes, version_sizes);
  return SIM_OK;
}
API cudaError_t cudaGetDeviceProperties(void *properties, int device) { return get_properties(properties, device); }
/* CUDA 12's headers rename the call; the struct behind both names is the same there. */
API cudaError_t cudaGetDeviceProperties_v2(void *properties, int device) { return get_properties(properties, device); }

API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                                 unsigned long long flags, int *status) {
  (void)version, (void)flags;
  *function = sim_entry_point(name);
  if (status) *status = *function ? 0 : 1; /* cudaDriverEntryPointSymbolNotFound */
  return SIM_OK;
}
API cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, status);
}

API cudaError_t cudaProfilerStart(void) { return SIM_OK; }
API cudaError_t cudaProfilerStop(void) { return SIM_OK; }
