/* Streams, events and stream capture: all work is done at once, so only bookkeeping is left. */
#include <stdlib.h>
#include <time.h>

#include "runtime.h"

struct Stream {
  int device, priority, capturing;
  unsigned long long capture_id;
};
struct Event {
  double milliseconds;
  int busy; /* how many more queries answer "not ready" (SIM_CUDA_BUSY_QUERIES) */
};

/* Small handles stand for the default streams; they share one state. */
static struct Stream *stream_of(CUhandle handle) {
  static struct Stream standard;
  return (uintptr_t)handle < 4096 ? &standard : handle;
}

API cudaError_t cudaStreamCreateWithPriority(CUhandle *out, unsigned flags, int priority) {
  (void)flags;
  struct Stream *stream = calloc(1, sizeof *stream);
  if (!stream) return result(SIM_OUT_OF_MEMORY);
  stream->device = sim_current_device();
  stream->priority = priority;
  *out = stream;
  return SIM_OK;
}
API cudaError_t cudaStreamCreateWithFlags(CUhandle *out, unsigned flags) { return cudaStreamCreateWithPriority(out, flags, 0); }
API cudaError_t cudaStreamCreate(CUhandle *out) { return cudaStreamCreateWithPriority(out, 0, 0); }
API cudaError_t cudaStreamDestroy(CUhandle stream) {
  if ((uintptr_t)stream >= 4096) free(stream);
  return SIM_OK;
}
API cudaError_t cudaStreamSynchronize(CUhandle stream) { return (void)stream, SIM_OK; }
API cudaError_t cudaStreamQuery(CUhandle stream) { return (void)stream, SIM_OK; }
API cudaError_t cudaStreamWaitEvent(CUhandle stream, CUhandle event, unsigned flags) {
  return (void)stream, (void)event, (void)flags, SIM_OK;
}
API cudaError_t cudaStreamGetPriority(CUhandle stream, int *priority) {
  *priority = stream_of(stream)->priority;
  return SIM_OK;
}
API cudaError_t cudaStreamGetDevice(CUhandle stream, int *device) {
  *device = stream_of(stream)->device;
  return SIM_OK;
}
API cudaError_t cudaStreamAddCallback(CUhandle stream, void (*call)(CUhandle, cudaError_t, void *), void *argument,
                                      unsigned flags) {
  (void)flags;
  call(stream, SIM_OK, argument);
  return SIM_OK;
}
API cudaError_t cudaLaunchHostFunc(CUhandle stream, void (*call)(void *), void *argument) {
  (void)stream;
  call(argument);
  return SIM_OK;
}

/* ---- capture: a stream is "capturing" or not; captured work is ignored ---- */

API cudaError_t cudaStreamIsCapturing(CUhandle stream, int *status) {
  *status = stream_of(stream)->capturing;
  return SIM_OK;
}

static void capture_info(CUhandle handle, int *status, unsigned long long *id, CUhandle *graph) {
  struct Stream *stream = stream_of(handle);
  *status = stream->capturing;
  if (id) *id = stream->capture_id;
  if (graph) *graph = stream;
}
#if CUDART_MAJOR >= 13
API cudaError_t cudaStreamGetCaptureInfo(CUhandle stream, int *status, unsigned long long *id, CUhandle *graph,
                                         const void **dependencies, const void **edges, size_t *count) {
  capture_info(stream, status, id, graph);
  if (dependencies) *dependencies = NULL;
  if (edges) *edges = NULL;
  if (count) *count = 0;
  return SIM_OK;
}
#else
API cudaError_t cudaStreamGetCaptureInfo_v2(CUhandle stream, int *status, unsigned long long *id, CUhandle *graph,
                                            const void **dependencies, size_t *count) {
  capture_info(stream, status, id, graph);
  if (dependencies) *dependencies = NULL;
  if (count) *count = 0;
  return SIM_OK;
}
API cudaError_t cudaStreamGetCaptureInfo(CUhandle stream, int *status, unsigned long long *id) {
  capture_info(stream, status, id, NULL);
  return SIM_OK;
}
#endif

