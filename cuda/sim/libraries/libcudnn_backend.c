/* cuDNN's graph API: descriptors keep the attributes they were given, and one engine supports every
 * graph. */
#include "libcudnn.h"

struct Attribute { int name, type; int64_t count; void *values; };
struct BackendDescriptor {
  int type, count;
  struct Attribute *attributes;
};

/* The attributes a caller reads without having written them. */
enum {
  HEURISTIC_RESULTS = 202,
  ENGINE_CONFIG_OF_RESULT = 300,
  CONFIG_WORKSPACE_SIZE = 303,
  CONFIG_SHARED_MEMORY = 304, /* 32 bits wide, the others 64 */
  WORKSPACE_SIZE = 402,
  ENGINE_GLOBAL_COUNT = 801,
};

static size_t attribute_bytes(int type) {
  switch (type) {
    case 2: case 26: return 1;                    /* boolean, char */
    /* handle, int64, double, pointer, descriptor */
    case 0: case 3: case 5: case 6: case 15: return 8;
    default: return 4;                            /* the enumerations, int32, float */
  }
}

API int cudnnBackendCreateDescriptor(int type, struct BackendDescriptor **out) {
  int error = give_object((Handle *)out, sizeof **out, CUDNN_ALLOCATION_FAILED);
  if (!error) (*out)->type = type;
  return error;
}
API int cudnnBackendDestroyDescriptor(struct BackendDescriptor *d) {
  for (int i = 0; i < d->count; i++) free(d->attributes[i].values);
  free(d->attributes);
  free(d);
  return CUDNN_OK;
}
API int cudnnBackendSetAttribute(struct BackendDescriptor *d, int name, int type, int64_t count, const void *values) {
  size_t bytes = (size_t)count * attribute_bytes(type);
  struct Attribute *grown = realloc(d->attributes, (size_t)(d->count + 1) * sizeof *grown);
  void *copy = malloc(bytes + 1);
  if (grown) d->attributes = grown;
  if (!grown || !copy) return free(copy), CUDNN_ALLOCATION_FAILED;
  if (bytes) memcpy(copy, values, bytes);
  grown[d->count++] = (struct Attribute){name, type, count, copy};
  return CUDNN_OK;
}
API int cudnnBackendFinalize(struct BackendDescriptor *d) { return (void)d, CUDNN_OK; }
COMPUTES(cudnnBackendExecute)

API int cudnnBackendGetAttribute(struct BackendDescriptor *d, int name, int type, int64_t room, int64_t *count,
                                 void *values) {
  int64_t ignored;
  if (!count) count = &ignored;
  *count = 0;
  for (int i = d->count; i-- > 0;) {
    struct Attribute *attribute = &d->attributes[i];
    if (attribute->name != name) continue;
    *count = attribute->count;
    int64_t fitting = room < attribute->count ? room : attribute->count;
    if (values) memcpy(values, attribute->values, (size_t)fitting * attribute_bytes(type));
    return CUDNN_OK;
  }
  int64_t answer = name == ENGINE_GLOBAL_COUNT ? 1 : name == CONFIG_SHARED_MEMORY ? 0 : cudnn_workspace_bytes();
  switch (name) {
    /* One engine, and one configuration of it; the caller's descriptor for it stays as it is. */
    case HEURISTIC_RESULTS: case ENGINE_CONFIG_OF_RESULT:
      *count = 1;
      return CUDNN_OK;
    case WORKSPACE_SIZE: case CONFIG_WORKSPACE_SIZE: case CONFIG_SHARED_MEMORY: case ENGINE_GLOBAL_COUNT:
      *count = 1;
      if (values && room > 0) memcpy(values, &answer, attribute_bytes(type));
      return CUDNN_OK;
    default: /* notes, knobs and the like: there are none */
      return CUDNN_OK;
  }
}
