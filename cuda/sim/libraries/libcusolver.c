/* cuSOLVER: workspace sizes are written, factorisations and solves compute nothing. */
#include "library.h"

enum { ALLOCATION_FAILED = 2 };
#define WORKSPACE_ELEMENTS 65536 /* a guess; real sizes depend on the algorithm */

API int cusolverDnCreate(Handle *out) { return give_object(out, 64, ALLOCATION_FAILED); }
API int cusolverDnDestroy(Handle handle) { return free(handle), 0; }
API int cusolverDnCreateParams(Handle *out) { return give_object(out, 64, ALLOCATION_FAILED); }
API int cusolverDnDestroyParams(Handle params) { return free(params), 0; }
ACCEPTS(cusolverDnSetStream)

#define FOR_ALL_TYPES(make) make(S) make(D) make(C) make(Z)
#define LU_AND_CHOLESKY(type)                                                                                     \
  API int cusolverDn##type##getrf_bufferSize(Handle h, int m, int n, void *a, int stride, int *elements) {        \
    (void)h, (void)m, (void)n, (void)a, (void)stride;                                                             \
    return *elements = WORKSPACE_ELEMENTS, 0;                                                                     \
  }                                                                                                               \
  API int cusolverDn##type##potrf_bufferSize(Handle h, int part, int n, void *a, int stride, int *elements) {     \
    (void)h, (void)part, (void)n, (void)a, (void)stride;                                                          \
    return *elements = WORKSPACE_ELEMENTS, 0;                                                                     \
  }                                                                                                               \
  API int cusolverDn##type##geqrf_bufferSize(Handle h, int m, int n, void *a, int stride, int *elements) {        \
    (void)h, (void)m, (void)n, (void)a, (void)stride;                                                             \
    return *elements = WORKSPACE_ELEMENTS, 0;                                                                     \
  }                                                                                                               \
  COMPUTES(cusolverDn##type##getrf)                                                                               \
  COMPUTES(cusolverDn##type##getrs)                                                                               \
  COMPUTES(cusolverDn##type##potrf)                                                                               \
  COMPUTES(cusolverDn##type##potrs)                                                                               \
  COMPUTES(cusolverDn##type##potrfBatched)                                                                        \
  COMPUTES(cusolverDn##type##potrsBatched)                                                                        \
  COMPUTES(cusolverDn##type##geqrf)
FOR_ALL_TYPES(LU_AND_CHOLESKY)

/* The 64-bit interface asks for device and host bytes at once. */
API int cusolverDnXgeqrf_bufferSize(Handle h, Handle params, int64_t m, int64_t n, int type_a, const void *a,
                                    int64_t stride, int type_tau, const void *tau, int compute, size_t *device_bytes,
                                    size_t *host_bytes) {
  (void)h, (void)params, (void)m, (void)n, (void)type_a, (void)a, (void)stride, (void)type_tau, (void)tau;
  (void)compute;
  *device_bytes = WORKSPACE_ELEMENTS;
  return *host_bytes = 0, 0;
}
API int cusolverDnXpotrf_bufferSize(Handle h, Handle params, int part, int64_t n, int type_a, const void *a,
                                    int64_t stride, int compute, size_t *device_bytes, size_t *host_bytes) {
  (void)h, (void)params, (void)part, (void)n, (void)type_a, (void)a, (void)stride, (void)compute;
  *device_bytes = WORKSPACE_ELEMENTS;
  return *host_bytes = 0, 0;
}
COMPUTES(cusolverDnXgeqrf)
COMPUTES(cusolverDnXpotrf)
COMPUTES(cusolverDnXpotrs)
