/* Results that a front end makes: their shapes by the texts of the table (result_shape, api/operation.h). */
#ifndef NVFP4_RESULT_H
#define NVFP4_RESULT_H

#include "bindings/frontend.h"

/* A size as its text is read: the number that `of` says of a tensor or scalar, times `times`, by `over`, rounded up to a
 * multiple of `round_up`. */
typedef struct result_size {
    enum {
        SIZE_NUMBER, /* 1 */
        SIZE_SCALAR,
        SIZE_ROWS,
        SIZE_COLUMNS,
        SIZE_COUNT,
        SIZE_SORTED_ROWS, /* SIZE_COUNT, or where the tensor is absent SIZE_ROWS of `rows_of` */
        SIZE_PART_ROWS,
        SIZE_PART_COLUMNS,
        SIZE_PARTS_ROWS,
    } of;
    int32_t index; /* of the tensor among the operation's, or of the scalar among a call's sizes */
    int32_t rows_of;
    int32_t ends; /* 1 + the index of a tensor: the 128-row blocks of that many rows in its groups. 0: the rows */
    int32_t times, over, round_up;
} result_size;

enum { RESULT_MAX_SIZES = 2 };

typedef struct result_sizes {
    int32_t batch; /* 1 + the index of the tensor whose batch comes first; 0: none */
    int32_t count;
    result_size size[RESULT_MAX_SIZES];
} result_sizes;

/* Reads a text. One that is none is an error of this library, which names the place. */
nvfp4_status parse_sizes(const operation *op, const char *text, result_sizes *sizes);
/* Reads all texts of the table. A front end does so once, before its first call. */
nvfp4_status parse_results(void);

/* Fills dtype, device, shape and dense strides of a result that is still to be allocated; data is NULL. */
nvfp4_status describe_result(const operation *op, int32_t result, front_call *call);
/* Whether memory that a library has allocated for a result is aligned as its rules demand. */
nvfp4_status check_new_result(const operation *op, int32_t result, const front_call *call);

#endif