API cudaError_t cudaStreamBeginCapture(CUhandle handle, int mode) {
  (void)mode;
  static unsigned long long captures;
  struct Stream *stream = stream_of(handle);
  stream->capturing = 1;
  stream->capture_id = __atomic_add_fetch(&captures, 1, __ATOMIC_RELAXED);
  return SIM_OK;
}
static cudaError_t new_handle(CUhandle *out) {
  *out = calloc(1, 64);
  return result(*out ? SIM_OK : SIM_OUT_OF_MEMORY);
}
API cudaError_t cudaStreamEndCapture(CUhandle stream, CUhandle *graph) {
  stream_of(stream)->capturing = 0;
  return new_handle(graph);
}
API cudaError_t cudaThreadExchangeStreamCaptureMode(int *mode) {
  static __thread int current;
  int previous = current;
  current = *mode;
  *mode = previous;
  return SIM_OK;
}

API cudaError_t cudaGraphInstantiateWithFlags(CUhandle *out, CUhandle graph, unsigned long long flags) {
  return (void)graph, (void)flags, new_handle(out);
}
API cudaError_t cudaGraphInstantiate(CUhandle *out, CUhandle graph, unsigned long long flags) {
  return (void)graph, (void)flags, new_handle(out);
}
API cudaError_t cudaGraphLaunch(CUhandle graph, CUhandle stream) {
  (void)graph, (void)stream;
  sim_kernel_ran();
  return SIM_OK;
}
API cudaError_t cudaGraphDestroy(CUhandle graph) { return free(graph), SIM_OK; }
API cudaError_t cudaGraphExecDestroy(CUhandle graph) { return free(graph), SIM_OK; }
/* One node: torch warns about graphs with none. */
API cudaError_t cudaGraphGetNodes(CUhandle graph, CUhandle *nodes, size_t *count) {
  if (nodes) nodes[0] = graph;
  *count = 1;
  return SIM_OK;
}
API cudaError_t cudaGraphNodeGetDependencies(CUhandle node, CUhandle *dependencies, void *edges, size_t *count) {
  (void)node, (void)dependencies, (void)edges;
  *count = 0;
  return SIM_OK;
}
API cudaError_t cudaGraphDebugDotPrint(CUhandle graph, const char *path, unsigned flags) {
  return (void)graph, (void)path, (void)flags, result(sim_unsupported("cudaGraphDebugDotPrint", SIM_NOT_SUPPORTED));
}

/* ---- events ---- */

API cudaError_t cudaEventCreateWithFlags(CUhandle *out, unsigned flags) {
  (void)flags;
  *out = calloc(1, sizeof(struct Event));
  return result(*out ? SIM_OK : SIM_OUT_OF_MEMORY);
}
API cudaError_t cudaEventCreate(CUhandle *out) { return cudaEventCreateWithFlags(out, 0); }
API cudaError_t cudaEventDestroy(CUhandle event) { return free(event), SIM_OK; }
API cudaError_t cudaEventRecord(CUhandle handle, CUhandle stream) {
  (void)stream;
  struct Event *event = handle;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  event->milliseconds = (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
  event->busy = sim_config()->busy_queries;
  return SIM_OK;
}
API cudaError_t cudaEventRecordWithFlags(CUhandle event, CUhandle stream, unsigned flags) {
  return (void)flags, cudaEventRecord(event, stream);
}
API cudaError_t cudaEventQuery(CUhandle handle) {
  struct Event *event = handle;
  if (event->busy <= 0) return SIM_OK;
  event->busy--;
  return result(SIM_NOT_READY);
}
API cudaError_t cudaEventSynchronize(CUhandle handle) {
  ((struct Event *)handle)->busy = 0;
  return SIM_OK;
}
API cudaError_t cudaEventElapsedTime(float *milliseconds, CUhandle from, CUhandle to) {
  *milliseconds = (float)(((struct Event *)to)->milliseconds - ((struct Event *)from)->milliseconds);
  return SIM_OK;
}
