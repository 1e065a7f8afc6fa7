/* csrc/driver/cuda_abi.h against the toolkit's own cuda.h. Compiling is the test. */
#define CUresult                                                 our_CUresult
#define CUdevice                                                 our_CUdevice
#define CUdeviceptr                                              our_CUdeviceptr
#define CUcontext                                                our_CUcontext
#define CUlibrary                                                our_CUlibrary
#define CUkernel                                                 our_CUkernel
#define CUfunction                                               our_CUfunction
#define CUstream                                                 our_CUstream
#define CUlaunchConfig                                           our_CUlaunchConfig
#define CUDA_SUCCESS                                             OUR_SUCCESS
#define CUDA_ERROR_NO_DEVICE                                     OUR_NO_DEVICE
#define CUDA_ERROR_NOT_FOUND                                     OUR_NOT_FOUND
#define CUDA_ERROR_NOT_READY                                     OUR_NOT_READY
#define CU_DEVICE_ATTRIBUTE_CLOCK_RATE                           OUR_CLOCK
#define CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT                 OUR_SM_COUNT
#define CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE                    OUR_MEMORY_CLOCK
#define CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH              OUR_BUS_WIDTH
#define CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE                        OUR_L2
#define CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR             OUR_MAJOR
#define CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR             OUR_MINOR
#define CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR OUR_SHARED_SM
#define CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS               OUR_PAGEABLE
#define CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN    OUR_SHARED_BLOCK
#define CU_FUNC_ATTRIBUTE_PTX_VERSION                            OUR_PTX_VERSION
#define CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES          OUR_DYNAMIC
#define CU_STREAM_CAPTURE_MODE_RELAXED                           OUR_RELAXED
#define CU_MEMHOSTALLOC_DEVICEMAP                                OUR_DEVICEMAP
#define CU_MEMHOSTALLOC_PORTABLE                                 OUR_PORTABLE
#define CUlaunchAttributeValue                                   our_CUlaunchAttributeValue
#define CUlaunchAttribute                                        our_CUlaunchAttribute
#define CUDA_ERROR_NO_BINARY_FOR_GPU                             OUR_NO_BINARY
#define CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION                    OUR_CLUSTER
#define CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION    OUR_PROGRAMMATIC
#define CU_TENSOR_MAP_DATA_TYPE_UINT8                            OUR_UINT8
#define CU_TENSOR_MAP_DATA_TYPE_UINT16                           OUR_UINT16
#define CU_TENSOR_MAP_INTERLEAVE_NONE                            OUR_NO_INTERLEAVE
#define CU_TENSOR_MAP_SWIZZLE_NONE                               OUR_NO_SWIZZLE
#define CU_TENSOR_MAP_SWIZZLE_64B                                OUR_SWIZZLE_64
#define CU_TENSOR_MAP_SWIZZLE_128B                               OUR_SWIZZLE
#define CU_TENSOR_MAP_L2_PROMOTION_L2_256B                       OUR_PROMOTION
#define CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE                        OUR_FILL
#include "driver/cuda_abi.h"
#undef CUresult
#undef CUdevice
#undef CUdeviceptr
#undef CUcontext
#undef CUlibrary
#undef CUkernel
#undef CUfunction
#undef CUstream
#undef CUlaunchConfig
#undef CUDA_SUCCESS
#undef CUDA_ERROR_NO_DEVICE
#undef CUDA_ERROR_NOT_FOUND
#undef CUDA_ERROR_NOT_READY
#undef CU_DEVICE_ATTRIBUTE_CLOCK_RATE
#undef CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
#undef CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE
#undef CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH
#undef CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
#undef CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
#undef CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
#undef CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
#undef CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS
#undef CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
#undef CU_FUNC_ATTRIBUTE_PTX_VERSION
#undef CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
#undef CU_STREAM_CAPTURE_MODE_RELAXED
#undef CU_MEMHOSTALLOC_DEVICEMAP
#undef CU_MEMHOSTALLOC_PORTABLE
#undef CUlaunchAttributeValue
#undef CUlaunchAttribute
#undef CUDA_ERROR_NO_BINARY_FOR_GPU
#undef CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
#undef CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
#undef CU_TENSOR_MAP_DATA_TYPE_UINT8
#undef CU_TENSOR_MAP_DATA_TYPE_UINT16
#undef CU_TENSOR_MAP_INTERLEAVE_NONE
#undef CU_TENSOR_MAP_SWIZZLE_NONE
#undef CU_TENSOR_MAP_SWIZZLE_64B
#undef CU_TENSOR_MAP_SWIZZLE_128B
#undef CU_TENSOR_MAP_L2_PROMOTION_L2_256B
#undef CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
#include <cuda.h>

