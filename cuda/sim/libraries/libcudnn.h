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
int64_t cudnn_workspace_bytes(void);
