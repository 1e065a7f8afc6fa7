/* Prototypes of the functions of torch's stable C shim that ops.c calls.
 *
 * torch's own headers are C++; these are our words for the same declarations. The functions are looked up in the
 * libtorch that the process has loaded, so nothing links to torch. tests/bindings/torch_abi.cpp includes torch's
 * headers and asserts that every type below is equal to torch's. Each function exists since torch 2.10 or before. */
#ifndef NVFP4_TORCH_SHIM_H
#define NVFP4_TORCH_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct AtenTensorOpaque *torch_tensor;
typedef struct TorchLibraryOpaque *torch_library;
typedef struct StringOpaque *torch_string;
typedef struct StableListOpaque *torch_list;
typedef uint64_t torch_value; /* StableIValue: an argument or result of a boxed kernel */

/* Kernels own the handles among their arguments. */
typedef void torch_kernel(torch_value *stack, uint64_t inputs, uint64_t outputs);

/* X(result, name, arguments): functions of libtorch_cpu.so; an error code other than 0 is a failure. */
#define TORCH_SHIM(X)                                                                                                  \
    X(int32_t, aoti_torch_library_init_fragment,                                                                       \
      (const char *ns, const char *file, uint32_t line, torch_library *out))                                           \
    X(int32_t, aoti_torch_library_init_impl,                                                                           \
      (const char *ns, const char *key, const char *file, uint32_t line, torch_library *out))                          \
    X(int32_t, aoti_torch_library_def, (torch_library library, const char *schema))                                    \
    X(int32_t, aoti_torch_library_impl,                                                                                \
      (torch_library library, const char *name, void (*kernel)(torch_value *, uint64_t, uint64_t)))                    \
    X(int32_t, aoti_torch_get_data_ptr, (torch_tensor tensor, void **out))                                             \
    X(int32_t, aoti_torch_get_dim, (torch_tensor tensor, int64_t *out))                                                \
    X(int32_t, aoti_torch_get_sizes, (torch_tensor tensor, int64_t **out))                                             \
    X(int32_t, aoti_torch_get_strides, (torch_tensor tensor, int64_t **out))                                           \
    X(int32_t, aoti_torch_get_dtype, (torch_tensor tensor, int32_t *out))                                              \
    X(int32_t, aoti_torch_get_device_type, (torch_tensor tensor, int32_t *out))                                        \
    X(int32_t, aoti_torch_get_device_index, (torch_tensor tensor, int32_t *out))                                       \
    X(int32_t, aoti_torch_empty_strided,                                                                               \
      (int64_t ndim, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device_type,                 \
       int32_t device_index, torch_tensor *out))                                                                       \
    X(int32_t, aoti_torch_delete_tensor_object, (torch_tensor tensor))                                                 \
    X(int32_t, torch_string_c_str, (torch_string string, const char **out))                                            \
    X(int32_t, torch_string_length, (torch_string string, size_t *out))                                                \
    X(int32_t, torch_delete_string, (torch_string string))                                                             \
    X(int32_t, torch_list_size, (torch_list list, size_t *out))                                                        \
    X(int32_t, torch_list_get_item, (torch_list list, size_t index, torch_value *out))                                 \
    X(int32_t, torch_delete_list, (torch_list list))                                                                   \
    X(int32_t, torch_get_num_threads, (uint32_t *out))                                                                 \
    X(int32_t, aoti_torch_device_type_cuda, (void))                                                                    \
    X(int32_t, aoti_torch_dtype_uint8, (void))                                                                         \
    X(int32_t, aoti_torch_dtype_float8_e4m3fn, (void))                                                                 \
    X(int32_t, aoti_torch_dtype_float16, (void))                                                                       \
    X(int32_t, aoti_torch_dtype_bfloat16, (void))                                                                      \
    X(int32_t, aoti_torch_dtype_float32, (void))                                                                       \
    X(int32_t, aoti_torch_dtype_int32, (void))                                                                         \
    X(int32_t, aoti_torch_dtype_int64, (void))                                                                         \
    X(void, aoti_torch_check,                                                                                          \
      (bool condition, const char *function, const char *file, uint32_t line, const char *message))

/* Absent from some torch builds: float4 as a dtype since 2.11, the current stream from libtorch_cuda.so only. */
#define TORCH_SHIM_OPTIONAL(X)                                                                                         \
    X(int32_t, torch_dtype_float4_e2m1fn_x2, (void))                                                                   \
    X(int32_t, aoti_torch_get_current_cuda_stream, (int32_t device, void **out))

#endif
