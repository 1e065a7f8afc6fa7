/* The part of DLPack 1.x that tensors are read through: our own words for its structs (DLPack 1.3, "C API").
 *
 * A tensor library publishes one exchange table, as the attribute __dlpack_c_exchange_api__ of its tensor type, or
 * gives each array a method __dlpack__, which returns a capsule with a managed tensor. The major version of either is
 * checked before use; tests/bindings/torch_abi.cpp asserts that torch's structs equal these. */
#ifndef NVFP4_DLPACK_H
#define NVFP4_DLPACK_H

#include <stdint.h>

enum { DL_MAJOR = 1, DL_MINOR = 3 };

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13 }; /* device types */

enum {
    DL_INT = 0,
    DL_UINT = 1,
    DL_FLOAT = 2,
    DL_BFLOAT = 4,
    DL_FLOAT8_E4M3FN = 10,
    DL_FLOAT4_E2M1FN = 17
}; /* dtype codes */

enum { DL_READ_ONLY = 1, DL_COPIED = 2, DL_PADDED = 4 }; /* flags; padded: one value of fewer than 8 bits a byte */

typedef struct dl_device {
    int32_t type;
    int32_t id;
} dl_device;

typedef struct dl_dtype {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} dl_dtype;

typedef struct dl_tensor {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_dtype dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL, before DLPack 1.2, means contiguous */
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed_tensor {
    uint32_t major, minor;
    void *owner;
    void (*release)(struct dl_managed_tensor *self);
    uint64_t flags;
    dl_tensor tensor;
} dl_managed_tensor;

/* Before DLPack 1.0: without a version and flags. */
typedef struct dl_unversioned_tensor {
    dl_tensor tensor;
    void *owner;
    void (*release)(struct dl_unversioned_tensor *self);
} dl_unversioned_tensor;

typedef struct dl_exchange_table {
    uint32_t major, minor;
    struct dl_exchange_table *previous;
    int (*allocate)(dl_tensor *prototype, dl_managed_tensor **out, void *error_context,
                    void (*set_error)(void *error_context, const char *kind, const char *message));
    int (*own_from_python)(void *object, dl_managed_tensor **out);
    int (*own_to_python)(dl_managed_tensor *managed, void **out);
    int (*borrow)(void *object, dl_tensor *out); /* takes no reference: shape and strides stay the object's */
    int (*current_stream)(int32_t device_type, int32_t device, void **out);
} dl_exchange_table;

#endif
