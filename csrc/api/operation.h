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

enum { OPERATION_MAX_TENSORS = 12, OPERATION_MAX_SIZES = 2, OPERATION_MAX_RESULTS = 3, OPERATION_MAX_LISTS = 2 };

/* The arguments of any operation. */
typedef union operation_args {
    nvfp4_call call;
    nvfp4_gemm_args gemm;
    nvfp4_grouped_gemm_args grouped_gemm;
    nvfp4_quantize_args quantize;
    nvfp4_weighted_quantize_args weighted_quantize;
    nvfp4_gptq_block_args gptq_block;
    nvfp4_grouped_quantize_args grouped_quantize;
    nvfp4_quantize_gemm_args quantize_gemm;
    nvfp4_rms_norm_quantize_args rms_norm_quantize;
    nvfp4_amax_scale_args amax_scale;
    nvfp4_swizzle_args swizzle;
    nvfp4_gated_args gated;
    nvfp4_gated_quantize_args gated_quantize;
    nvfp4_gated_grouped_gemm_args gated_grouped_gemm;
    nvfp4_moe_route_args moe_route;
    nvfp4_moe_combine_args moe_combine;
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
    SCALAR_SIZE,        /* of a result; no argument of the C function: `offset` is its index in result_sizes */
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

/* One size of a result: (size of a tensor or scalar) * times / over, rounded up to a multiple of round_up. */
typedef struct result_size {
    enum {
        SIZE_ROWS,
        SIZE_COLUMNS,
        SIZE_SCALAR,
        SIZE_ONE,
        SIZE_COUNT,      /* the elements of a tensor, of any shape; 1 of an absent one */
        SIZE_STACKED,    /* the rows of a matrix of a stack, [E, rows, columns] or [E, P, rows, columns]: P * rows */
        SIZE_STACK_ROWS, /* its rows, however many parts there are */
        SIZE_STACK_COLUMNS,
    } of;
    int32_t index; /* of the tensor among the operation's, or of the scalar in result_sizes */
    int32_t times, over, round_up;
    int32_t or_rows; /* where the tensor is absent: the rows of tensor or_rows - 1 instead. 0: the tensor is required */
    int32_t ends;    /* in place of that many rows: the most 128-row blocks that they need (common/group_blocks.h) in as
                      * many groups as tensor ends - 1 has elements, absent one. 0: none */
} result_size;

typedef struct result_shape {
    result_size rows, columns;
    int32_t alignment; /* of its data, in bytes; 0: that of an element */
} result_shape;

typedef enum result_rank {
    RANK_MATRIX,  /* [rows, columns], or [L, rows, columns] as the tensor `like`, which has 2 or 3 dimensions */
    RANK_BATCHED, /* these, by whether `like`, of any shape, has 3 dimensions */
    RANK_VECTOR,  /* [columns] */
} result_rank;

enum { DTYPE_OF_LIKE = -1, DTYPE_OF_CALLER = -2 };

typedef struct operation_result {
    int32_t tensor; /* its index among the operation's tensors */
    int32_t like;   /* the index of the tensor whose batches it has, and whose device */
    result_rank rank;
    int32_t dtype;             /* nvfp4_dtype, DTYPE_OF_LIKE or DTYPE_OF_CALLER: the argument out_dtype */
    nvfp4_dtype default_dtype; /* DTYPE_OF_CALLER: if the caller names none, and `like` is not float16 or bfloat16 */
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
    size_t args_bytes;
    size_t min_bytes; /* of the first version of the arguments */
    void (*defaults)(operation_args *args);
    const operation_tensor *tensors; /* the first is required and decides on which device the call runs */
    const operation_scalar *scalars;
    const operation_result *results;
    int32_t tensor_count, scalar_count, result_count;
    operation_list lists[OPERATION_MAX_LISTS]; /* list_count of them */
    int32_t list_count;
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

extern const operation operation_gemm, operation_grouped_gemm, operation_quantize, operation_dequantize,
    operation_rms_norm_quantize, operation_silu_mul_quantize, operation_amax_scale, operation_swizzle,
    operation_unswizzle, operation_grouped_quantize, operation_gated, operation_gated_quantize, operation_moe_route,
    operation_moe_combine, operation_quantize_gemm, operation_gated_grouped_gemm, operation_weighted_quantize,
    operation_gptq_block;

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
