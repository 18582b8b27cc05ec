/* Looks up driver functions by name, as libcudart and PyTorch do. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include "device.h"

/* "cuMemAlloc" means the newest revision here, which carries a suffix in the symbol table. */
API void *sim_entry_point(const char *name) {
  static void *self;
  if (!self) {
    Dl_info own;
    if (!dladdr((void *)sim_entry_point, &own)) return NULL;
    self = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }
  char versioned[160];
  snprintf(versioned, sizeof versioned, "%s_v2", name);
  void *found = dlsym(self, versioned);
  if (!found) found = dlsym(self, name);
  if (!found && sim_config()->trace > 0) sim_trace("%s is not simulated (looked up by name)", name);
  return found;
}

API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
  (void)version, (void)flags;
  *function = sim_entry_point(name);
  if (status) *status = *function ? 0 : 1; /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
  return *function ? SIM_OK : SIM_NOT_FOUND;
}

/* Undocumented tables that a real libcudart asks for; ours does not. */
API CUresult cuGetExportTable(const void **table, const void *uuid) {
  (void)table, (void)uuid;
  return sim_unsupported("cuGetExportTable", SIM_NOT_FOUND);
}
