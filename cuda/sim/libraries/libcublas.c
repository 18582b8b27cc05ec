/* cuBLAS: handles, and products and solves that compute nothing. Factorisations with host results
 * write them. */
#include "library.h"

enum { ALLOCATION_FAILED = 3, NOT_SUPPORTED = 15 };
enum { POINTERS_ON_HOST = 0, POINTERS_ON_DEVICE = 1 };
struct Context { int math_mode, pointer_mode; };

API int cublasCreate_v2(Handle *out) { return give_object(out, sizeof(struct Context), ALLOCATION_FAILED); }
API int cublasDestroy_v2(Handle handle) { return free(handle), 0; }
API int cublasSetMathMode(struct Context *handle, int mode) { return handle->math_mode = mode, 0; }
API int cublasGetMathMode(struct Context *handle, int *mode) { return *mode = handle->math_mode, 0; }
API int cublasSetPointerMode_v2(struct Context *handle, int mode) { return handle->pointer_mode = mode, 0; }
API int cublasGetPointerMode_v2(struct Context *handle, int *mode) { return *mode = handle->pointer_mode, 0; }
ACCEPTS(cublasSetStream_v2)
ACCEPTS(cublasSetWorkspace_v2)

#define COMPUTES_REAL_AND_COMPLEX(rest) \
  COMPUTES(cublasS##rest) COMPUTES(cublasD##rest) COMPUTES(cublasC##rest) COMPUTES(cublasZ##rest)
COMPUTES_REAL_AND_COMPLEX(gemm_v2)
COMPUTES_REAL_AND_COMPLEX(gemmBatched)
COMPUTES_REAL_AND_COMPLEX(gemmStridedBatched)
COMPUTES_REAL_AND_COMPLEX(gemv_v2)
COMPUTES_REAL_AND_COMPLEX(trsm_v2)
COMPUTES_REAL_AND_COMPLEX(trsmBatched)
COMPUTES_REAL_AND_COMPLEX(getrfBatched)
COMPUTES(cublasSgemmEx)
COMPUTES(cublasGemmEx)
COMPUTES(cublasGemmStridedBatchedEx)

/* A dot product into host memory would have to be a number; into device memory it need not be. */
static int dot(struct Context *handle, const char *name) {
  if (handle->pointer_mode == POINTERS_ON_HOST) return sim_unsupported(name, NOT_SUPPORTED);
  sim_kernel_ran();
  return 0;
}
#define DOT(name) \
  API int name(struct Context *handle) { return dot(handle, #name); }
DOT(cublasSdot_v2)
DOT(cublasDdot_v2)
DOT(cublasCdotu_v2)
DOT(cublasCdotc_v2)
DOT(cublasZdotu_v2)
DOT(cublasZdotc_v2)
DOT(cublasDotEx)

/* These two report bad arguments through a host integer. */
#define FACTORISES(type)                                                                                      \
  API int cublas##type##geqrfBatched(Handle handle, int rows, int columns, void *const *matrices, int stride, \
                                     void *const *taus, int *info, int count) {                               \
    (void)handle, (void)rows, (void)columns, (void)matrices, (void)stride, (void)taus, (void)count;           \
    sim_kernel_ran();                                                                                         \
    return *info = 0;                                                                                         \
  }                                                                                                           \
  API int cublas##type##getrsBatched(Handle handle, int transpose, int n, int columns, void *const *matrices, \
                                     int stride, const int *pivots, void *const *right, int right_stride,     \
                                     int *info, int count) {                                                  \
    (void)handle, (void)transpose, (void)n, (void)columns, (void)matrices, (void)stride, (void)pivots;        \
    (void)right, (void)right_stride, (void)count;                                                             \
    sim_kernel_ran();                                                                                         \
    return *info = 0;                                                                                         \
  }
FACTORISES(S)
FACTORISES(D)
FACTORISES(C)
FACTORISES(Z)

API const char *cublasGetStatusString(int status) { return status ? "not supported by the simulated cuBLAS" : "success"; }
