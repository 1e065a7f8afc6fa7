/* Shared-memory matrix descriptors of tcgen05.mma and tcgen05.cp (PTX ISA 9.7.16.4.1) and of wgmma (9.7.15.5), and the
 * walk they describe: which 16-byte units of shared memory hold which rows of a matrix, for every swizzle, K-major and
 * MN-major (9.7.16.3). */
#ifndef EMULATOR_DESCRIPTOR_H
#define EMULATOR_DESCRIPTOR_H

#include "machine/machine.h"

typedef enum {
    MATRIX_PLAIN,   /* no swizzle: core matrices of 8 rows x 16 bytes */
    MATRIX_SW32,    /* rows of 32 bytes: address bit 4 ^= bit 7 */
    MATRIX_SW64,    /* bits 4-5 ^= bits 7-8 */
    MATRIX_SW128,   /* bits 4-6 ^= bits 7-9 */
    MATRIX_SW128_32 /* 128 bytes with atoms of 32: bits 5-6 ^= bits 7-8; tcgen05 only */
} matrix_swizzle;

typedef struct {
    uint64_t bits;
    const char *name; /* "a-desc": for the messages */
    uint32_t start;   /* offset in the CTA's shared window */
    uint32_t leading; /* LBO, SBO: bytes */
    uint32_t stride;
    matrix_swizzle swizzle;
    uint32_t base_offset;
    int any_row; /* may begin in any row of the swizzle's pattern */
} matrix_descriptor;

/* Take the fields apart, and fault on what the text forbids: bits that must have another value, unknown layouts, and
 * the absolute mode of LBO (sm_103a). A base offset, or a matrix that begins inside the swizzle's pattern, is a fault
 * with tcgen05, where what they do is not known; with wgmma they do what an H200 was seen to do. */
matrix_descriptor tcgen05_descriptor(warp *w, const instr *in, uint64_t bits, const char *name);
matrix_descriptor wgmma_descriptor(warp *w, const instr *in, uint64_t bits, const char *name);

/* A matrix of `rows` (M or N) x `k_bytes` bytes of K (a multiple of 16), seen through a descriptor. `element_bytes` (1,
 * 2, 4) matters to MN-major only, where 16 bytes hold neighbours along M or N. */
typedef struct {
    matrix_descriptor descriptor;
    uint32_t rows, k_bytes;
    int mn_major;
    uint32_t element_bytes;
} matrix_view;

/* Faults, at issue, if some byte of the view lies outside the CTA's shared memory, if it begins in a row of the
 * swizzle's pattern where it may not, or if the swizzle does not exist for this order. */
void check_matrix(warp *w, const instr *in, const cta *c, const matrix_view *v);
/* Rows [first, first + count) as the async proxy sees them now, K-major: row r of them at out + r * k_bytes. */
void gather_matrix(const cta *c, const matrix_view *v, uint32_t first, uint32_t count, uint8_t *out);

/* Where an address of the unswizzled layout really lies. The base offset turns the pattern back by as many lines of 128
 * bytes (on an H200: golden/README.md). */
static inline uint32_t matrix_swizzled(const matrix_descriptor *d, uint32_t address) {
    uint32_t line = (address >> 7) - d->base_offset;
    switch (d->swizzle) {
    case MATRIX_SW32:
        return address ^ (line & 1) << 4;
    case MATRIX_SW64:
        return address ^ (line & 3) << 4;
    case MATRIX_SW128:
        return address ^ (line & 7) << 4;
    case MATRIX_SW128_32:
        return address ^ (line & 3) << 5;
    case MATRIX_PLAIN:
        break;
    }
    return address;
}

#endif
