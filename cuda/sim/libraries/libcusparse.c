/* cuSPARSE: only its error text; every call is refused by the generated part. */
#include "library.h"

API const char *cusparseGetErrorString(int status) {
  return status ? "not supported by the simulated cuSPARSE" : "success";
}
