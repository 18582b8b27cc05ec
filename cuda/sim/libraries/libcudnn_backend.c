/* cuDNN's graph API: descriptors keep the attributes they were given. Two engines support every graph:
 * the first has the work space of cuDNN's first choice, the second none, for when memory is short. A
 * graph's convolution is handed on from descriptor to descriptor, as tensors do not outlive it. */
#include "libcudnn.h"

struct Attribute { int name, type; int64_t count; void *values; };
struct BackendDescriptor {
  int type, count;
  struct Attribute *attributes;
  struct Convolution convolution;
  int is_frugal; /* the second engine */
};

/* The attributes a caller reads without having written them. */
enum {
  HEURISTIC_GRAPH = 201,
  HEURISTIC_RESULTS = 202,
  ENGINE_CONFIG_OF_RESULT = 300,
  CONFIG_WORKSPACE_SIZE = 303,
  CONFIG_SHARED_MEMORY = 304, /* 32 bits wide, the others 64 */
  PLAN_CONFIG = 401,
  WORKSPACE_SIZE = 402,
  GRAPH_OPERATIONS = 801,
  ENGINE_GLOBAL_COUNT = 802,
  TENSOR_TYPE = 901,
  TENSOR_DIMENSIONS = 902,
  TENSOR_STRIDES = 903,
  ENGINE_GRAPH = 1300,
};

/* Kinds of descriptors, and where an operation keeps its tensors w, x and y. */
enum { ENGINE = 2, ENGINE_CONFIG = 3, HEURISTIC = 4, PLAN = 5, GRAPH = 15 };
static const struct { int type, kind, w, x, y; } convolutions[] = {
  {10, CONVOLUTION_FORWARD, 703, 704, 705},
  {11, CONVOLUTION_WEIGHT, 715, 716, 717},
  {12, CONVOLUTION_DATA, 709, 710, 711},
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
static const struct Attribute *attribute_of(const struct BackendDescriptor *d, int name) {
  for (int i = d ? d->count : 0; i-- > 0;)
    if (d->attributes[i].name == name) return &d->attributes[i];
  return NULL;
}

static struct BackendDescriptor *descriptor_of(const struct BackendDescriptor *d, int name, int64_t index) {
  const struct Attribute *attribute = attribute_of(d, name);
  return attribute && index < attribute->count ? ((struct BackendDescriptor **)attribute->values)[index] : NULL;
}

/* Returns the rank; 0 without such a tensor. */
static int dimensions_of(const struct BackendDescriptor *tensor, int name, int64_t *out) {
  const struct Attribute *attribute = attribute_of(tensor, name);
  if (!attribute || attribute->count > MAX_RANK) return 0;
  memcpy(out, attribute->values, sizeof(int64_t) * (size_t)attribute->count);
  return (int)attribute->count;
}

static void describe_convolution(struct BackendDescriptor *d) {
  for (size_t i = 0; i < sizeof convolutions / sizeof *convolutions; i++) {
    if (convolutions[i].type != d->type) continue;
    struct BackendDescriptor *x = descriptor_of(d, convolutions[i].x, 0);
    struct Convolution found = {.kind = convolutions[i].kind};
    int64_t strides[MAX_RANK];
    const struct Attribute *type = attribute_of(x, TENSOR_TYPE);
    found.rank = dimensions_of(x, TENSOR_DIMENSIONS, found.x);
    if (!type || found.rank < 3 || dimensions_of(x, TENSOR_STRIDES, strides) != found.rank ||
        dimensions_of(descriptor_of(d, convolutions[i].w, 0), TENSOR_DIMENSIONS, found.w) != found.rank ||
        dimensions_of(descriptor_of(d, convolutions[i].y, 0), TENSOR_DIMENSIONS, found.y) != found.rank)
      return;
    found.data_type = *(int *)type->values;
    found.x_stride = strides[1];
    d->convolution = found;
  }
}

static void inherit(struct BackendDescriptor *d, const struct BackendDescriptor *from) {
  if (from && from->convolution.kind) d->convolution = from->convolution;
  if (from) d->is_frugal = from->is_frugal;
}

API int cudnnBackendFinalize(struct BackendDescriptor *d) {
  const struct Attribute *operations = attribute_of(d, GRAPH_OPERATIONS);
  switch (d->type) {
    case GRAPH:
      for (int64_t i = 0; operations && i < operations->count && !d->convolution.kind; i++)
        inherit(d, descriptor_of(d, GRAPH_OPERATIONS, i));
      break;
    case HEURISTIC: inherit(d, descriptor_of(d, HEURISTIC_GRAPH, 0)); break;
    case ENGINE: inherit(d, descriptor_of(d, ENGINE_GRAPH, 0)); break;
    case ENGINE_CONFIG: inherit(d, descriptor_of(d, ENGINE_CONFIG_OF_RESULT, 0)); break;
    case PLAN: inherit(d, descriptor_of(d, PLAN_CONFIG, 0)); break;
    default: describe_convolution(d);
  }
  return CUDNN_OK;
}

static int64_t workspace_of(const struct BackendDescriptor *d) {
  int64_t asked = cudnn_workspace_bytes();
  if (asked >= 0) return asked;
  if (d->is_frugal) return 0;
  return d->convolution.kind ? convolution_workspace(&d->convolution) : 256;
}
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
  int64_t answer = name == ENGINE_GLOBAL_COUNT ? 1 : name == CONFIG_SHARED_MEMORY ? 0 : workspace_of(d);
  switch (name) {
    case HEURISTIC_RESULTS: /* two engines, one configuration of each */
      *count = values && room < 2 ? room : 2;
      for (int64_t i = 0; values && i < *count; i++) {
        struct BackendDescriptor *result = ((struct BackendDescriptor **)values)[i];
        if (!result) continue;
        inherit(result, d);
        result->is_frugal = i == 1;
      }
      return CUDNN_OK;
    case ENGINE_CONFIG_OF_RESULT:
      *count = 1;
      if (values && room > 0 && *(struct BackendDescriptor **)values) inherit(*(struct BackendDescriptor **)values, d);
      return CUDNN_OK;
    case WORKSPACE_SIZE: case CONFIG_WORKSPACE_SIZE: case CONFIG_SHARED_MEMORY: case ENGINE_GLOBAL_COUNT:
      *count = 1;
      if (values && room > 0) memcpy(values, &answer, attribute_bytes(type));
      return CUDNN_OK;
    default: /* notes, knobs and the like: there are none */
      return CUDNN_OK;
  }
}
