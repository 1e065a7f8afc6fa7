/* Driver API: tensor maps. */
#include "async/tensor_map.h"
#include "driver/driver.h"

API CUresult cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *dims,
                                    const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                                    int interleave, int swizzle, int l2, int fill) {
    /* drivers since CUDA 12.6 take no address as one that tensormap.replace will set */
    NEED(map && dims && box && element_strides && (strides || rank < 2));
    ENTER;
    char error[512];
    if (tensor_map_encode_tiled(map, type, rank, address, dims, strides, box, element_strides, interleave, swizzle, l2,
                                fill, driver.device, error, sizeof error))
        result = driver_rejectf(CUDA_ERROR_INVALID_VALUE, "cuTensorMapEncodeTiled: %s", error);
    LEAVE;
}

API CUresult cuTensorMapReplaceAddress(void *map, void *address) {
    NEED(map && address);
    ENTER;
    char error[512];
    if (tensor_map_replace_address(map, address, driver.device, error, sizeof error))
        result = driver_rejectf(CUDA_ERROR_INVALID_VALUE, "cuTensorMapReplaceAddress: %s", error);
    LEAVE;
}

static CUresult reject_im2col(const char *call) {
    READY;
    ENTER;
    char error[512];
    tensor_map_reject_im2col(error, sizeof error);
    result = driver_rejectf(CUDA_ERROR_NOT_SUPPORTED, "%s: %s", call, error);
    LEAVE;
}

API CUresult cuTensorMapEncodeIm2col(void *map, int type, uint32_t rank, void *address, const uint64_t *dims,
                                     const uint64_t *strides, const int *lower, const int *upper, uint32_t channels,
                                     uint32_t pixels, const uint32_t *element_strides, int interleave, int swizzle,
                                     int l2, int fill) {
    (void)map, (void)type, (void)rank, (void)address, (void)dims, (void)strides, (void)lower, (void)upper;
    (void)channels, (void)pixels, (void)element_strides, (void)interleave, (void)swizzle, (void)l2, (void)fill;
    return reject_im2col("cuTensorMapEncodeIm2col");
}
API CUresult cuTensorMapEncodeIm2colWide(void *map, int type, uint32_t rank, void *address, const uint64_t *dims,
                                         const uint64_t *strides, int lower, int upper, uint32_t channels,
                                         uint32_t pixels, const uint32_t *element_strides, int interleave, int mode,
                                         int swizzle, int l2, int fill) {
    (void)map, (void)type, (void)rank, (void)address, (void)dims, (void)strides, (void)lower, (void)upper;
    (void)channels, (void)pixels, (void)element_strides, (void)interleave, (void)mode, (void)swizzle, (void)l2;
    (void)fill;
    return reject_im2col("cuTensorMapEncodeIm2colWide");
}
