/* Shared by the two front ends, the Python module and the torch operators: the operations that they offer, words for
 * the numbers of nvfp4.h, and lists of tensors. */
#ifndef NVFP4_FRONTEND_H
#define NVFP4_FRONTEND_H

#include "api/operation.h"
#include "common/error.h"

enum {
#define FRONT_OPERATION(name) FRONT_##name,
#include "bindings/front_operations.def"
    FRONT_OPERATION_COUNT
};
/* Every operation: a Python function nvfp4._C.name and an operator torch.ops.nvfp4.name. */
extern const operation *const front_operations[FRONT_OPERATION_COUNT];

/* gemm of the views that the competition passes (contest/views.c). */
extern const operation operation_custom_kernel;

/* Errors in the words of Python. */
extern const error_words python_words;

nvfp4_status layout_from_name(const char *name, int32_t *layout);           /* "128x4", "linear" */
nvfp4_status block_scale_from_name(const char *name, int32_t *block_scale); /* "amax6", "four_over_six", ... */
nvfp4_status activation_from_name(const char *name, int32_t *activation);   /* "silu", ... */
nvfp4_status backend_from_name(const char *name, int32_t *backend);         /* "auto", "cpu", ... */
nvfp4_status dtype_from_name(const char *argument, const char *name, int32_t *dtype); /* of a result */
/* The parser of a scalar that is given by name; NULL: of another kind. */
typedef nvfp4_status name_parser(const char *name, int32_t *value);
name_parser *parser_of(scalar_kind kind);

/* The arguments of a call as a front end reads them. */
typedef struct front_call {
    operation_args args;
    int64_t sizes[OPERATION_MAX_SIZES];      /* scalars of SCALAR_SIZE */
    int32_t out_dtype;                       /* nvfp4_dtype; NVFP4_NONE: the caller names none */
    const void **lists[OPERATION_MAX_LISTS]; /* addresses of tensors that a caller gave in lists: free_lists */
    void *elements[OPERATION_MAX_LISTS];     /* what keeps these tensors, to be released; of the Python module alone */
} front_call;

/* The list of the operation that may stand for this tensor; -1: none. */
int32_t list_of(const operation *op, int32_t tensor);
/* A list of `count` tensors in place of one, whose elements follow in order: their addresses go to the arguments, and
 * the tensor becomes the first of them, with a dimension of size 1 before its own. Lists come in the order of the
 * table. */
nvfp4_status start_list(const operation *op, int32_t which, int64_t count, front_call *call);
nvfp4_status add_to_list(const operation *op, int32_t which, int64_t index, const nvfp4_tensor *t, front_call *call);
void free_lists(front_call *call);

/* The address at which a scalar of a call is stored. */
void *scalar_to_fill(const operation_scalar *scalar, front_call *call);

/* 1: the tensor is read by the function of this name, rather than made by it or passed as `out`. */
static inline int is_front_input(const operation *op, int32_t index) {
    return op->tensors[index].role != OUTPUT || op->given == RESULTS_GIVEN;
}

/* 1: the caller names the dtype of a result. */
int takes_out_dtype(const operation *op);

/* The name of the argument that a scalar is, or is a part of, for error messages. */
static inline const char *scalar_name(const operation *op, const operation_scalar *scalar) {
    return scalar->stands_for ? op->tensors[scalar->stands_for - 1].name : scalar->name;
}

#endif
