/* An operation of nvfp4.h as data: its tensors, its scalars and the shapes of its results. Checks, both bindings,
 * torch's schemas and fakes and the type stubs are made from these tables, so an operation's arguments are written down
 * once.
 *
 * The one order of arguments: tensors that are read, scalars, results. Where a result may be given or made anew, the
 * Python function takes `out` (a tuple for several), and torch has an operator of the same name with `_out`. */
#ifndef NVFP4_API_OPERATION_H
#define NVFP4_API_OPERATION_H

#include "api/call.h"
#include "nvfp4.h"

enum { OPERATION_MAX_TENSORS = 14, OPERATION_MAX_SIZES = 2, OPERATION_MAX_RESULTS = 3, OPERATION_MAX_LISTS = 2 };

/* The arguments of any operation. */
typedef union operation_args {
    nvfp4_call call;
#define NVFP4_OPERATION(name, args) nvfp4_##args##_args name;
#include "operations.def"
} operation_args;

typedef enum tensor_role { INPUT, OUTPUT, IN_OUT } tensor_role;

/* The dtypes that a tensor may have. */
typedef enum tensor_holds {
    HOLDS_VALUES,    /* e2m1: uint8 or float4_e2m1fn_x2 */
    HOLDS_VALUES_16, /* these, or float16 or bfloat16 */
    HOLDS_SCALES,    /* float8_e4m3fn or uint8 */
    HOLDS_FLOATS,    /* float16, bfloat16 or float32 */
    HOLDS_FLOAT32,
    HOLDS_INT32,
    HOLDS_INDICES, /* int32 or int64 */
    HOLDS_ANY,     /* the operation's check knows */
    TENSOR_HOLDS
} tensor_holds;

/* Their names, for error messages: "float8_e4m3fn or uint8". */
const char *dtypes_held(tensor_holds holds);

typedef enum tensor_allows {
    ALIAS_OF_OUTPUT = 1, /* it may be the view that is written (C in place) */
    READS_BY_CHECK = 2,  /* a rule is about its numbers, where they are in the host's memory */
} tensor_allows;

typedef struct operation_tensor {
    const char *name; /* of the argument, in error messages too */
    size_t offset;    /* of the nvfp4_tensor among the arguments */
    tensor_role role;
    tensor_holds holds;
    int32_t optional;
    uint32_t allows; /* tensor_allows */
} operation_tensor;

/* A tensor for which Python may give a list of equal tensors instead: their addresses go to the `const void *const *`
 * at this offset among the arguments, their number to the int32 at count_offset, and the tensor is the first one, with
 * a dimension of size 1 before its own. */
typedef struct operation_list {
    int32_t tensor;
    size_t offset, count_offset;
} operation_list;

typedef enum scalar_kind {
    SCALAR_FLOAT,       /* float */
    SCALAR_LAYOUT,      /* nvfp4_layout, by name */
    SCALAR_BLOCK_SCALE, /* nvfp4_block_scale, by name */
    SCALAR_BACKEND,     /* nvfp4_backend, by name */
    SCALAR_FLAGS,       /* uint32_t */
    SCALAR_ACTIVATION,  /* nvfp4_activation, by name */
    SCALAR_SIZE,        /* of a result; no argument of the C function: `offset` is its index among these */
    SCALAR_KINDS
} scalar_kind;

typedef struct operation_scalar {
    const char *name; /* in torch's schema and in Python, of an argument by position */
    scalar_kind kind;
    size_t offset;      /* among the arguments */
    int32_t stands_for; /* 1 + the index of the optional tensor that it replaces when the tensor is absent; 0: none.
                         * Python has one argument for the two, a number or a tensor */
    const char *schema_default; /* in torch's schema: for programs that were exported before it existed */
} operation_scalar;

/* The sizes of a result as text, which C reads once (bindings/result.c) and torch_ops.py evaluates, as Python. A text is
 * a list in brackets: a batch, or none, and one or two sizes.
 *
 *   *batch_of(t)             L where t is [L, rows, columns], else nothing
 *   rows_of(t), columns_of(t)    of a matrix, [rows, columns] or [L, rows, columns]
 *   count_of(t)              the elements of t, which has any shape; 1 where it is absent
 *   sorted_rows(rows, t)     the elements of `rows`; where it is absent, rows_of(t)
 *   rows_of_part(t), columns_of_part(t)   of a matrix of a stack, [E, rows, columns] or [E, P, rows, columns]
 *   rows_of_parts(t)         P * rows_of_part(t)
 *   group_blocks(n, ends)    the most 128-row blocks of n rows (common/group_blocks.h), in as many groups as `ends` has
 *                            elements: one where it is absent
 *   round_up(n, m)           the least multiple of m that is not less than n
 *   m * n, n // m            m is a number, n one of these; or the name of a scalar of kind SCALAR_SIZE, or a number
 */
