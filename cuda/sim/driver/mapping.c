/* Virtual memory management (cuMemCreate, cuMemMap and others), which makes up expandable segments.
 *
 * Physical memory is a part of one sparse memory file per device, so a handle can be mapped at
 * several addresses and lives until its last mapping and its handle are gone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device.h"

#define RESERVATION_LOW 0x680000000000ull
#define RESERVATION_HIGH 0x6f0000000000ull
#define FILE_BYTES (1ll << 42)

struct Physical {
  int device, references; /* no references: the handle is dead */
  size_t bytes;
  uint64_t offset;
};

static struct Physical *physicals; /* handle = index + 1 */
static size_t physical_count, physical_capacity;
static int files[SIM_MAX_DEVICES];
static uint64_t file_ends[SIM_MAX_DEVICES];

static struct Physical *physical_of(CUmemHandle handle) {
  if (!handle || handle > physical_count || !physicals[handle - 1].references) return NULL;
  return &physicals[handle - 1];
}

static void drop_reference(CUmemHandle handle) {
  struct Physical *physical = physical_of(handle);
  if (!physical || --physical->references) return;
  fallocate(files[physical->device], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)physical->offset,
            (off_t)physical->bytes);
  card_uncharge(physical->device, physical->bytes);
}

API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, int option) {
  (void)prop, (void)option;
  *granularity = SIM_PAGE;
  return SIM_OK;
}

API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr wish,
                                 unsigned long long flags) {
  (void)alignment, (void)wish, (void)flags;
  sim_config();
  if (!bytes || bytes % SIM_PAGE) return SIM_INVALID_VALUE;
  space_lock();
  uintptr_t start = space_place(RESERVATION_LOW, RESERVATION_HIGH, bytes, PROT_NONE);
  if (start) space_insert((struct Range){.start = start, .bytes = bytes, .device = -1, .kind = RANGE_RESERVATION});
  space_unlock();
  if (!start) return SIM_OUT_OF_MEMORY;
  *out = start;
  SIM_TRACE("reserve addresses %zu -> %#zx", bytes, start);
  return SIM_OK;
}

API CUresult cuMemAddressFree(CUdeviceptr start, size_t bytes) {
  space_lock();
  struct Range range = space_take(start, RANGE_RESERVATION);
  if (range.kind == RANGE_RESERVATION) munmap((void *)range.start, range.bytes);
  space_unlock();
  return range.kind == RANGE_RESERVATION && range.bytes == bytes ? SIM_OK : SIM_INVALID_VALUE;
}

API CUresult cuMemCreate(CUmemHandle *out, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags) {
  SIM_CALL;
  (void)flags;
  int device = prop->location.id;
  if (prop->location.type != LOCATION_DEVICE || !bytes || bytes % SIM_PAGE) return SIM_INVALID_VALUE;
  CUresult error = sim_context(device);
  if (error) return error;
  space_lock();
  if (!files[device]) {
    files[device] = memfd_create("simulated-cuda", MFD_CLOEXEC);
    if (files[device] < 0 || ftruncate(files[device], FILE_BYTES)) perror("simulated CUDA: memory file");
  }
  error = card_charge(device, bytes);
  if (!error) {
    if (physical_count == physical_capacity) {
      physical_capacity = physical_capacity ? physical_capacity * 2 : 64;
      physicals = realloc(physicals, physical_capacity * sizeof *physicals);
      if (!physicals) abort();
    }
    physicals[physical_count] =
        (struct Physical){.device = device, .references = 1, .bytes = bytes, .offset = file_ends[device]};
    file_ends[device] += bytes;
    *out = ++physical_count;
  }
  space_unlock();
  SIM_TRACE("create physical device %d %zu: %d", device, bytes, error);
  return error;
}

API CUresult cuMemRelease(CUmemHandle handle) {
  SIM_CALL;
  space_lock();
  CUresult error = physical_of(handle) ? SIM_OK : SIM_INVALID_VALUE;
  drop_reference(handle);
  space_unlock();
  return error;
}

API CUresult cuMemMap(CUdeviceptr start, size_t bytes, size_t offset, CUmemHandle handle, unsigned long long flags) {
  (void)flags;
  CUresult error = SIM_INVALID_VALUE;
  space_lock();
  struct Physical *physical = physical_of(handle);
  if (physical && offset + bytes <= physical->bytes) {
    void *got = mmap((void *)start, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
                     files[physical->device], (off_t)(physical->offset + offset));
    error = got == MAP_FAILED ? SIM_OUT_OF_MEMORY : SIM_OK;
    if (!error) {
      physical->references++;
      space_insert((struct Range){.start = start, .bytes = bytes, .device = physical->device,
                                  .kind = RANGE_MAPPING, .physical = handle});
    }
  }
  space_unlock();
  SIM_TRACE("map %#llx %zu: %d", start, bytes, error);
  return error;
}

API CUresult cuMemUnmap(CUdeviceptr start, size_t bytes) {
  SIM_CALL;
  int unmapped = 0;
  space_lock();
  for (struct Range range; (range = space_take_inside(start, bytes, RANGE_MAPPING)).kind == RANGE_MAPPING;) {
    mmap((void *)range.start, range.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    drop_reference(range.physical);
    unmapped++;
  }
  space_unlock();
  SIM_TRACE("unmap %#llx %zu: %d mappings", start, bytes, unmapped);
  return unmapped ? SIM_OK : SIM_INVALID_VALUE;
}

API CUresult cuMemSetAccess(CUdeviceptr start, size_t bytes, const CUmemAccessDesc *access, size_t count) {
  (void)access, (void)count;
  return mprotect((void *)start, bytes, PROT_READ | PROT_WRITE) ? SIM_INVALID_VALUE : SIM_OK;
}

API CUresult cuMemRetainAllocationHandle(CUmemHandle *out, void *address) {
  space_lock();
  struct Range range = space_at((uintptr_t)address);
  CUresult error = range.kind == RANGE_MAPPING ? SIM_OK : SIM_INVALID_VALUE;
  if (!error) {
    physicals[range.physical - 1].references++;
    *out = range.physical;
  }
  space_unlock();
  return error;
}

API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out, CUmemHandle handle) {
  space_lock();
  struct Physical *physical = physical_of(handle);
  if (physical) {
    memset(out, 0, sizeof *out);
    out->type = 1; /* pinned, the only type there is */
    out->location = (CUmemLocation){LOCATION_DEVICE, physical->device};
  }
  space_unlock();
  return physical ? SIM_OK : SIM_INVALID_VALUE;
}

/* Memory is not shared between processes here; PyTorch falls back or reports it. */
API CUresult cuMemExportToShareableHandle(void *out, CUmemHandle handle, int type, unsigned long long flags) {
  (void)out, (void)handle, (void)type, (void)flags;
  return sim_unsupported("cuMemExportToShareableHandle", SIM_NOT_SUPPORTED);
}
API CUresult cuMemImportFromShareableHandle(CUmemHandle *out, void *handle, int type) {
  (void)out, (void)handle, (void)type;
  return sim_unsupported("cuMemImportFromShareableHandle", SIM_NOT_SUPPORTED);
}
