/* Tensor maps: the layout of a tensor in global memory and the box that a tensor copy moves (PTX ISA 5.5; CUDA
 * driver API, "Tensor Map Object Management"). */
#ifndef EMULATOR_TENSOR_MAP_H
#define EMULATOR_TENSOR_MAP_H

#include "machine/machine.h"

enum { TENSOR_MAP_BYTES = 128, TENSOR_MAP_ALIGN = 64, TENSOR_RANK_MAX = 5 };

/* Element types, with the driver API's numbers. */
typedef enum {
    TENSOR_U8,
    TENSOR_U16,
    TENSOR_U32,
    TENSOR_S32,
    TENSOR_U64,
    TENSOR_S64,
    TENSOR_F16,
    TENSOR_F32,
    TENSOR_F64,
    TENSOR_BF16,
    TENSOR_F32_FTZ,
    TENSOR_TF32,
    TENSOR_TF32_FTZ,
    TENSOR_B4,     /* 16U4_ALIGN8B: packed in shared memory too */
    TENSOR_B4_P64, /* 16U4_ALIGN16B: 16 elements, then 8 bytes of padding */
    TENSOR_B6_P32, /* 16U6_ALIGN16B: 16 elements, then 4 bytes of padding; in a store an element has a byte */
    TENSOR_TYPE_COUNT
} tensor_type;

/* The driver API's numbers, and one more. */
typedef enum {
    SWIZZLE_NONE,
    SWIZZLE_32B,
    SWIZZLE_64B,
    SWIZZLE_128B,
    SWIZZLE_128B_ATOM_32B,
    SWIZZLE_128B_ATOM_32B_FLIP_8B,
    SWIZZLE_128B_ATOM_64B,
    SWIZZLE_96B
} tensor_swizzle;

/* The 128 bytes. NVIDIA's layout of them is not documented; this is our own. */
typedef struct {
    uint64_t magic;
    uint64_t left_alone; /* unused: CUTLASS clears bit 21 of the real encoding's second word */
    uint64_t address;
    uint64_t strides[TENSOR_RANK_MAX - 1]; /* bytes, of dimensions 1 .. */
    uint32_t last[TENSOR_RANK_MAX];        /* size of a dimension - 1: it may be 2^32 */
    uint16_t box[TENSOR_RANK_MAX];
    uint8_t element_strides[TENSOR_RANK_MAX];
    uint8_t type, rank, interleave, fill_nan, l2;
    uint8_t swizzle_mode, swizzle_atom; /* as tensormap.replace numbers them */
    uint8_t unused[30];
} tensor_map;
_Static_assert(sizeof(tensor_map) == TENSOR_MAP_BYTES, "a tensor map has 128 bytes");

/* cuTensorMapEncodeTiled: 0, or -1 and a message that says which rule an argument breaks. */
int tensor_map_encode_tiled(void *map, int type, uint32_t rank, void *address, const uint64_t *dims,
                            const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                            int interleave, int swizzle, int l2, int fill, const device *d, char *error, size_t size);
/* cuTensorMapEncodeIm2col and ..Im2colWide: -1 and the message that rejects them. */
int tensor_map_reject_im2col(char *error, size_t size);
/* cuTensorMapReplaceAddress. */
int tensor_map_replace_address(void *map, void *address, const device *d, char *error, size_t size);

/* 0, or -1 and a message about invalid fields, which threads may have replaced. */
int tensor_map_check(const tensor_map *map, const device *d, char *error, size_t size);
int tensor_element_bits(tensor_type type);
ptx_type tensor_ptx_type(tensor_type type); /* TYPE_NONE: has none */
tensor_swizzle tensor_map_swizzle(const tensor_map *map);

/* Where a byte of the unswizzled layout lies. 16 bytes (8 with the flip) stay together. `mode` is a tensor_swizzle. */
uint32_t swizzle_address(uint32_t address, int mode);

/* Bytes in which a swizzle moves units: 32, 64, 96 or 128; UINT32_MAX without one. */
uint32_t swizzle_span(tensor_swizzle swizzle);

/* tensormap.replace, tensormap.cp_fenceproxy: of the table tma_opcodes. */
decode_function decode_tensormap;

#endif
