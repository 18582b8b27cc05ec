/* NVRTC: every program "compiles" to an image that the simulated driver loads without looking at
 * it. */
#include "library.h"

enum { OUT_OF_MEMORY = 1 };
#define IMAGE_BYTES 64

API int nvrtcVersion(int *major, int *minor) { return *major = CUDART_MAJOR, *minor = 0; }
API const char *nvrtcGetErrorString(int code) { return code ? "not supported by the simulated NVRTC" : "success"; }
API int nvrtcCreateProgram(Handle *out, const char *source, const char *name, int count, const char *const *headers,
                           const char *const *include_names) {
  (void)source, (void)name, (void)count, (void)headers, (void)include_names;
  return give_object(out, 64, OUT_OF_MEMORY);
}
API int nvrtcDestroyProgram(Handle *program) { return free(*program), *program = NULL, 0; }
ACCEPTS(nvrtcAddNameExpression)
ACCEPTS(nvrtcCompileProgram)
static int image_size(size_t *bytes) { return *bytes = IMAGE_BYTES, 0; }
static int image(char *out) { return memset(out, 0, IMAGE_BYTES), 0; }
API int nvrtcGetCUBINSize(Handle program, size_t *bytes) { return (void)program, image_size(bytes); }
API int nvrtcGetPTXSize(Handle program, size_t *bytes) { return (void)program, image_size(bytes); }
API int nvrtcGetCUBIN(Handle program, char *out) { return (void)program, image(out); }
API int nvrtcGetPTX(Handle program, char *out) { return (void)program, image(out); }
API int nvrtcGetProgramLogSize(Handle program, size_t *bytes) { return (void)program, *bytes = 1, 0; }
API int nvrtcGetProgramLog(Handle program, char *out) { return (void)program, *out = 0; }
API int nvrtcGetLoweredName(Handle program, const char *expression, const char **name) {
  (void)program;
  *name = expression;
  return 0;
}
