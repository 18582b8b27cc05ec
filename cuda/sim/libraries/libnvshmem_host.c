/* NVSHMEM: not initialised and never will be; calls that answer pointers or counts say so in their
 * own way. */
#include "library.h"

API int nvshmemid_init_status(void) { return 0; /* NVSHMEM_STATUS_NOT_INITIALIZED */ }
API int nvshmem_team_n_pes(void) { return -1; }
API void *nvshmem_malloc(void) { return NULL; }
API void *nvshmem_ptr(void) { return NULL; }
API void *nvshmemx_mc_ptr(void) { return NULL; }
