/* cuDNN's recurrent networks: weight layout and space sizes, which PyTorch turns into tensors. */
#include "libcudnn.h"

API int cudnnSetRNNDescriptor_v8(struct Descriptor *d, int algorithm, int cell, int bias, int direction, int input_mode,
                                 int data_type, int precision, int math_type, int input, int hidden, int projection,
                                 int layers, Handle dropout, unsigned flags) {
  (void)algorithm, (void)input_mode, (void)precision, (void)math_type, (void)dropout, (void)flags;
  d->cell = cell;
  d->bias = bias;
  d->directions = direction ? 2 : 1;
  d->data_type = data_type;
  d->input = input;
  d->hidden = hidden;
  d->projection = projection;
  d->layers = layers;
  return CUDNN_OK;
}

API int cudnnSetRNNDataDescriptor(struct Descriptor *d, int data_type, int layout, int steps, int batch, int width,
                                  const int *lengths, void *padding) {
  (void)layout, (void)width, (void)lengths, (void)padding;
  d->data_type = data_type;
  d->steps = steps;
  d->batch = batch;
  return CUDNN_OK;
}

/* Linear layers of one pseudo-layer: the first half multiplies the input, the second the hidden
 * state. */
static int linear_count(const struct Descriptor *d) { return d->cell == 2 ? 8 : d->cell == 3 ? 6 : 2; }
static int64_t output_width(const struct Descriptor *d) {
  return d->projection > 0 && d->projection < d->hidden ? d->projection : d->hidden;
}
static int64_t columns_of(const struct Descriptor *d, int pseudo_layer, int linear) {
  if (linear >= linear_count(d) / 2) return output_width(d);
  return pseudo_layer < d->directions ? d->input : output_width(d) * d->directions;
}
static int64_t weights_in(const struct Descriptor *d, int pseudo_layer) {
  int half = linear_count(d) / 2;
  return d->hidden * half * (columns_of(d, pseudo_layer, 0) + columns_of(d, pseudo_layer, half)) +
         (output_width(d) != d->hidden ? output_width(d) * d->hidden : 0);
}
static int pseudo_layers(const struct Descriptor *d) { return d->layers * d->directions; }

API int cudnnGetRNNWeightSpaceSize(Handle handle, const struct Descriptor *d, size_t *bytes) {
  (void)handle;
  int64_t elements = 0;
  for (int layer = 0; layer < pseudo_layers(d); layer++) elements += weights_in(d, layer);
  if (d->bias) elements += (int64_t)pseudo_layers(d) * linear_count(d) * d->hidden;
  *bytes = (size_t)elements * element_bytes(d->data_type);
  return CUDNN_OK;
}

static void describe(struct Descriptor *out, int data_type, int64_t rows, int64_t columns) {
  *out = (struct Descriptor){.data_type = data_type, .rank = 3, .dims = {1, (int)rows, (int)columns},
                             .strides = {(int)(rows * columns), (int)columns, 1}};
}

/* All weights first, layer by layer, then all biases: PyTorch checks that neighbours are
 * contiguous. */
API int cudnnGetRNNWeightParams(Handle handle, const struct Descriptor *d, int pseudo_layer, size_t space_bytes,
                                const char *space, int linear, struct Descriptor *matrix, const void **matrix_at,
                                struct Descriptor *bias, const void **bias_at) {
  (void)handle, (void)space_bytes;
  size_t element = element_bytes(d->data_type);
  int64_t before = 0, all = 0;
  for (int layer = 0; layer < pseudo_layers(d); layer++) {
    if (layer < pseudo_layer) before += weights_in(d, layer);
    all += weights_in(d, layer);
  }
  /* PyTorch asks for the matrix and for the bias in two calls, each with NULL for the other. */
  struct Descriptor unread;
  const void *nowhere;
  if (!matrix) matrix = &unread;
  if (!matrix_at) matrix_at = &nowhere;
  if (!bias) bias = &unread;
  if (!bias_at) bias_at = &nowhere;
  *matrix_at = *bias_at = NULL;
  if (linear < linear_count(d)) {
    for (int i = 0; i < linear; i++) before += d->hidden * columns_of(d, pseudo_layer, i);
    describe(matrix, d->data_type, d->hidden, columns_of(d, pseudo_layer, linear));
    *matrix_at = space + (size_t)before * element;
    describe(bias, d->data_type, d->hidden, 1);
    int64_t bias_index = (int64_t)pseudo_layer * linear_count(d) + linear;
    if (d->bias) *bias_at = space + (size_t)(all + bias_index * d->hidden) * element;
  } else if (output_width(d) != d->hidden) {
    before += weights_in(d, pseudo_layer) - output_width(d) * d->hidden;
    describe(matrix, d->data_type, output_width(d), d->hidden);
    *matrix_at = space + (size_t)before * element;
  }
  return CUDNN_OK;
}

API int cudnnGetRNNTempSpaceSizes(Handle handle, const struct Descriptor *d, int training, const struct Descriptor *x,
                                  size_t *work_bytes, size_t *reserve_bytes) {
  size_t weights;
  cudnnGetRNNWeightSpaceSize(handle, d, &weights);
  if (work_bytes) *work_bytes = (size_t)recurrent_workspace(d, x->steps, x->batch, (int64_t)weights);
  if (reserve_bytes) *reserve_bytes = training ? (size_t)recurrent_reserve(d, x->steps, x->batch) : 0;
  return CUDNN_OK;
}
COMPUTES(cudnnRNNForward)
COMPUTES(cudnnRNNBackwardData_v8)
COMPUTES(cudnnRNNBackwardWeights_v8)
