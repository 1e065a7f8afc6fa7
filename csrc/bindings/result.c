/* Shapes of results: texts of the table are read once, and evaluated in each call that makes results. */
#include "bindings/result.h"

#include <stdlib.h>
#include <string.h>

#include "api/rules.h"
#include "common/error.h"
#include "common/group_blocks.h"
#include "common/math.h"

/* ---- reading a text ---- */

typedef struct reader {
    const operation *op;
    const char *at;
    int failed;
} reader;

/* 1: the text continues with this, which is then behind. */
static int take(reader *r, const char *expected) {
    const size_t length = strlen(expected);
    if (strncmp(r->at, expected, length) != 0) return 0;
    r->at += length;
    return 1;
}

static void require(reader *r, const char *expected) {
    if (!r->failed && !take(r, expected)) r->failed = 1;
}

/* A number of at most 9 digits; 0: there is none. */
static int32_t take_number(reader *r) {
    int32_t number = 0;
    for (int digits = 0; digits < 9 && *r->at >= '0' && *r->at <= '9'; digits++) number = 10 * number + *r->at++ - '0';
    return number;
}

static int32_t require_number(reader *r) {
    const int32_t number = take_number(r);
    if (number == 0) r->failed = 1;
    return number > 0 ? number : 1;
}

/* 1: a name follows, which is then behind. */
static int take_name(reader *r, const char *name) {
    static const char in_names[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    if (strspn(r->at, in_names) != strlen(name)) return 0;
    return take(r, name);
}

static int32_t require_tensor(reader *r) {
    for (int32_t i = 0; i < r->op->tensor_count; i++)
        if (take_name(r, r->op->tensors[i].name)) return i;
    r->failed = 1;
    return 0;
}

static void read_scalar(reader *r, result_size *size) {
    size->of = SIZE_SCALAR;
    for (int32_t i = 0; i < r->op->scalar_count; i++)
        if (r->op->scalars[i].kind == SCALAR_SIZE && take_name(r, r->op->scalars[i].name)) {
            size->index = (int32_t)r->op->scalars[i].offset;
            return;
        }
    r->failed = 1;
}

/* A function of tensors, or a scalar. */
static void read_term(reader *r, result_size *size) {
    static const char *const functions[] = {[SIZE_ROWS] = "rows_of",
                                            [SIZE_COLUMNS] = "columns_of",
                                            [SIZE_COUNT] = "count_of",
                                            [SIZE_SORTED_ROWS] = "sorted_rows",
                                            [SIZE_PART_ROWS] = "rows_of_part",
                                            [SIZE_PART_COLUMNS] = "columns_of_part",
                                            [SIZE_PARTS_ROWS] = "rows_of_parts"};
    for (int of = SIZE_ROWS; of <= SIZE_PARTS_ROWS; of++) {
        if (!take_name(r, functions[of])) continue;
        size->of = of;
        require(r, "(");
        size->index = require_tensor(r);
        if (of == SIZE_SORTED_ROWS) {
            require(r, ", ");
            size->rows_of = require_tensor(r);
        }
        require(r, ")");
        return;
    }
    read_scalar(r, size);
}

static result_size read_size(reader *r) {
    result_size size = {.over = 1, .round_up = 1};
    const int is_rounded = take(r, "round_up(");
    const int32_t number = take_number(r);
    size.times = number ? number : 1;
    if (number == 0 || take(r, " * ")) {
        const int has_blocks = take(r, "group_blocks(");
        read_term(r, &size);
        if (has_blocks) {
            require(r, ", ");
            size.ends = 1 + require_tensor(r);
            require(r, ")");
        }
    }
    if (take(r, " // ")) size.over = require_number(r);
    if (is_rounded) {
        require(r, ", ");
        size.round_up = require_number(r);
        require(r, ")");
    }
    return size;
}

nvfp4_status parse_sizes(const operation *op, const char *text, result_sizes *sizes) {
    reader r = {op, text, 0};
    *sizes = (result_sizes){.count = 0};
    require(&r, "[");
    if (take(&r, "*batch_of(")) {
        sizes->batch = 1 + require_tensor(&r);
        require(&r, "), ");
    }
    do sizes->size[sizes->count++] = read_size(&r);
    while (sizes->count < RESULT_MAX_SIZES && !r.failed && take(&r, ", "));
    require(&r, "]");
    if (!r.failed && *r.at == '\0') return NVFP4_OK;
    return fail(NVFP4_INVALID, "nvfp4: the table has '%s' for sizes of a result of %s, which is wrong at '%s'", text,
                op->name, r.at);
}

/* The sizes of every result, by the number of its operation: those of its shape, and those of its flag_shape. */
static result_sizes all_sizes[OPERATION_COUNT][OPERATION_MAX_RESULTS][2];

nvfp4_status parse_results(void) {
    nvfp4_status status = NVFP4_OK;
    for (int i = 0; i < FRONT_OPERATION_COUNT; i++) {
        const operation *op = front_operations[i];
        for (int32_t r = 0; r < op->result_count && !status; r++) {
            const operation_result *result = &op->results[r];
            result_sizes *sizes = all_sizes[op->number][r];
            status = parse_sizes(op, result->shape.sizes, &sizes[0]);
            if (!status && result->flags_mask) status = parse_sizes(op, result->flag_shape.sizes, &sizes[1]);
        }
    }
    return status;
}

/* ---- sizes of a call ---- */

/* The sizes of a tensor, before anything of that size is allocated. */
static nvfp4_status check_dimensions(const char *name, const nvfp4_tensor *t) {
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] < 0 || t->shape[i] > INT32_MAX)
            return REJECT(name, ("dimension %d is %lld", i, (long long)t->shape[i]),
                          ("must be between 0 and %d", INT32_MAX));
    return NVFP4_OK;
}

