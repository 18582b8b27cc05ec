/* What the hand-written parts of the CUDA libraries share. build.py writes the rest of each
 * library. */
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../driver/device.h"

typedef void *Handle;

/* A call whose only results lie in device memory: computing nothing is then all there is to
 * simulate. */
#define COMPUTES(name)  \
  API int name(void) {  \
    sim_kernel_ran();   \
    return 0;           \
  }
/* A call that changes only state nobody reads back. */
#define ACCEPTS(name) \
  API int name(void) { return 0; }

/* A zeroed object the caller only hands back; NULL when memory is out. */
static inline int give_object(Handle *out, size_t bytes, int out_of_memory) {
  *out = calloc(1, bytes);
  return *out ? 0 : out_of_memory;
}
