/* The result of one tensor-core instruction, bit for bit, independent of where its operands lie:
 *
 *     D[m][n] = sum over blocks of sfa[m][block] * sfb[n][block] * (A[m] . B[n] over that block) + C[m][n]
 *
 * (PTX ISA 9.7.14 mma, 9.7.15 wgmma, 9.7.16 tcgen05.mma.) The caller gathers A and B from fragments, shared memory
 * or tensor memory into dense K-major rows; nothing here knows warps, descriptors or swizzles.
 *
 * The rule is undocumented; it was measured on hardware and published with MMA-Sim (arXiv 2511.10909). Products are
 * exact. All products of one fused sum and C are aligned to the largest exponent among them, truncated toward zero
 * at a fixed number of fractional bits, and added exactly; the sum is truncated to fp32 (or rounded to nearest even
 * for an fp16 D). The 4-bit block-scaled kinds first sum groups of 16 products exactly. `architecture` decides how
 * many products are fused and how many bits stay. */
#ifndef EMULATOR_TENSOR_ARITHMETIC_H
#define EMULATOR_TENSOR_ARITHMETIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    TENSOR_F16,
    TENSOR_BF16,
    TENSOR_TF32, /* 4 bytes; the low 13 bits do not count */
    TENSOR_E4M3, /* the 8-, 6- and 4-bit elements take one byte each, in its low bits ... */
    TENSOR_E5M2,
    TENSOR_E2M3,
    TENSOR_E3M2,
    TENSOR_E2M1,
    TENSOR_E2M1_SHIFTED, /* ... except here: in bits 5..2, as mma.sync kind::f8f6f4 and kind::mxf8f6f4 hold it */
    TENSOR_E2M1_PACKED,  /* two a byte, the low nibble has the even k */
    TENSOR_S8,
    TENSOR_U8,
} tensor_element;

typedef enum { TENSOR_D_F32, TENSOR_D_F16, TENSOR_D_S32 } tensor_accumulator;

typedef enum { TENSOR_UNSCALED, TENSOR_UE4M3, TENSOR_UE8M0 } tensor_scale;

typedef enum {
    TENSOR_SM80_MMA,   /* mma.sync of sm_80 .. sm_89 */
    TENSOR_SM90_MMA,   /* mma.sync of sm_90 and of sm_100 .. sm_110; see fp8 in tensor/arithmetic.c */
    TENSOR_SM90_WGMMA, /* wgmma */
    TENSOR_SM100,      /* tcgen05.mma, and mma.sync of sm_120, block-scaled or not */
} tensor_architecture;

typedef enum {
    TENSOR_HARDWARE, /* the rule above */
    TENSOR_FP64,     /* plain fp64 sums, rounded to nearest even once: keeps questions of layout from those of bits */
} tensor_rule;

typedef struct {
    tensor_architecture architecture;
    tensor_rule rule;
    int m, n, k;                   /* k counts elements; n at most 256, k at most 64 */
    tensor_element a_type, b_type; /* packed e2m1 on both sides or on none */
    tensor_accumulator d_type;     /* the type of C as well */

    /* Strides are bytes from row to row. Alignment is that of the element. */
    const void *a;
    ptrdiff_t a_stride; /* m rows of k elements */
    const void *b;
    ptrdiff_t b_stride; /* n rows of k elements */

    /* C may be D. The step is bytes from n to n + 1: 4 for fp32 and s32, 2 for fp16 (4 where a TMEM cell or a
     * register holds one fp16 in its low half; the upper half is not touched). */
    const void *c; /* NULL: zero, nothing is read */
    ptrdiff_t c_stride, c_step;
    void *d;
    ptrdiff_t d_stride, d_step;

    tensor_scale scale_type;
    int blocks;         /* scales per row and instruction: 1 (mxf8f6f4), 2 or 4 (mxf4, mxf4nvf4); 0 when unscaled */
    const uint8_t *sfa; /* sfa[m * sfa_stride + block] */
    ptrdiff_t sfa_stride;
    const uint8_t *sfb; /* sfb[n * sfb_stride + block] */
    ptrdiff_t sfb_stride;

    bool negate_a, negate_b;
    bool saturate;     /* s32: clamp the sum instead of wrapping */
    int scale_input_d; /* tcgen05: C is multiplied by 2^-scale_input_d first, 0 .. 15 */
} tensor_op;

/* NULL, or why the combination of kinds, sizes and architecture does not exist: a clause to follow the instruction's
 * text. Data and pointers are not looked at. */
const char *tensor_rejection(const tensor_op *op);

/* The op must be one that tensor_rejection accepts. Rows of A, B, C and D lie apart, D may be C. */
void tensor_multiply(const tensor_op *op);

/* The same by the rule's own words, an output at a time and without shortcuts: what tensor_multiply is tested with,
 * and where it sends the outputs that infinities reach. */
void tensor_multiply_by_element(const tensor_op *op);

#endif
