/* Shared by the files of the simulated CUDA runtime, a thin translation onto the simulated
 * driver. */
#pragma once
#include "../driver/device.h"

typedef int cudaError_t;

/* Remembers a failure for cudaGetLastError and passes it on. */
cudaError_t result(cudaError_t error);
