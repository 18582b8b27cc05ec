/* cuDNN outside its graph API: handles, descriptors, and the older convolution and normalisation
 * calls. */
#include "libcudnn.h"

/* build.py defines CUDNN_VERSION as the one the wheel was built against: torch refuses any
 * other. */
API size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
API size_t cudnnGetCudartVersion(void) { return CUDART_MAJOR * 1000; }
API int cudnnGetProperty(int which, int *value) {
  *value = which == 0 ? CUDNN_VERSION / 10000 : which == 1 ? CUDNN_VERSION / 100 % 100 : CUDNN_VERSION % 100;
  return CUDNN_OK;
}
API const char *cudnnGetErrorString(int status) {
  return status ? "not supported by the simulated cuDNN" : "CUDNN_STATUS_SUCCESS";
}
API void cudnnGetLastErrorString(char *out, size_t length) {
  if (length) *out = 0;
}

size_t element_bytes(int data_type) {
  switch (data_type) {
    case 1: case 10: return 8;           /* double, int64 */
    case 2: case 9: return 2;            /* half, bfloat16 */
    case 3: case 8: case 11: return 1;   /* int8, uint8, boolean */
    case 12: case 13: return 1;          /* float8 */
    default: return 4;
  }
}

int64_t cudnn_workspace_bytes(void) {
  const char *text = getenv("SIM_CUDA_CUDNN_WORKSPACE");
  return text && *text ? strtoll(text, NULL, 0) : -1;
}

API int cudnnCreate(Handle *out) { return give_object(out, sizeof(Handle), CUDNN_ALLOCATION_FAILED); }
API int cudnnDestroy(Handle handle) { return free(handle), CUDNN_OK; }
API int cudnnSetStream(Handle *handle, Handle stream) { return *handle = stream, CUDNN_OK; }
API int cudnnGetStream(Handle *handle, Handle *stream) { return *stream = *handle, CUDNN_OK; }

#define DESCRIPTOR(kind)                                                                     \
  API int cudnnCreate##kind##Descriptor(Handle *out) {                                       \
    return give_object(out, sizeof(struct Descriptor), CUDNN_ALLOCATION_FAILED);             \
  }                                                                                          \
  API int cudnnDestroy##kind##Descriptor(Handle descriptor) { return free(descriptor), CUDNN_OK; }
DESCRIPTOR(Tensor)
DESCRIPTOR(Filter)
DESCRIPTOR(Convolution)
DESCRIPTOR(Activation)
DESCRIPTOR(Dropout)
DESCRIPTOR(Pooling)
DESCRIPTOR(RNN)
DESCRIPTOR(RNNData)
DESCRIPTOR(CTCLoss)
DESCRIPTOR(SpatialTransformer)

static void set_shape(struct Descriptor *d, int data_type, int rank, const int *dims, const int *strides) {
  d->data_type = data_type;
  d->rank = rank < MAX_RANK ? rank : MAX_RANK;
  memcpy(d->dims, dims, sizeof(int) * (size_t)d->rank);
  if (strides) memcpy(d->strides, strides, sizeof(int) * (size_t)d->rank);
}
API int cudnnSetTensorNdDescriptor(struct Descriptor *d, int data_type, int rank, const int *dims, const int *strides) {
  return set_shape(d, data_type, rank, dims, strides), CUDNN_OK;
}
API int cudnnSetFilterNdDescriptor(struct Descriptor *d, int data_type, int format, int rank, const int *dims) {
  d->format = format;
  return set_shape(d, data_type, rank, dims, NULL), CUDNN_OK;
}
API int cudnnGetTensorNdDescriptor(struct Descriptor *d, int room, int *data_type, int *rank, int *dims, int *strides) {
  size_t count = (size_t)(room < d->rank ? room : d->rank);
  *data_type = d->data_type;
  *rank = d->rank;
  memcpy(dims, d->dims, sizeof(int) * count);
  memcpy(strides, d->strides, sizeof(int) * count);
  return CUDNN_OK;
}
API int cudnnGetFilterNdDescriptor(struct Descriptor *d, int room, int *data_type, int *format, int *rank, int *dims) {
  *data_type = d->data_type;
  *format = d->format;
  *rank = d->rank;
  memcpy(dims, d->dims, sizeof(int) * (size_t)(room < d->rank ? room : d->rank));
  return CUDNN_OK;
}
ACCEPTS(cudnnSetActivationDescriptor)
ACCEPTS(cudnnSetConvolutionGroupCount)
ACCEPTS(cudnnSetConvolutionMathType)
ACCEPTS(cudnnSetConvolutionNdDescriptor)
ACCEPTS(cudnnSetDropoutDescriptor)
ACCEPTS(cudnnRestoreDropoutDescriptor)
ACCEPTS(cudnnSetPooling2dDescriptor)
API int cudnnDropoutGetStatesSize(Handle handle, size_t *bytes) { return (void)handle, *bytes = 3932160, CUDNN_OK; }

