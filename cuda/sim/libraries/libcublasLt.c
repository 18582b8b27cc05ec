/* cuBLASLt: descriptors and one made-up algorithm, which needs no workspace of its own. */
#include "library.h"

enum { ALLOCATION_FAILED = 3 };
#define DESCRIPTOR_BYTES 512

API size_t cublasLtGetVersion(void) { return 130100; }
API int cublasLtMatmulDescCreate(Handle *out, int compute, int scale) {
  return (void)compute, (void)scale, give_object(out, DESCRIPTOR_BYTES, ALLOCATION_FAILED);
}
API int cublasLtMatmulDescDestroy(Handle descriptor) { return free(descriptor), 0; }
API int cublasLtMatrixLayoutCreate(Handle *out, int type, uint64_t rows, uint64_t columns, int64_t stride) {
  return (void)type, (void)rows, (void)columns, (void)stride, give_object(out, DESCRIPTOR_BYTES, ALLOCATION_FAILED);
}
API int cublasLtMatrixLayoutDestroy(Handle layout) { return free(layout), 0; }
API int cublasLtMatmulPreferenceCreate(Handle *out) { return give_object(out, DESCRIPTOR_BYTES, ALLOCATION_FAILED); }
API int cublasLtMatmulPreferenceDestroy(Handle preference) { return free(preference), 0; }
ACCEPTS(cublasLtMatmulDescSetAttribute)
ACCEPTS(cublasLtMatrixLayoutSetAttribute)
ACCEPTS(cublasLtMatmulPreferenceSetAttribute)
COMPUTES(cublasLtMatmul)

struct HeuristicResult { /* cublasLtMatmulHeuristicResult_t */
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};
API int cublasLtMatmulAlgoGetHeuristic(Handle handle, Handle operation, Handle a, Handle b, Handle c, Handle d,
                                       Handle preference, int requested, struct HeuristicResult *results, int *count) {
  (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
  memset(results, 0, sizeof *results * (size_t)requested);
  *count = requested > 0;
  return 0;
}