#include "common/tensor_map.h"

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
SAME(OUR_SUCCESS, CUDA_SUCCESS);
SAME(OUR_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(OUR_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME(OUR_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(OUR_CLOCK, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
SAME(OUR_SM_COUNT, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(OUR_MEMORY_CLOCK, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
SAME(OUR_BUS_WIDTH, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
SAME(OUR_L2, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME(OUR_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(OUR_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(OUR_SHARED_SM, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
SAME(OUR_PAGEABLE, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
SAME(OUR_SHARED_BLOCK, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME(OUR_PTX_VERSION, CU_FUNC_ATTRIBUTE_PTX_VERSION);
SAME(OUR_DYNAMIC, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(OUR_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME(OUR_DEVICEMAP, CU_MEMHOSTALLOC_DEVICEMAP);
SAME(OUR_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(OUR_NO_BINARY, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME(OUR_CLUSTER, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
SAME(OUR_PROGRAMMATIC, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
SAME(OUR_UINT8, CU_TENSOR_MAP_DATA_TYPE_UINT8);
SAME(OUR_UINT16, CU_TENSOR_MAP_DATA_TYPE_UINT16);
SAME(OUR_NO_INTERLEAVE, CU_TENSOR_MAP_INTERLEAVE_NONE);
SAME(OUR_NO_SWIZZLE, CU_TENSOR_MAP_SWIZZLE_NONE);
SAME(OUR_SWIZZLE_64, CU_TENSOR_MAP_SWIZZLE_64B);
SAME(OUR_SWIZZLE, CU_TENSOR_MAP_SWIZZLE_128B);
SAME(OUR_PROMOTION, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
SAME(OUR_FILL, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
SAME(sizeof(our_CUlaunchAttribute), sizeof(CUlaunchAttribute));
SAME(_Alignof(our_CUlaunchAttribute), _Alignof(CUlaunchAttribute));
SAME(offsetof(our_CUlaunchAttribute, value), offsetof(CUlaunchAttribute, value));
SAME(offsetof(our_CUlaunchAttribute, value.clusterDim), offsetof(CUlaunchAttribute, value.clusterDim));
SAME(offsetof(our_CUlaunchAttribute, value.programmaticStreamSerializationAllowed),
     offsetof(CUlaunchAttribute, value.programmaticStreamSerializationAllowed));
SAME(sizeof(tensor_map), sizeof(CUtensorMap));
SAME(_Alignof(tensor_map), 64); /* all that cuTensorMapEncodeTiled asks for; the header's type has 128 */
SAME(sizeof(our_CUresult), sizeof(CUresult));
SAME(sizeof(our_CUdevice), sizeof(CUdevice));
SAME(sizeof(our_CUdeviceptr), sizeof(CUdeviceptr));
SAME(sizeof(our_CUlaunchConfig), sizeof(CUlaunchConfig));
SAME(offsetof(our_CUlaunchConfig, blockDimX), offsetof(CUlaunchConfig, blockDimX));
SAME(offsetof(our_CUlaunchConfig, sharedMemBytes), offsetof(CUlaunchConfig, sharedMemBytes));
SAME(offsetof(our_CUlaunchConfig, hStream), offsetof(CUlaunchConfig, hStream));
SAME(offsetof(our_CUlaunchConfig, attrs), offsetof(CUlaunchConfig, attrs));
SAME(offsetof(our_CUlaunchConfig, numAttrs), offsetof(CUlaunchConfig, numAttrs));