/* A tensor whose rows and columns give sizes of a result has two or three dimensions. */
static nvfp4_status check_rank(const char *name, const nvfp4_tensor *t) {
    if (absent(t)) return REJECT(name, ("is missing"), ("must be a tensor"));
    if (t->ndim != 2 && t->ndim != 3)
        return REJECT(name, ("has %d dimensions", t->ndim), ("must have 2, or 3 with a leading batch"));
    return check_dimensions(name, t);
}

/* A stack has a size for what it stacks, and at least that of a matrix. */
static nvfp4_status check_stack(const char *name, const nvfp4_tensor *t) {
    if (absent(t)) return REJECT(name, ("is missing"), ("must be a tensor"));
    if (t->ndim == 3 || t->ndim == 4) return NVFP4_OK;
    return REJECT(name, ("has %d dimensions", t->ndim), ("must have 3, or 4 with parts"));
}

/* The elements of a tensor, as large as they can be counted; 1 of an absent one. */
static int64_t counted(const nvfp4_tensor *t) {
    int64_t count = 1;
    for (int i = 0; i < t->ndim && !absent(t); i++)
        if (__builtin_mul_overflow(count, t->shape[i], &count)) count = INT64_MAX;
    return count;
}

static nvfp4_status size_of_tensor(const operation *op, const front_call *call, const result_size *size,
                                   int64_t *value) {
    int32_t index = size->index, of = size->of;
    if (of == SIZE_SORTED_ROWS) {
        const int is_absent = absent(tensor_at(op, index, &call->args));
        of = is_absent ? SIZE_ROWS : SIZE_COUNT;
        if (is_absent) index = size->rows_of;
    }
    const nvfp4_tensor *t = tensor_at(op, index, &call->args);
    const char *name = op->tensors[index].name;
    if (of == SIZE_COUNT) {
        *value = counted(t);
        return NVFP4_OK;
    }
    nvfp4_status status = of >= SIZE_PART_ROWS ? check_stack(name, t) : check_rank(name, t);
    if (status) return status;
    *value = t->shape[t->ndim - (of == SIZE_COLUMNS || of == SIZE_PART_COLUMNS ? 1 : 2)];
    if (of == SIZE_PARTS_ROWS && t->ndim == 4 && __builtin_mul_overflow(*value, t->shape[1], value)) *value = INT64_MAX;
    return NVFP4_OK;
}

