/* cuFile: reads and writes answer a byte count, so "refused" has to be negative there. */
#include "library.h"

enum { PLATFORM_NOT_SUPPORTED = 5007 };
API int64_t cuFileRead(void) { return -sim_unsupported("cuFileRead", PLATFORM_NOT_SUPPORTED); }
API int64_t cuFileWrite(void) { return -sim_unsupported("cuFileWrite", PLATFORM_NOT_SUPPORTED); }
