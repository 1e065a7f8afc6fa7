// Our words for torch's C interfaces against torch's own headers: compiles where both say the same.
//
// The one file of the project that includes torch. tests/bindings/test_torch_abi.py compiles it and runs nothing.
#define USE_CUDA // declares aoti_torch_get_current_cuda_stream
#include <ATen/dlpack.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/version.h>

#include <cstddef>
#include <type_traits>

#include "bindings/dlpack.h"
#include "bindings/torch/shim.h"

static_assert(std::is_same_v<torch_tensor, AtenTensorHandle>);
static_assert(std::is_same_v<torch_library, TorchLibraryHandle>);
static_assert(std::is_same_v<torch_string, StringHandle>);
static_assert(std::is_same_v<torch_list, StableListHandle>);
static_assert(std::is_same_v<torch_value, StableIValue>);

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 10
extern "C" int32_t torch_dtype_float4_e2m1fn_x2(); // the optional function that 2.10 lacks
#endif

#define X(result, name, arguments) static_assert(std::is_same_v<decltype(&::name), result(*) arguments>, #name);
TORCH_SHIM(X)
TORCH_SHIM_OPTIONAL(X)
#undef X

#define SAME_SIZE(ours, theirs) static_assert(sizeof(ours) == sizeof(theirs) && alignof(ours) == alignof(theirs))
#define SAME_FIELD(ours, field, theirs, their_field)                                                                   \
    static_assert(offsetof(ours, field) == offsetof(theirs, their_field) &&                                            \
                  sizeof(ours::field) == sizeof(theirs::their_field))

SAME_SIZE(dl_device, DLDevice);
SAME_FIELD(dl_device, type, DLDevice, device_type);
SAME_FIELD(dl_device, id, DLDevice, device_id);

SAME_SIZE(dl_dtype, DLDataType);
SAME_FIELD(dl_dtype, code, DLDataType, code);
SAME_FIELD(dl_dtype, bits, DLDataType, bits);
SAME_FIELD(dl_dtype, lanes, DLDataType, lanes);

SAME_SIZE(dl_tensor, DLTensor);
SAME_FIELD(dl_tensor, data, DLTensor, data);
SAME_FIELD(dl_tensor, device, DLTensor, device);
SAME_FIELD(dl_tensor, ndim, DLTensor, ndim);
SAME_FIELD(dl_tensor, dtype, DLTensor, dtype);
SAME_FIELD(dl_tensor, shape, DLTensor, shape);
SAME_FIELD(dl_tensor, strides, DLTensor, strides);
SAME_FIELD(dl_tensor, byte_offset, DLTensor, byte_offset);

SAME_SIZE(dl_managed_tensor, DLManagedTensorVersioned);
SAME_FIELD(dl_managed_tensor, major, DLManagedTensorVersioned, version.major);
SAME_FIELD(dl_managed_tensor, minor, DLManagedTensorVersioned, version.minor);
SAME_FIELD(dl_managed_tensor, owner, DLManagedTensorVersioned, manager_ctx);
SAME_FIELD(dl_managed_tensor, release, DLManagedTensorVersioned, deleter);
SAME_FIELD(dl_managed_tensor, flags, DLManagedTensorVersioned, flags);
SAME_FIELD(dl_managed_tensor, tensor, DLManagedTensorVersioned, dl_tensor);

SAME_SIZE(dl_unversioned_tensor, DLManagedTensor);
SAME_FIELD(dl_unversioned_tensor, tensor, DLManagedTensor, dl_tensor);
SAME_FIELD(dl_unversioned_tensor, owner, DLManagedTensor, manager_ctx);
SAME_FIELD(dl_unversioned_tensor, release, DLManagedTensor, deleter);

static_assert(DL_READ_ONLY == DLPACK_FLAG_BITMASK_READ_ONLY && DL_COPIED == DLPACK_FLAG_BITMASK_IS_COPIED);
static_assert(DL_PADDED == DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);

SAME_SIZE(dl_exchange_table, DLPackExchangeAPI);
SAME_FIELD(dl_exchange_table, major, DLPackExchangeAPI, header.version.major);
SAME_FIELD(dl_exchange_table, minor, DLPackExchangeAPI, header.version.minor);
SAME_FIELD(dl_exchange_table, previous, DLPackExchangeAPI, header.prev_api);
SAME_FIELD(dl_exchange_table, allocate, DLPackExchangeAPI, managed_tensor_allocator);
SAME_FIELD(dl_exchange_table, own_from_python, DLPackExchangeAPI, managed_tensor_from_py_object_no_sync);
SAME_FIELD(dl_exchange_table, own_to_python, DLPackExchangeAPI, managed_tensor_to_py_object_no_sync);
SAME_FIELD(dl_exchange_table, borrow, DLPackExchangeAPI, dltensor_from_py_object_no_sync);
SAME_FIELD(dl_exchange_table, current_stream, DLPackExchangeAPI, current_work_stream);

#define SAME_VALUE(ours, theirs) static_assert(int(ours) == int(theirs))
SAME_VALUE(DL_MAJOR, DLPACK_MAJOR_VERSION);
SAME_VALUE(DL_CPU, kDLCPU);
SAME_VALUE(DL_CUDA, kDLCUDA);
SAME_VALUE(DL_CUDA_HOST, kDLCUDAHost);
SAME_VALUE(DL_CUDA_MANAGED, kDLCUDAManaged);
SAME_VALUE(DL_UINT, kDLUInt);
SAME_VALUE(DL_FLOAT, kDLFloat);
SAME_VALUE(DL_BFLOAT, kDLBfloat);
SAME_VALUE(DL_FLOAT8_E4M3FN, kDLFloat8_e4m3fn);
SAME_VALUE(DL_FLOAT4_E2M1FN, kDLFloat4_e2m1fn);
