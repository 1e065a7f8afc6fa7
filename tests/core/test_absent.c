/* Calls of every operation whose absent tensors hold garbage: the same status, message and results as with absent
 * tensors that are zero, and nothing read or written outside of the tensors (run it under AddressSanitizer). Tensors
 * have random ranks, shapes, types and strides, and often those of a call that runs. Arguments: seed, and calls to make
 * divided by 8500. Prints "N calls, N ran". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/operation.h"
#include "api/rules.h"
#include "draw.h"

enum { ARENA = 1 << 16, CALLS = 8500, MOST = 48 };

static const operation *const operations[] = {
#define NVFP4_OPERATION(name, args) &operation_##name,
#include "operations.def"
};

static unsigned char *arenas[OPERATION_MAX_TENSORS], *before[OPERATION_MAX_TENSORS], *after[OPERATION_MAX_TENSORS];

static void garbage(void *to, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) ((unsigned char *)to)[i] = (unsigned char)draw();
}

/* Rows and columns that the tensors of a call have in common, so that some calls run. */
typedef struct sizes {
    int64_t rows, k, groups;
} sizes;

static nvfp4_tensor draw_tensor(const operation_tensor *row, sizes s, void *data) {
    static const nvfp4_dtype usual[TENSOR_HOLDS] = {
        [HOLDS_VALUES] = NVFP4_UINT8,  [HOLDS_VALUES_16] = NVFP4_BF16, [HOLDS_SCALES] = NVFP4_E4M3,
        [HOLDS_FLOATS] = NVFP4_FP32,   [HOLDS_FLOAT32] = NVFP4_FP32,   [HOLDS_INT32] = NVFP4_INT32,
        [HOLDS_INDICES] = NVFP4_INT32, [HOLDS_ANY] = NVFP4_FP32,
    };
    nvfp4_tensor t = {.data = data, .dtype = usual[row->holds], .device = NVFP4_HOST};
    if (below(8) == 0) t.dtype = (nvfp4_dtype)(1 + below(NVFP4_INT64));
    const int64_t common[] = {s.rows, s.k, s.k / 2, s.k / 16, s.groups, 1, below(MOST)};
    const int64_t last[TENSOR_HOLDS] = {
        [HOLDS_VALUES] = s.k / 2, [HOLDS_VALUES_16] = s.k, [HOLDS_FLOATS] = s.k, [HOLDS_FLOAT32] = 1,
        [HOLDS_INT32] = s.groups, [HOLDS_INDICES] = 2,     [HOLDS_ANY] = s.k,
    };
    if (below(8)) { /* as an operation takes it */
        t.ndim = row->holds == HOLDS_SCALES || row->holds == HOLDS_INT32 || row->holds == HOLDS_FLOAT32 ? 1 : 2;
        t.shape[0] = row->holds == HOLDS_SCALES ? swizzled_bytes(s.rows, s.k / 16) : s.rows;
        t.shape[t.ndim - 1] = t.ndim == 1 && row->holds == HOLDS_SCALES ? t.shape[0] : last[row->holds];
        if (t.dtype == NVFP4_UINT8 && row->holds == HOLDS_VALUES_16) t.shape[1] = s.k / 2;
        t.stride[0] = t.ndim == 2 ? t.shape[1] : 1, t.stride[t.ndim - 1] = 1;
        return t;
    }
    t.ndim = (int32_t)below(NVFP4_MAX_DIMS + 3) - 1;
    int64_t step = 1;
    for (int i = (t.ndim < NVFP4_MAX_DIMS ? t.ndim : NVFP4_MAX_DIMS) - 1; i >= 0; i--) {
        t.shape[i] = common[below(7)];
        t.stride[i] = step;
        step *= t.shape[i];
    }
    if (step > ARENA / 8) t.ndim = 1, t.shape[0] = s.groups, t.stride[0] = 1;
    return t;
}

static void draw_call(const operation *op, operation_args *args) {
    const int64_t k = 16 * (1 + below(3));
    const sizes s = {below(2) ? k : 1 + below(MOST), k, 1 + below(5)};
    op->defaults(args);
    for (int32_t i = 0; i < op->tensor_count; i++) {
        nvfp4_tensor *t = tensor_to_fill(op, i, args);
        if (below(op->tensors[i].optional ? 2 : 16))
            *t = op->tensors[i].optional && below(4) ? (nvfp4_tensor){.dtype = NVFP4_NONE}
                                                     : draw_tensor(&op->tensors[i], s, arenas[i]);
    }
    args->call.threads = 1 + (int32_t)below(2);
}

static nvfp4_status run(nvfp4_context *context, const operation *op, const operation_args *args, char *message) {
    nvfp4_status status = operation_call(context, op, args);
    snprintf(message, 512, "%s", status ? nvfp4_last_error() : "");
    return status;
}

static void copy_arenas(const operation *op, unsigned char **to, unsigned char **from) {
    for (int i = 0; i < op->tensor_count; i++) memcpy(to[i], from[i], ARENA);
}

int main(int argc, char **argv) {
    const long calls = CALLS * (argc > 2 ? atol(argv[2]) : 1);
    long ran = 0, failed = 0;
    nvfp4_context *context;
    state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    if (nvfp4_create(&context)) return 1;
    for (int i = 0; i < OPERATION_MAX_TENSORS; i++) {
        arenas[i] = aligned_alloc(64, ARENA), before[i] = malloc(ARENA), after[i] = malloc(ARENA);
        if (!arenas[i] || !before[i] || !after[i]) return 1;
        garbage(before[i], ARENA);
        memcpy(arenas[i], before[i], ARENA);
    }
    for (long call = 0; call < calls; call++) {
        const operation *op = operations[below(OPERATION_COUNT)];
        operation_args clean, dirty;
        char expected[512], found[512];
        draw_call(op, &clean);
        dirty = clean;
        for (int32_t i = 0; i < op->tensor_count; i++) {
            nvfp4_tensor *t = tensor_to_fill(op, i, &dirty);
            if (!absent(t)) continue;
            garbage(t, sizeof *t);
            if (below(2)) t->ndim = 1 + (int32_t)below(NVFP4_MAX_DIMS); /* which rules may read as sizes */
            t->dtype = NVFP4_NONE;
        }
        const nvfp4_status wanted = run(context, op, &clean, expected);
        if (!wanted) copy_arenas(op, after, arenas), copy_arenas(op, arenas, before);
        int same = run(context, op, &dirty, found) == wanted && !strcmp(expected, found);
        for (int i = 0; i < op->tensor_count && same && !wanted; i++) same = !memcmp(after[i], arenas[i], ARENA);
        if (!wanted) copy_arenas(op, arenas, before);
        ran += wanted == NVFP4_OK;
        failed += !same;
        if (!same) printf("FAILED: %s: \"%s\", with garbage \"%s\"\n", op->name, expected, found);
    }
    printf("%ld calls, %ld ran\n", calls, ran);
    nvfp4_destroy(context);
    for (int i = 0; i < OPERATION_MAX_TENSORS; i++) free(arenas[i]), free(before[i]), free(after[i]);
    return failed || ran * 50 < calls;
}
