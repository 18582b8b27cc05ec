/* The simulated management library: answers of NVML from the shared card. */
#include <stdio.h>
#include <string.h>

#include "../driver/device.h"

enum { NVML_OK = 0, NVML_INVALID_ARGUMENT = 2, NVML_NOT_SUPPORTED = 3, NVML_NOT_FOUND = 6, NVML_INSUFFICIENT_SIZE = 7 };
#define MAX_PROCESSES 256
#define NO_INSTANCE (~0u) /* no MIG instance */

typedef int nvmlReturn_t;
/* device index + 1, so that none is NULL; of a MIG device also its number + 1, 8 bits higher */
typedef void *nvmlDevice_t;

static int index_of(nvmlDevice_t device) { return (int)((size_t)device & 0xff) - 1; }
/* 0: the whole card */
static int mig_of(nvmlDevice_t device) { return (int)((size_t)device >> 8); }
static int valid(nvmlDevice_t device) {
  return index_of(device) >= 0 && index_of(device) < sim_config()->device_count && mig_of(device) <= sim_config()->mig;
}

/* Cards of other kinds do not answer all calls. */
static int absent(const char *call) { return sim_is_listed(sim_config()->nvml_absent, call); }
#define REQUIRE(device) do { \
  if (!valid(device)) return NVML_INVALID_ARGUMENT; \
  if (absent(__func__)) return NVML_NOT_SUPPORTED; \
} while (0)
/* What only a whole card has. */
#define REQUIRE_CARD(device) do { REQUIRE(device); if (mig_of(device)) return NVML_NOT_SUPPORTED; } while (0)

static nvmlReturn_t text(char *out, unsigned length, const char *value) {
  if (strlen(value) + 1 > length) return NVML_INSUFFICIENT_SIZE;
  strcpy(out, value);
  return NVML_OK;
}
static nvmlReturn_t number(unsigned *out, unsigned value) {
  *out = value;
  return NVML_OK;
}

API nvmlReturn_t nvmlInit_v2(void) { return sim_config()->device_count ? NVML_OK : 9; /* driver not loaded */ }
API nvmlReturn_t nvmlInit(void) { return nvmlInit_v2(); }
API nvmlReturn_t nvmlInitWithFlags(unsigned flags) { return (void)flags, nvmlInit_v2(); }
API nvmlReturn_t nvmlShutdown(void) { return NVML_OK; }
API const char *nvmlErrorString(nvmlReturn_t code) {
  switch (code) {
    case NVML_OK: return "Success";
    case NVML_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_NOT_SUPPORTED: return "Not Supported (by the simulated device)";
    case NVML_NOT_FOUND: return "Not Found";
    case NVML_INSUFFICIENT_SIZE: return "Insufficient Size";
    case 9: return "Driver Not Loaded";
    default: return "Unknown Error";
  }
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned length) { return text(out, length, sim_config()->driver); }
API nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned length) {
  char version[80];
  snprintf(version, sizeof version, "13.%s", sim_config()->driver);
  return text(out, length, version);
}
API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = 13000, NVML_OK; }
API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return *version = 13000, NVML_OK; }

/* ---- finding a device ---- */

static void uuid_of(int index, char out[80]) { snprintf(out, 80, "GPU-51515151-5151-5151-5151-5151515151%02x", index & 0xff); }

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) { return number(count, (unsigned)sim_config()->device_count); }
API nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }
API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out) {
  if (index >= (unsigned)sim_config()->device_count) return NVML_INVALID_ARGUMENT;
  *out = (nvmlDevice_t)(size_t)(index + 1);
  return NVML_OK;
}
API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *out) {
  return nvmlDeviceGetHandleByIndex_v2(index, out);
}
API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *out) {
  unsigned domain, bus;
  if (sscanf(id, "%x:%x", &domain, &bus) != 2 || bus < 1) return NVML_NOT_FOUND;
  return nvmlDeviceGetHandleByIndex_v2(bus - 1, out) ? NVML_NOT_FOUND : NVML_OK;
}
API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out) {
  char candidate[80];
  for (unsigned i = 0; i < (unsigned)sim_config()->device_count; i++) {
    uuid_of((int)i, candidate);
    if (!strcmp(candidate, uuid)) return nvmlDeviceGetHandleByIndex_v2(i, out);
  }
  return NVML_NOT_FOUND;
}

/* ---- describing it ---- */

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *out) {
  REQUIRE(device);
  return number(out, (unsigned)index_of(device));
}
API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *out) { return nvmlDeviceGetIndex(device, out); }
API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned length) {
  REQUIRE(device);
  char name[128];
  snprintf(name, sizeof name, "%s%s", sim_config()->name, mig_of(device) ? " MIG" : "");
  return text(out, length, name);
}
API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned length) {
  REQUIRE(device);
  char uuid[80];
  uuid_of(index_of(device), uuid);
  if (mig_of(device)) { /* a MIG device has a UUID of its own */
    memcpy(uuid, "MIG-", 4);
    uuid[4] = (char)('0' + mig_of(device));
  }
  return text(out, length, uuid);
}
struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct PciInfo *out) {
  REQUIRE(device);
  memset(out, 0, sizeof *out);
  out->bus = (unsigned)(1 + index_of(device));
  out->device_id = 0x233010de; /* an H100 SXM5 80GB */
  snprintf(out->legacy_bus_id, sizeof out->legacy_bus_id, "0000:%02X:00.0", out->bus);
  snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
  return NVML_OK;
}
API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
  REQUIRE(device);
  *major = sim_config()->cc_major;
  *minor = sim_config()->cc_minor;
  return NVML_OK;
}
struct Utilization { unsigned gpu, memory; };
API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct Utilization *out) {
  REQUIRE_CARD(device);
  *out = (struct Utilization){0, 0}; /* nothing is ever computed */
  return NVML_OK;
}
API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *celsius) {
  REQUIRE_CARD(device);
  return (void)sensor, number(celsius, 30);
}
API nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, int *state) {
  REQUIRE_CARD(device);
  return *state = 0, NVML_OK;
}
API nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned *out) { REQUIRE_CARD(device); return number(out, 5); }
API nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned *out) { REQUIRE_CARD(device); return number(out, 5); }
API nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned *out) { REQUIRE_CARD(device); return number(out, 16); }
API nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned *out) { REQUIRE_CARD(device); return number(out, 16); }

