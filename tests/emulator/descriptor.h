/* Shared-memory matrix descriptors of tcgen05.mma and tcgen05.cp (PTX ISA 9.7.16.4.1) and of wgmma (9.7.15.5), and the
 * walk they describe: which 16-byte units of shared memory hold which rows of a matrix, for every swizzle, K-major and
 * MN-major (9.7.16.3). */
#ifndef EMULATOR_DESCRIPTOR_H
#define EMULATOR_DESCRIPTOR_H

#include "emulator.h"

typedef enum {
    MATRIX_PLAIN,   /* no swizzle: core matrices of 8 rows x 16 bytes */
    MATRIX_SW32,    /* rows of 32 bytes: address bit 4 ^= bit 7 */
    MATRIX_SW64,    /* bits 4-5 ^= bits 7-8 */
    MATRIX_SW128,   /* bits 4-6 ^= bits 7-9 */
    MATRIX_SW128_32 /* 128 bytes with atoms of 32: bits 5-6 ^= bits 7-8; tcgen05 only */
} matrix_swizzle;

typedef struct {
    uint64_t bits;
    const char *name; /* "a-desc": for the sentences */
    uint32_t start;   /* offset in the CTA's shared window */
    uint32_t leading; /* LBO, SBO: bytes */
    uint32_t stride;
    matrix_swizzle swizzle;
} matrix_descriptor;

/* Take the fields apart, and fault on what the text forbids: bits that must have another value, unknown layouts, a base
 * offset (no kernel is known to use one, so what it does is not known), and the absolute mode of LBO (sm_103a). */
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

/* Faults, at issue, if some byte of the view lies outside the CTA's shared memory, if its first row does not lie at the
 * start of the swizzle's pattern, or if the swizzle does not exist for this order. */
void check_matrix(warp *w, const instr *in, const cta *c, const matrix_view *v);
/* Rows [first, first + count) as the async proxy sees them now, K-major: row r of them at out + r * k_bytes. */
void gather_matrix(const cta *c, const matrix_view *v, uint32_t first, uint32_t count, uint8_t *out);

/* Where an address of the unswizzled layout really lies. */
static inline uint32_t matrix_swizzled(matrix_swizzle swizzle, uint32_t address) {
    switch (swizzle) {
    case MATRIX_SW32:
        return address ^ (address >> 7 & 1) << 4;
    case MATRIX_SW64:
        return address ^ (address >> 7 & 3) << 4;
    case MATRIX_SW128:
        return address ^ (address >> 7 & 7) << 4;
    case MATRIX_SW128_32:
        return address ^ (address >> 7 & 3) << 5;
    case MATRIX_PLAIN:
        break;
    }
    return address;
}

#endif
