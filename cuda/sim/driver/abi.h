/* The few CUDA types and constants that cross the driver and runtime ABI here, declared by
 * ourselves.
 *
 * NVIDIA's headers would need a download per CUDA version and tie a build to one. What PyTorch
 * passes is small and stable: opaque handles, four structs and a dozen error codes. Layouts were
 * compared with the headers of CUDA 12.6 and 13.5 (offsetof and sizeof, x86-64). */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

/* Driver (CUresult) and runtime (cudaError_t) agree on all of these numbers. */
enum {
  SIM_OK = 0,
  SIM_INVALID_VALUE = 1,
  SIM_OUT_OF_MEMORY = 2,
  SIM_NO_DEVICE = 100,
  SIM_INVALID_DEVICE = 101,
  SIM_INVALID_CONTEXT = 201,
  SIM_ILLEGAL_STATE = 401,
  SIM_NOT_FOUND = 500,
  SIM_NOT_READY = 600,
  SIM_PEER_ACCESS_ALREADY_ENABLED = 704,
  SIM_NOT_SUPPORTED = 801,
  SIM_UNKNOWN = 999,
};

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemHandle; /* CUmemGenericAllocationHandle */
typedef void *CUhandle;                 /* context, stream, event, module, function, graph, pool */

typedef struct { int type, id; } CUmemLocation;
enum { LOCATION_DEVICE = 1 };

typedef struct {
  int type, requested_handle_types;
  CUmemLocation location;
  void *win32_security;
  unsigned char compression, gpu_direct_rdma;
  unsigned short usage;
  unsigned char reserved[4];
} CUmemAllocationProp;

typedef struct { CUmemLocation location; int flags; } CUmemAccessDesc;

typedef struct { unsigned x, y, z; } Dim3;
