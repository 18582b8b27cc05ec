/* How much work space cuDNN's first choice asks for: rules fitted to 520 single layers on an H200
 * (cuDNN 9.19, benches/dry_run/probe.py). What it does there: tensors in PyTorch's usual layout
 * are copied into channels-last ones, with channels padded to a multiple of 16 bytes, and gradients
 * of weights are summed in parts. */
#include "libcudnn.h"

#define MIB (1ll << 20)
/* Gradients of weights are summed in up to this many parts, or bytes. */
#define PARTS 14
#define PART_BYTES (8 * MIB)

static int64_t padded(int64_t channels, int64_t element) {
  int64_t unit = 16 / element;
  return (channels + unit - 1) / unit * unit;
}

static int64_t spatial(const int64_t *dims, int rank) {
  int64_t product = 1;
  for (int i = 2; i < rank; i++) product *= dims[i];
  return product;
}

/* Parts of a weight's gradient. */
static int64_t parts(int64_t weight_bytes, int64_t element) {
  if (element < 4 && weight_bytes > MIB) return 0;
  int64_t all = PARTS * weight_bytes * 4 / element;
  int64_t most = element < 4 ? 7 * MIB / 2 : PART_BYTES;
  return all < most ? all : most;
}

int64_t convolution_workspace(const struct Convolution *c) {
  int64_t element = (int64_t)element_bytes(c->data_type);
  int64_t batch = c->x[0], before = c->x[1], after = c->y[1];
  int64_t groups = c->w[1] > 0 ? before / c->w[1] : 1;
  int64_t in = spatial(c->x, c->rank), out = spatial(c->y, c->rank), kernel = spatial(c->w, c->rank);
  int64_t weight_bytes = after * c->w[1] * kernel * element;
  int is_last = c->x_stride == 1 && before > 1, is_weight = c->kind == CONVOLUTION_WEIGHT;
  if (groups > 1 && groups == before) return 0; /* depthwise */
  if (kernel == 1 && in == out && (is_last || in % 4 == 0)) { /* a matrix product */
    if (!is_weight) return 256;
    return is_last ? 4 * MIB : batch * weight_bytes;
  }
  int64_t x = batch * padded(before, element) * in * element;
  int64_t y = batch * padded(after, element) * out * element;
  int64_t w = padded(after, element) * padded(c->w[1], element) * kernel * element;
  if (groups > 1) w = weight_bytes;
  if (is_last) {
    int64_t copies = padded(before, element) == before ? 0 : x + w;
    if (copies && element == 4 && c->kind != CONVOLUTION_FORWARD) copies += y;
    return copies + (is_weight ? parts(weight_bytes, element) : 256);
  }
  if (before <= 4 && c->kind == CONVOLUTION_DATA) return 0; /* kernels of their own for pictures and sound */
  if (before <= 4 && (kernel == 9 || before == 1)) {
    if (element == 4) return c->kind == CONVOLUTION_FORWARD && kernel == 9 ? x + w : 0;
    if (c->kind == CONVOLUTION_FORWARD && kernel == 9) return 0;
  }
  /* A kernel of one point has the same weights in every layout. */
  int64_t copies = x + y + (kernel == 1 ? 0 : w);
  return copies + (is_weight ? parts(weight_bytes, element) : 256);
}

/* Work space of a recurrent network: two copies of the weights, and per step what grows slowly with
 * the width. Within 3 % for LSTM and GRU of 512 to 650 units in one direction, 25 % elsewhere. */
int64_t recurrent_workspace(const struct Descriptor *d, int64_t steps, int64_t batch, int64_t weight_bytes) {
  int64_t element = (int64_t)element_bytes(d->data_type);
  int64_t per_step = 1250 + 306ll * d->hidden / 100;
  if (per_step > 3600) per_step = 3600;
  return 2 * weight_bytes + 2 * MIB + d->directions * steps * batch * element * per_step +
         (int64_t)d->layers * d->directions * batch * 4 * (2ll * d->input + 9ll * d->hidden);
}

/* What the forward pass leaves for the backward pass; equal to the byte on an H200. */
int64_t recurrent_reserve(const struct Descriptor *d, int64_t steps, int64_t batch) {
  int64_t kept = d->cell == 2 ? 5 : d->cell == 3 ? 6 : 1; /* LSTM, GRU, others */
  int64_t projected = d->projection > 0 && d->projection < d->hidden ? d->projection : 0;
  int64_t rows = steps * batch * (int64_t)element_bytes(d->data_type);
  return rows * d->directions * (d->layers * kept * (d->hidden + projected) + (d->layers - 1) * d->hidden) + 256;
}