/* ---- MIG: the card cut into equal parts ---- */

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
  REQUIRE_CARD(device);
  if (!sim_config()->mig) return NVML_NOT_SUPPORTED;
  *pending = 1;
  return number(current, 1);
}
API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count) {
  REQUIRE_CARD(device);
  return number(count, sim_config()->mig ? 7 : 0);
}
API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *out) {
  REQUIRE_CARD(device);
  if (index >= (unsigned)sim_config()->mig) return NVML_NOT_FOUND;
  *out = (nvmlDevice_t)((size_t)device | (size_t)(index + 1) << 8);
  return NVML_OK;
}
API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out) {
  REQUIRE(device);
  *out = (nvmlDevice_t)((size_t)device & 0xff);
  return mig_of(device) ? NVML_OK : NVML_INVALID_ARGUMENT;
}
API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig) {
  REQUIRE(device);
  return number(is_mig, mig_of(device) != 0);
}

/* ---- memory, whole and per process ---- */

struct Memory { unsigned long long total, free, used; };
API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct Memory *out) {
  REQUIRE(device);
  /* A process sees only one of several MIG devices: here always the first. */
  int mig = mig_of(device);
  out->total = mig ? sim_config()->total_bytes / (unsigned)sim_config()->mig : sim_config()->total_bytes;
  out->used = mig > 1 ? 0 : card_used(index_of(device));
  out->free = out->total > out->used ? out->total - out->used : 0;
  return NVML_OK;
}
struct Memory2 { unsigned version; unsigned long long total, reserved, free, used; };
API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct Memory2 *out) {
  REQUIRE(device);
  /* argument version mismatch, as the real one says */
  if (out->version != (sizeof *out | 2u << 24)) return 25;
  struct Memory memory;
  nvmlDeviceGetMemoryInfo(device, &memory);
  out->total = memory.total;
  out->reserved = 0;
  out->free = memory.free;
  out->used = memory.used;
  return NVML_OK;
}

struct Process1 { unsigned pid; unsigned long long used; };
struct Process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };

/* Callers with too little room learn the needed number; `out` may be NULL for that. */
static nvmlReturn_t processes(nvmlDevice_t device, unsigned *count, struct Process1 *out1, struct Process *out) {
  REQUIRE(device);
  if (absent("nvmlDeviceGetComputeRunningProcesses")) return NVML_NOT_SUPPORTED;
  if (mig_of(device) > 1) return number(count, 0);
  int pids[MAX_PROCESSES];
  uint64_t used[MAX_PROCESSES];
  unsigned found = (unsigned)card_processes(index_of(device), pids, used, MAX_PROCESSES);
  unsigned room = *count;
  *count = found;
  if (found > room || (found && !out1 && !out)) return NVML_INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < found; i++) {
    pids[i] += sim_config()->nvml_pid_offset;
    if (out1) out1[i] = (struct Process1){(unsigned)pids[i], used[i]};
    else out[i] = (struct Process){(unsigned)pids[i], used[i], NO_INSTANCE, NO_INSTANCE};
  }
  return NVML_OK;
}
API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t d, unsigned *n, struct Process1 *out) {
  return processes(d, n, out, NULL);
}
API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t d, unsigned *n, struct Process *out) {
  return processes(d, n, NULL, out);
}
API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *n, struct Process *out) {
  return processes(d, n, NULL, out);
}
/* Nothing draws on a simulated card. */
API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t d, unsigned *n, struct Process1 *out) {
  REQUIRE(d);
  return (void)out, number(n, 0);
}
API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t d, unsigned *n, struct Process *out) {
  REQUIRE(d);
  return (void)out, number(n, 0);
}
API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned *n, struct Process *out) {
  REQUIRE(d);
  return (void)out, number(n, 0);
}

/* ---- asked for by PyTorch and monitors, and truly absent here ---- */
#define ABSENT(name) \
  API nvmlReturn_t name(void) { return sim_unsupported(#name, NVML_NOT_SUPPORTED); }
ABSENT(nvmlDeviceGetNvLinkRemoteDeviceType)
ABSENT(nvmlDeviceGetNvLinkRemotePciInfo_v2)
ABSENT(nvmlDeviceGetProcessUtilization)
ABSENT(nvmlDeviceGetAccountingStats)
ABSENT(nvmlDeviceGetPowerUsage)
ABSENT(nvmlDeviceGetFanSpeed)
ABSENT(nvmlDeviceGetClockInfo)
ABSENT(nvmlDeviceGetTotalEnergyConsumption)