typedef struct result_shape {
    const char *sizes;
    int32_t alignment; /* of its data, in bytes; 0: that of an element */
} result_shape;

enum { DTYPE_OF_FIRST = -1, DTYPE_OF_CALLER = -2 };

/* A result is on the device of the operation's first tensor. */
typedef struct operation_result {
    int32_t tensor;            /* its index among the operation's tensors */
    int32_t dtype;             /* nvfp4_dtype, DTYPE_OF_FIRST or DTYPE_OF_CALLER: the argument out_dtype */
    nvfp4_dtype default_dtype; /* DTYPE_OF_CALLER: if the caller names none, and the first tensor is not of 16 bits */
    result_shape shape;
    /* The shape if the uint32 at this offset among the arguments has a bit of flags_mask; 0: there is one shape. */
    result_shape flag_shape;
    size_t flags_offset;
    uint32_t flags_mask;
} operation_result;

typedef enum results_given { RESULTS_NEW, RESULTS_NEW_OR_GIVEN, RESULTS_GIVEN } results_given;

typedef struct operation operation;

/* A call's arguments with the names that its operation gives them. */
typedef struct checked_call {
    const operation *op;
    const void *args;
} checked_call;

struct operation {
    const char *name;
    int32_t number; /* of its row in operations.def */
    size_t args_bytes;
    size_t min_bytes; /* of the first version of the arguments */
    void (*defaults)(operation_args *args);
    const operation_tensor *tensors; /* the first is required and decides on which device the call runs */
    const operation_scalar *scalars;
    const operation_result *results;
    const operation_list *lists;
    int32_t tensor_count, scalar_count, result_count, list_count;
    results_given given;
    /* Turns tensors of another shape into those that the arguments of this type describe; NULL: nothing to do. */
    nvfp4_status (*adapt)(operation_args *args);
    /* The planners of a row op, by the place where it runs; NULL: it does not run there. */
    const row_op_planner *planners[ROW_OP_TARGETS];
    /* The rules that the table does not say, and what is left of the call once they hold. */
    nvfp4_status (*check)(const checked_call *c, prepared_call *call);
    /* Chooses how to run a checked call. */
    nvfp4_status (*plan)(nvfp4_context *context, const checked_call *c, prepared_call *call);
    /* Takes the addresses of results, which a caller may allocate once the call is planned. */
    void (*bind)(const checked_call *c, prepared_call *call);
    /* Enqueues or computes a planned call that is not empty. */
    nvfp4_status (*run)(nvfp4_context *context, const checked_call *c, const prepared_call *call);
};

static inline const nvfp4_tensor *tensor_at(const operation *op, int32_t index, const void *args) {
    return (const nvfp4_tensor *)((const char *)args + op->tensors[index].offset);
}

static inline nvfp4_tensor *tensor_to_fill(const operation *op, int32_t index, operation_args *args) {
    return (nvfp4_tensor *)((char *)args + op->tensors[index].offset);
}

#define NVFP4_OPERATION(name, args)                                                                                    \
    extern const operation operation_##name;                                                                           \
    void default_##name(operation_args *args);
#include "operations.def"
enum {
#define NVFP4_OPERATION(name, args) OPERATION_##name,
#include "operations.def"
    OPERATION_COUNT
};

/* Members of a row of the table with those that follow from them: `.name = OPERATION(gemm)`, `.tensors = TENSORS(t)` of
 * an array t, and so on. */
#define COUNT(array) (int32_t)(sizeof array / sizeof *array)
#define OPERATION(name_)                                                                                               \
    #name_, .number = OPERATION_##name_, .args_bytes = sizeof((operation_args *)NULL)->name_,                          \
        .min_bytes = sizeof((operation_args *)NULL)->name_, .defaults = default_##name_
#define TENSORS(array) array, .tensor_count = COUNT(array)
#define SCALARS(array) array, .scalar_count = COUNT(array)
#define RESULTS(array) array, .result_count = COUNT(array)
#define LISTS(array)   array, .list_count = COUNT(array)

/* Checks a call by its table and its own rules. */
nvfp4_status operation_check(const checked_call *c, prepared_call *call);
/* Checks a call, and plans it. Results may be without data: they then describe
 * contiguous tensors that the caller has still to allocate. Nothing is written, nothing launched. */
nvfp4_status operation_prepare(nvfp4_context *context, const checked_call *c, prepared_call *call);
/* Runs a prepared call, whose arguments may have got results, stream, threads and workspace since then. */
nvfp4_status operation_run(nvfp4_context *context, const checked_call *c, prepared_call *call);
/* Prepares and runs a call: the body of each function of nvfp4.h. Arguments of an older program are completed. */
nvfp4_status operation_call(nvfp4_context *context, const operation *op, const void *args);
/* Completes the args of an older program in `own`, and clears what absent tensors hold; returns these, or args
 * themselves. NULL with an error message if their size is wrong. */
const void *complete_args(const operation *op, const void *args, operation_args *own);

#endif
