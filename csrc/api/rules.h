/* The rules that check.c and check_quantize.c share: each returns NVFP4_OK, or leaves an error message. */
#ifndef NVFP4_API_RULES_H
#define NVFP4_API_RULES_H

#include "nvfp4.h"

#define MAX_SIZE INT32_MAX /* of one dimension: kernels count rows and columns in 32 bits */

/* A two- or three-dimensional tensor of rows, distances in bytes. */
typedef struct matrix {
    int64_t l, rows, columns; /* columns in elements of the dtype */
    int64_t pitch, batch;
} matrix;

typedef enum direction { INPUT, OUTPUT } direction;

static inline int absent(const nvfp4_tensor *t) {
    return t->dtype == NVFP4_NONE;
}

int is_scale(int32_t dtype);
int is_float(int32_t dtype);
nvfp4_status check_dtype(const char *name, const nvfp4_tensor *t, int (*allowed)(int32_t), const char *rule);
nvfp4_status check_device(const char *name, const nvfp4_tensor *t, const char *first_name, const nvfp4_tensor *first);
nvfp4_status check_sizes(const char *name, const nvfp4_tensor *t);
int64_t element_count(const nvfp4_tensor *t);
int is_contiguous(const nvfp4_tensor *t);
nvfp4_status check_alignment(const char *name, const nvfp4_tensor *t, int64_t bytes);
nvfp4_status check_matrix(const char *name, const char *shape2, const char *shape3, const nvfp4_tensor *t,
                          direction use, matrix *x);
nvfp4_status check_data(const char *name, const char *shape2, const char *shape3, const nvfp4_tensor *t, direction use,
                        matrix *x);
nvfp4_status check_scale(const char *name, const nvfp4_tensor *t, int32_t layout, int64_t l, int64_t rows,
                         int64_t columns, direction use, int64_t *pitch, int64_t *batch);
nvfp4_status check_layout(int32_t layout);
nvfp4_status check_apart(const char *name, const nvfp4_tensor *t, const char *other_name, const nvfp4_tensor *other);
nvfp4_status check_present(const char *name, const nvfp4_tensor *t);
nvfp4_status check_has_data(const char *name, const nvfp4_tensor *t);

#endif
