/* cuGetProcAddress: names as programs ask for them, without the suffix of a version, and what they mean at CUDA 13. */
#define _GNU_SOURCE /* RTLD_DEFAULT, dladdr */
#include <dlfcn.h>
#include <stdio.h>

#include "driver.h"

static const char *const suffixed[][2] = {
    {"cuDeviceTotalMem", "cuDeviceTotalMem_v2"},
    {"cuDeviceGetUuid", "cuDeviceGetUuid_v2"},
    {"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"},
    {"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"},
    {"cuDevicePrimaryCtxSetFlags", "cuDevicePrimaryCtxSetFlags_v2"},
    {"cuCtxCreate", "cuCtxCreate_v4"},
    {"cuCtxDestroy", "cuCtxDestroy_v2"},
    {"cuCtxPushCurrent", "cuCtxPushCurrent_v2"},
    {"cuCtxPopCurrent", "cuCtxPopCurrent_v2"},
    {"cuModuleGetGlobal", "cuModuleGetGlobal_v2"},
    {"cuMemAlloc", "cuMemAlloc_v2"},
    {"cuMemFree", "cuMemFree_v2"},
    {"cuMemAllocPitch", "cuMemAllocPitch_v2"},
    {"cuMemAllocHost", "cuMemAllocHost_v2"},
    {"cuMemHostGetDevicePointer", "cuMemHostGetDevicePointer_v2"},
    {"cuMemGetInfo", "cuMemGetInfo_v2"},
    {"cuMemGetAddressRange", "cuMemGetAddressRange_v2"},
    {"cuMemcpyHtoD", "cuMemcpyHtoD_v2"},
    {"cuMemcpyDtoH", "cuMemcpyDtoH_v2"},
    {"cuMemcpyDtoD", "cuMemcpyDtoD_v2"},
    {"cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2"},
    {"cuMemcpyDtoHAsync", "cuMemcpyDtoHAsync_v2"},
    {"cuMemcpyDtoDAsync", "cuMemcpyDtoDAsync_v2"},
    {"cuMemsetD8", "cuMemsetD8_v2"},
    {"cuMemsetD16", "cuMemsetD16_v2"},
    {"cuMemsetD32", "cuMemsetD32_v2"},
    {"cuStreamDestroy", "cuStreamDestroy_v2"},
    {"cuEventDestroy", "cuEventDestroy_v2"},
    {"cuEventElapsedTime", "cuEventElapsedTime_v2"},
};

/* Programs may link these without a suffix: the ABI of the first version, where the second differs from it in nothing
 * that is emulated. */
API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end);
CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end);
CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}

API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    (void)version, (void)flags;
    for (size_t i = 0; i < sizeof suffixed / sizeof *suffixed; i++)
        if (!strcmp(name, suffixed[i][0])) name = suffixed[i][1];
    Dl_info self;
    void *library = dladdr((void *)cuGetProcAddress_v2, &self) ? dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
    *function = library ? dlsym(library, name) : NULL;
    if (library) dlclose(library);
    if (status) *status = *function ? 0 : 1; /* CU_GET_PROC_ADDRESS_SUCCESS, _SYMBOL_NOT_FOUND */
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