static nvfp4_status find_size(const operation *op, const front_call *call, const result_size *size, int64_t *value) {
    int64_t of = 1;
    if (size->of == SIZE_SCALAR) of = call->sizes[size->index];
    if (size->of > SIZE_SCALAR) {
        nvfp4_status status = size_of_tensor(op, call, size, &of);
        if (status) return status;
    }
    if (size->ends) of = max_group_tiles(of, counted(tensor_at(op, size->ends - 1, &call->args)), SCALE_BLOCK_ROWS);
    if (__builtin_mul_overflow(of, (int64_t)size->times, &of)) of = INT64_MAX;
    if (size->over > 1) of /= size->over; /* a division takes longer than the rest of this function */
    *value = size->round_up > 1 ? ceil_div(of, size->round_up) * size->round_up : of;
    if (*value >= 0 && *value <= INT32_MAX) return NVFP4_OK;
    const char *name = size->of == SIZE_SCALAR ? op->name : op->tensors[size->index].name;
    return REJECT(name, ("gives a result with a dimension of %lld", (long long)*value),
                  ("must be at most %d", INT32_MAX));
}

/* ---- results ---- */

static int has_flag_shape(const operation_result *result, const front_call *call) {
    const uint32_t condition = *(const uint32_t *)((const char *)&call->args + result->flags_offset);
    return (condition & result->flags_mask) != 0;
}

static int32_t dtype_of_result(const operation_result *result, const nvfp4_tensor *first, int32_t out_dtype) {
    if (result->dtype == DTYPE_OF_FIRST) return (int32_t)first->dtype;
    if (result->dtype != DTYPE_OF_CALLER) return result->dtype;
    if (out_dtype != NVFP4_NONE) return out_dtype;
    return first->dtype == NVFP4_FP16 || first->dtype == NVFP4_BF16 ? (int32_t)first->dtype
                                                                    : (int32_t)result->default_dtype;
}

nvfp4_status describe_result(const operation *op, int32_t which, front_call *call) {
    const operation_result *result = &op->results[which];
    const result_sizes *sizes = &all_sizes[op->number][which][has_flag_shape(result, call)];
    const nvfp4_tensor *first = tensor_at(op, 0, &call->args);
    int64_t shape[1 + RESULT_MAX_SIZES];
    int ndim = 0;
    nvfp4_status status = NVFP4_OK;
    if (absent(first)) return REJECT(op->tensors[0].name, ("is missing"), ("must be a tensor"));
    if (sizes->batch) {
        const nvfp4_tensor *t = tensor_at(op, sizes->batch - 1, &call->args);
        if (t->ndim == 3) {
            status = check_dimensions(op->tensors[sizes->batch - 1].name, t);
            shape[ndim++] = t->shape[0];
        }
    }
    for (int32_t i = 0; i < sizes->count && !status; i++) status = find_size(op, call, &sizes->size[i], &shape[ndim++]);
    if (status) return status;
    *tensor_to_fill(op, result->tensor, &call->args) =
        contiguous_tensor(dtype_of_result(result, first, call->out_dtype), first->device, ndim, shape);
    return NVFP4_OK;
}

nvfp4_status check_new_result(const operation *op, int32_t which, const front_call *call) {
    const operation_result *result = &op->results[which];
    const nvfp4_tensor *t = tensor_at(op, result->tensor, &call->args);
    const int32_t fixed = (has_flag_shape(result, call) ? &result->flag_shape : &result->shape)->alignment;
    const int64_t bytes = fixed ? fixed : dtype_bytes((int32_t)t->dtype);
    if (element_count(t) == 0 || ((uintptr_t)t->data & (uintptr_t)(bytes - 1)) == 0) return NVFP4_OK;
    return REJECT(op->tensors[result->tensor].name, ("was allocated at address %p", t->data),
                  ("must be aligned to %lld bytes", (long long)bytes));
}
