/* cuGetProcAddress: entry points by their names without version suffix, for the requested CUDA version. */
#define _GNU_SOURCE /* RTLD_DEFAULT, dladdr */
#include <dlfcn.h>
#include <stdio.h>

#include "driver/driver.h"

/* The first row whose version is not newer than the one that is asked for. */
static const struct {
    const char *name, *symbol;
    int version;
} symbols[] = {
    {"cuDeviceTotalMem", "cuDeviceTotalMem_v2", 0},
    {"cuDeviceGetUuid", "cuDeviceGetUuid_v2", 0},
    {"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", 0},
    {"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2", 0},
    {"cuDevicePrimaryCtxSetFlags", "cuDevicePrimaryCtxSetFlags_v2", 0},
    {"cuCtxDestroy", "cuCtxDestroy_v2", 0},
    {"cuCtxPushCurrent", "cuCtxPushCurrent_v2", 0},
    {"cuCtxPopCurrent", "cuCtxPopCurrent_v2", 0},
    {"cuModuleGetGlobal", "cuModuleGetGlobal_v2", 0},
    {"cuMemAlloc", "cuMemAlloc_v2", 0},
    {"cuMemFree", "cuMemFree_v2", 0},
    {"cuMemAllocPitch", "cuMemAllocPitch_v2", 0},
    {"cuMemAllocHost", "cuMemAllocHost_v2", 0},
    {"cuMemHostGetDevicePointer", "cuMemHostGetDevicePointer_v2", 0},
    {"cuMemHostRegister", "cuMemHostRegister_v2", 0},
    {"cuMemGetInfo", "cuMemGetInfo_v2", 0},
    {"cuMemGetAddressRange", "cuMemGetAddressRange_v2", 0},
    {"cuMemcpyHtoD", "cuMemcpyHtoD_v2", 0},
    {"cuMemcpyDtoH", "cuMemcpyDtoH_v2", 0},
    {"cuMemcpyDtoD", "cuMemcpyDtoD_v2", 0},
    {"cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2", 0},
    {"cuMemcpyDtoHAsync", "cuMemcpyDtoHAsync_v2", 0},
    {"cuMemcpyDtoDAsync", "cuMemcpyDtoDAsync_v2", 0},
    {"cuMemcpy2D", "cuMemcpy2D_v2", 0},
    {"cuMemcpy2DUnaligned", "cuMemcpy2DUnaligned_v2", 0},
    {"cuMemcpy2DAsync", "cuMemcpy2DAsync_v2", 0},
    {"cuMemsetD8", "cuMemsetD8_v2", 0},
    {"cuMemsetD16", "cuMemsetD16_v2", 0},
    {"cuMemsetD32", "cuMemsetD32_v2", 0},
    {"cuMemsetD2D8", "cuMemsetD2D8_v2", 0},
    {"cuMemsetD2D16", "cuMemsetD2D16_v2", 0},
    {"cuMemsetD2D32", "cuMemsetD2D32_v2", 0},
    {"cuStreamDestroy", "cuStreamDestroy_v2", 0},
    {"cuStreamBeginCapture", "cuStreamBeginCapture_v2", 0},
    {"cuEventDestroy", "cuEventDestroy_v2", 0},
    {"cuLinkCreate", "cuLinkCreate_v2", 0},
    {"cuLinkAddData", "cuLinkAddData_v2", 0},
    {"cuLinkAddFile", "cuLinkAddFile_v2", 0},
    {"cuEventElapsedTime", "cuEventElapsedTime_v2", 12080},
    {"cuCtxCreate", "cuCtxCreate_v4", 12050},
    {"cuCtxCreate", "cuCtxCreate_v3", 11040},
    {"cuCtxCreate", "cuCtxCreate_v2", 0},
    {"cuCtxGetDevice", "cuCtxGetDevice_v2", 13000},
    {"cuCtxSynchronize", "cuCtxSynchronize_v2", 13000},
    {"cuGetProcAddress", "cuGetProcAddress_v2", 12000},
    {"cuMemAdvise", "cuMemAdvise_v2", 12020},
    {"cuMemPrefetchAsync", "cuMemPrefetchAsync_v2", 12020},
    {"cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_v3", 12030},
    {"cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_v2", 11030},
};

API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    (void)flags; /* the legacy stream or the thread's: there is one queue */
    if (!name || !function) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (!strcmp(name, symbols[i].name) && version >= symbols[i].version) {
            name = symbols[i].symbol;
            break;
        }
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

/* NVIDIA's own libraries ask for function tables by unpublished numbers (NVRTC for its cache). Every table here is
 * empty: it begins with its size in bytes, from which they see that an entry is missing. */
API CUresult cuGetExportTable(const void **table, const void *id) {
    static const size_t empty = sizeof empty;
    if (!table || !id) return CUDA_ERROR_INVALID_VALUE;
    *table = &empty;
    return CUDA_SUCCESS;
}
