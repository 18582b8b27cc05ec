/* NCCL with symmetric peers: every rank is taken to hold the same data, so a collective is a local
 * copy. */
#include "library.h"

enum { SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
/* What NCCL 2.28.9 takes of each of two H200s, joined by NVLink: kernels with the process's first
 * communicator, channels with each (fewer for one rank), and more with its first send and its first
 * receive. */
enum { KERNEL_BYTES = 354 << 20, LONE_BYTES = 204 << 20, CHANNEL_BYTES = 484 << 20, SEND_BYTES = 320 << 20, RECEIVE_BYTES = 384 << 20 };
struct Communicator { int ranks, rank, device; void *channels, *sends, *receives; };
struct UniqueId { char bytes[128]; };

API int ncclGetVersion(int *version) { return *version = NCCL_VERSION, 0; }
API const char *ncclGetErrorString(int code) { return code ? "not supported by the simulated NCCL" : "no error"; }
API const char *ncclGetLastError(Handle communicator) { return (void)communicator, ""; }
/* Ranks never talk to each other here, so the rendezvous id need not be unique. */
API int ncclGetUniqueId(struct UniqueId *id) { return memset(id, 7, sizeof *id), 0; }

/* A communicator's first use of something allocates for it. */
static int reserve(void **memory, int device, size_t bytes) {
  return *memory || !sim_allocate(device, bytes, RANGE_ALLOCATION, memory) ? 0 : SYSTEM_ERROR;
}

static int create(Handle *out, int ranks, int rank, int device) {
  static void *kernels[SIM_MAX_DEVICES];
  struct Communicator *communicator = calloc(1, sizeof *communicator);
  if (!communicator) return SYSTEM_ERROR;
  *communicator = (struct Communicator){.ranks = ranks, .rank = rank, .device = device};
  if (reserve(&kernels[device], device, KERNEL_BYTES) ||
      reserve(&communicator->channels, device, ranks > 1 ? CHANNEL_BYTES : LONE_BYTES)) {
    free(communicator);
    return SYSTEM_ERROR;
  }
  *out = communicator;
  return 0;
}

static int destroy(struct Communicator *communicator) {
  void *parts[] = {communicator->channels, communicator->sends, communicator->receives};
  for (int i = 0; i < 3; i++)
    if (parts[i]) sim_release(parts[i]);
  free(communicator);
  return 0;
}
API int ncclCommInitRank(Handle *out, int ranks, struct UniqueId id, int rank) {
  return (void)id, create(out, ranks, rank, sim_current_device());
}
API int ncclCommInitRankConfig(Handle *out, int ranks, struct UniqueId id, int rank, void *config) {
  return (void)id, (void)config, create(out, ranks, rank, sim_current_device());
}
API int ncclCommInitRankScalable(Handle *out, int ranks, int rank, int ids, void *id, void *config) {
  return (void)ids, (void)id, (void)config, create(out, ranks, rank, sim_current_device());
}
API int ncclCommInitAll(Handle *out, int count, const int *devices) {
  for (int i = 0; i < count; i++)
    if (create(out + i, count, i, devices ? devices[i] : i)) return SYSTEM_ERROR;
  return 0;
}
/* How many ranks share the colour is known only to the peers; the parent's size is the answer that
 * keeps buffer sizes an upper bound. */
API int ncclCommSplit(struct Communicator *parent, int color, int key, Handle *out, void *config) {
  (void)color, (void)key, (void)config;
  return create(out, parent->ranks, parent->rank, parent->device);
}
API int ncclCommCount(struct Communicator *communicator, int *count) { return *count = communicator->ranks, 0; }
API int ncclCommUserRank(struct Communicator *communicator, int *rank) { return *rank = communicator->rank, 0; }
API int ncclCommGetAsyncError(Handle communicator, int *error) { return (void)communicator, *error = 0; }
API int ncclCommRegister(Handle communicator, void *buffer, size_t bytes, Handle *out) {
  return (void)communicator, (void)bytes, *out = buffer, 0;
}
ACCEPTS(ncclCommDeregister)
ACCEPTS(ncclCommFinalize)
API int ncclCommDestroy(struct Communicator *communicator) { return destroy(communicator); }
API int ncclCommAbort(struct Communicator *communicator) { return destroy(communicator); }
ACCEPTS(ncclGroupStart)
ACCEPTS(ncclGroupEnd)

static size_t bytes_of(size_t count, int type) {
  switch (type) {
    case 0: case 1: case 10: case 11: return count; /* int8, uint8, float8 */
    case 2: case 3: case 7: return count * 4;       /* int32, uint32, float32 */
    case 4: case 5: case 8: return count * 8;       /* int64, uint64, float64 */
    default: return count * 2;                      /* float16, bfloat16 */
  }
}
static int copy(void *to, const void *from, size_t bytes) {
  if (to != from) sim_copy(to, from, bytes);
  return 0;
}

API int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, Handle c, Handle stream) {
  return (void)op, (void)c, (void)stream, copy(to, from, bytes_of(count, type));
}
API int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, Handle c, Handle stream) {
  return (void)op, (void)root, (void)c, (void)stream, to ? copy(to, from, bytes_of(count, type)) : 0;
}
API int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, Handle c, Handle stream) {
  return (void)root, (void)c, (void)stream, copy(to, from, bytes_of(count, type));
}
API int ncclBcast(void *buffer, size_t count, int type, int root, Handle c, Handle stream) {
  return (void)buffer, (void)count, (void)type, (void)root, (void)c, (void)stream, 0;
}
API int ncclAllGather(const void *from, void *to, size_t count, int type, struct Communicator *c, Handle stream) {
  (void)stream;
  size_t bytes = bytes_of(count, type);
  for (int rank = 0; rank < c->ranks; rank++) copy((char *)to + (size_t)rank * bytes, from, bytes);
  return 0;
}
API int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, struct Communicator *c,
                          Handle stream) {
  (void)op, (void)stream;
  size_t bytes = bytes_of(count, type);
  return copy(to, (const char *)from + (size_t)c->rank * bytes, bytes);
}
API int ncclSend(const void *from, size_t count, int type, int peer, struct Communicator *c, Handle stream) {
  (void)from, (void)count, (void)type, (void)peer, (void)stream;
  sim_kernel_ran();
  return c->ranks > 1 ? reserve(&c->sends, c->device, SEND_BYTES) : 0;
}
API int ncclRecv(void *to, size_t count, int type, int peer, struct Communicator *c, Handle stream) {
  (void)to, (void)count, (void)type, (void)peer, (void)stream;
  sim_kernel_ran();
  return c->ranks > 1 ? reserve(&c->receives, c->device, RECEIVE_BYTES) : 0;
}

API int ncclMemAlloc(void **out, size_t bytes) {
  return sim_allocate(sim_current_device(), bytes, RANGE_ALLOCATION, out) ? SYSTEM_ERROR : 0;
}
API int ncclMemFree(void *start) { return sim_release(start) ? INVALID_ARGUMENT : 0; }
