/* Shared by the files of runtime/: the driver's entry points and the last error. */
#ifndef EMULATOR_CUDART_H
#define EMULATOR_CUDART_H

#include "driver/abi.h"

#define API __attribute__((visibility("default")))

typedef int cudaError_t; /* the same numbers as CUresult's */
enum { RUNTIME_ERROR_INVALID_CONFIGURATION = 9 };
typedef struct {
    unsigned x, y, z;
} dim3;

/* name, arguments */
#define DRIVER_CALLS(X)                                                                                                \
    X(cuInit, (unsigned))                                                                                              \
    X(cuCtxSetCurrent, (CUcontext))                                                                                    \
    X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                               \
    X(cuGetErrorName, (CUresult, const char **))                                                                       \
    X(cuGetErrorString, (CUresult, const char **))                                                                     \
    X(cuDeviceGetName, (char *, int, CUdevice))                                                                        \
    X(cuDeviceGetAttribute, (int *, int, CUdevice))                                                                    \
    X(cuDeviceTotalMem_v2, (size_t *, CUdevice))                                                                       \
    X(cuCtxSynchronize, (void))                                                                                        \
    X(cuModuleLoadData, (CUmodule *, const void *))                                                                    \
    X(cuModuleUnload, (CUmodule))                                                                                      \
    X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                                     \
    X(cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *))                                         \
    X(cuFuncGetAttribute, (int *, int, CUfunction))                                                                    \
    X(cuFuncSetAttribute, (CUfunction, int, int))                                                                      \
    X(cuFuncGetName, (const char **, CUfunction))                                                                      \
    X(cuFuncGetParamInfo, (CUfunction, size_t, size_t *, size_t *))                                                    \
    X(cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **))                                        \
    X(cuLaunchHostFunc, (CUstream, void (*)(void *), void *))                                                          \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *, CUfunction, int, size_t))                                   \
    X(cuOccupancyMaxActiveClusters, (int *, CUfunction, const CUlaunchConfig *))                                       \
    X(cuOccupancyMaxPotentialClusterSize, (int *, CUfunction, const CUlaunchConfig *))                                 \
    X(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                          \
    X(cuMemFree_v2, (CUdeviceptr))                                                                                     \
    X(cuMemAllocPitch_v2, (CUdeviceptr *, size_t *, size_t, size_t, unsigned))                                         \
    X(cuMemGetInfo_v2, (size_t *, size_t *))                                                                           \
    X(cuMemGetAddressRange_v2, (CUdeviceptr *, size_t *, CUdeviceptr))                                                 \
    X(cuMemcpy, (CUdeviceptr, CUdeviceptr, size_t))                                                                    \
    X(cuMemsetD8_v2, (CUdeviceptr, uint8_t, size_t))                                                                   \
    X(cuMemsetD16_v2, (CUdeviceptr, uint16_t, size_t))                                                                 \
    X(cuMemsetD32_v2, (CUdeviceptr, uint32_t, size_t))                                                                 \
    X(cuStreamCreateWithPriority, (CUstream *, unsigned, int))                                                         \
    X(cuStreamDestroy_v2, (CUstream))                                                                                  \
    X(cuStreamGetFlags, (CUstream, unsigned *))                                                                        \
    X(cuStreamGetPriority, (CUstream, int *))                                                                          \
    X(cuEventCreate, (CUevent *, unsigned))                                                                            \
    X(cuEventDestroy_v2, (CUevent))                                                                                    \
    X(cuEventRecord, (CUevent, CUstream))                                                                              \
    X(cuEventElapsedTime_v2, (float *, CUevent, CUevent))                                                              \
    X(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *))                                              \
    X(emulator_configure, (const char *, const char *))

typedef struct {
#define X(name, arguments) int(*name) arguments;
    DRIVER_CALLS(X)
#undef X
} driver_calls;

/* The driver, opened and set up at the first call. */
const driver_calls *cuda(void);
/* Remembers an error for cudaGetLastError; returns it. */
cudaError_t keep(cudaError_t error);
/* The kernel behind the address of a host stub, or behind a cudaKernel_t; NULL: unknown. */
CUfunction kernel_of(const void *stub);
/* The device address of a __device__ or __constant__ variable; 0: unknown. */
CUdeviceptr symbol_address(const void *host, size_t *bytes);

/* runtime/graph.c. 1: the stream is capturing, and this has been recorded instead of done. */
int capture_launch(CUstream stream, CUfunction f, const CUlaunchConfig *config, void **arguments);
int capture_copy(CUstream stream, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                 size_t height);
int capture_fill(CUstream stream, void *to, int value, size_t bytes);
int capture_call(CUstream stream, void (*call)(void *), void *argument);
int capture_event(CUstream stream, CUevent event);
void capture_wait(CUstream stream, CUevent event);

API cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                             size_t height, int kind);

#endif
