/* Descriptors of the simulated cuDNN that more than one of its files reads. */
#pragma once
#include "library.h"

enum { CUDNN_OK = 0, CUDNN_ALLOCATION_FAILED = 4003, CUDNN_NOT_SUPPORTED = 3000 };
#define MAX_RANK 8

/* One shape for every kind of descriptor: each kind uses the fields it has. */
struct Descriptor {
  int data_type, rank, format;
  int dims[MAX_RANK], strides[MAX_RANK];
  /* recurrent networks */
  int cell, bias, directions, input, hidden, projection, layers;
  int64_t steps, batch;
};

size_t element_bytes(int data_type);
int64_t cudnn_workspace_bytes(void); /* by SIM_CUDA_CUDNN_WORKSPACE, or -1 */

/* A convolution or one of its gradients; of several in a graph, the first. */
enum { CONVOLUTION_NONE, CONVOLUTION_FORWARD, CONVOLUTION_DATA, CONVOLUTION_WEIGHT };
struct Convolution {
  int kind, data_type, rank;
  int64_t x_stride; /* of the channels */
  int64_t x[MAX_RANK], w[MAX_RANK], y[MAX_RANK];
};
int64_t convolution_workspace(const struct Convolution *c);
int64_t recurrent_workspace(const struct Descriptor *d, int64_t steps, int64_t batch, int64_t weight_bytes);
int64_t recurrent_reserve(const struct Descriptor *d, int64_t steps, int64_t batch);
