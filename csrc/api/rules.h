/* The rules that operations share, one function a rule: each returns NVFP4_OK, or leaves an error.
 *
 * Data pointers may be NULL, as they are for torch's fake tensors: rules about addresses (alignment, overlap) are then
 * skipped. check_data_present rejects such a call before it runs. */
#ifndef NVFP4_API_RULES_H
#define NVFP4_API_RULES_H

#include "api/operation.h"

#define MAX_SIZE INT32_MAX /* of one dimension: kernels count rows and columns in 32 bits */

/* A two- or three-dimensional tensor of rows, distances in bytes. */
typedef struct matrix {
    int64_t l, rows, columns; /* columns in elements of the dtype */
    int64_t pitch, batch;
} matrix;

typedef enum direction { READ_ONLY, WRITTEN } direction;

static inline int absent(const nvfp4_tensor *t) {
    return t->dtype == NVFP4_NONE;
}

/* Bytes of the 128x4 layout of rows x columns scales, one batch. */
int64_t swizzled_bytes(int64_t rows, int64_t columns);
/* Bytes of one element (one packed pair). */
int64_t dtype_bytes(int32_t dtype);
/* The name of an nvfp4_activation. */
const char *activation_name(int32_t activation);
int64_t element_count(const nvfp4_tensor *t);
/* The value of an error message about a tensor's size, as REJECT takes it. */
#define ELEMENTS_OF(t)                                                                                                 \
    ("has %lld elements in %d dimension%s", (long long)element_count(t), (t)->ndim, (t)->ndim == 1 ? "" : "s")
int is_contiguous(const nvfp4_tensor *t);
/* A contiguous tensor without memory. */
nvfp4_tensor contiguous_tensor(int32_t dtype, int32_t device, int ndim, const int64_t *shape);
/* Bytes from the first to behind the last element. */
int64_t bytes_to_end(const nvfp4_tensor *t);
/* 1: s and t are the same elements of the same memory. */
int same_view(const nvfp4_tensor *s, const nvfp4_tensor *t);

/* The name that the call's operation gives to one of its tensors. */
const char *argument_name(const checked_call *c, const nvfp4_tensor *t);

/* Checks the rules of the operation's table: required tensors are there, sizes can be counted, dtypes and devices fit.
 */
nvfp4_status check_arguments(const checked_call *c);
/* Checks that no written tensor shares memory with another. */
nvfp4_status check_overlap(const checked_call *c);
nvfp4_status check_data_present(const checked_call *c);

nvfp4_status check_alignment(const checked_call *c, const nvfp4_tensor *t, int64_t bytes);
/* Two or three dimensions, dense rows that lie their own length or a multiple of 16 bytes apart; an output's rows must
 * not overlap. */
nvfp4_status check_matrix(const checked_call *c, const nvfp4_tensor *t, const char *shape2, const char *shape3,
                          direction use, matrix *x);
/* The same with rows any distance apart. */
nvfp4_status check_strided_matrix(const checked_call *c, const nvfp4_tensor *t, const char *shape2, const char *shape3,
                                  direction use, matrix *x);
/* Values of the format: 8-byte aligned rows whose length is a multiple of 16 values. */
nvfp4_status check_values(const checked_call *c, const nvfp4_tensor *t, const char *shape2, const char *shape3,
                          direction use, matrix *x);
/* Scales of l batches of rows x columns in either layout. */
nvfp4_status check_scale(const checked_call *c, const nvfp4_tensor *t, nvfp4_layout layout, int64_t l, int64_t rows,
                         int64_t columns, direction use, int64_t *pitch, int64_t *batch);
/* A dense vector of `length` elements, whose name in error messages is `size`, or of one if that is allowed. */
nvfp4_status check_vector(const checked_call *c, const nvfp4_tensor *t, char size, int64_t length, int one_allowed);
/* A contiguous vector that is written. */
nvfp4_status check_written_vector(const checked_call *c, const nvfp4_tensor *t, const char *size, int64_t length);
nvfp4_status check_layout(nvfp4_layout layout);
nvfp4_status check_activation(int32_t activation);
/* The numbers of an activation that is one, alpha by the name that its operation gives it. */
nvfp4_status check_gating(int32_t activation, float limit, float alpha, const char *alpha_name);
/* The activation and the numbers of `gated`, and whether there is up. */
nvfp4_status check_gate_and_up(int32_t activation, const nvfp4_tensor *up, float limit, float alpha);
/* The factors of a checked gate, which have its shape and dtype. */
nvfp4_status check_up(const checked_call *c, const nvfp4_tensor *up, const nvfp4_tensor *gate, const matrix *expected,
                      matrix *x);
nvfp4_status check_block_scale(nvfp4_block_scale block_scale);
nvfp4_status check_round_steps(uint32_t round_steps);

#endif