/* ---- batch normalisation ---- */

API int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(Handle h, int mode, int ops, Handle x, Handle z,
                                                                 Handle y, Handle params, Handle act, size_t *bytes) {
  (void)h, (void)mode, (void)ops, (void)x, (void)z, (void)y, (void)params, (void)act;
  return *bytes = 0, CUDNN_OK;
}
API int cudnnGetBatchNormalizationBackwardExWorkspaceSize(Handle h, int mode, int ops, Handle x, Handle y, Handle dy,
                                                          Handle dz, Handle dx, Handle params, Handle act,
                                                          size_t *bytes) {
  (void)h, (void)mode, (void)ops, (void)x, (void)y, (void)dy, (void)dz, (void)dx, (void)params, (void)act;
  return *bytes = 0, CUDNN_OK;
}
API int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(Handle h, int mode, int ops, Handle act, Handle x,
                                                             size_t *bytes) {
  (void)h, (void)mode, (void)ops, (void)act, (void)x;
  return *bytes = 0, CUDNN_OK;
}
COMPUTES(cudnnBatchNormalizationForwardTrainingEx)
COMPUTES(cudnnBatchNormalizationForwardInference)
COMPUTES(cudnnBatchNormalizationBackwardEx)

/* ---- convolutions through the older interface ---- */

struct Performance { /* cudnnConvolutionFwdAlgoPerf_t and its two siblings */
  int algorithm, status;
  float time;
  size_t memory;
  int determinism, math_type, reserved[3];
};
/* PyTorch uses these only where the graph API is turned off. */
static size_t older_workspace(void) {
  int64_t bytes = cudnn_workspace_bytes();
  return bytes < 0 ? 1 << 20 : (size_t)bytes;
}
static int one_algorithm(int *count, struct Performance *out) {
  memset(out, 0, sizeof *out);
  out->algorithm = 1;
  out->memory = older_workspace();
  return *count = 1, CUDNN_OK;
}
#define PICKS_ALGORITHM(direction)                                                                             \
  API int cudnnGetConvolution##direction##Algorithm_v7(Handle h, Handle a, Handle b, Handle c, Handle d,       \
                                                       int room, int *count, struct Performance *out) {        \
    (void)h, (void)a, (void)b, (void)c, (void)d, (void)room;                                                   \
    return one_algorithm(count, out);                                                                          \
  }                                                                                                            \
  API int cudnnGetConvolution##direction##WorkspaceSize(Handle h, Handle a, Handle b, Handle c, Handle d,      \
                                                        int algorithm, size_t *bytes) {                        \
    (void)h, (void)a, (void)b, (void)c, (void)d, (void)algorithm;                                              \
    return *bytes = older_workspace(), CUDNN_OK;                                                               \
  }                                                                                                            \
  API int cudnnFindConvolution##direction##AlgorithmEx(Handle h, Handle a, const void *pa, Handle b,           \
                                                       const void *pb, Handle c, Handle d, void *pd, int room, \
                                                       int *count, struct Performance *out, void *work,        \
                                                       size_t bytes) {                                         \
    (void)h, (void)a, (void)pa, (void)b, (void)pb, (void)c, (void)d, (void)pd, (void)room, (void)work;         \
    (void)bytes;                                                                                               \
    return one_algorithm(count, out);                                                                          \
  }
PICKS_ALGORITHM(Forward)
PICKS_ALGORITHM(BackwardData)
PICKS_ALGORITHM(BackwardFilter)
COMPUTES(cudnnConvolutionForward)
COMPUTES(cudnnConvolutionBackwardData)
COMPUTES(cudnnConvolutionBackwardFilter)
COMPUTES(cudnnConvolutionBiasActivationForward)
COMPUTES(cudnnPoolingForward)
