/* Every allocation of the core fails once: calls answer NVFP4_OUT_OF_MEMORY with a message and write nothing, what was
 * allocated before is freed once when the thread ends, and the next thread computes the same product. Linked with
 * -Wl,--wrap for each allocating function of the core. FAKE_CC in the environment: on a libcuda that runs nothing
 * (NVFP4_LIBCUDA), the products are launched too. Prints how many allocations failed. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "matrix.h"

static _Thread_local int left; /* allocations of this thread until one fails; 0: none fails */
static _Thread_local int failures;

static int fails(void) {
    if (!left || --left) return 0;
    failures++;
    return 1;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);

void *__wrap_malloc(size_t size) {
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size) {
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size) {
    return fails() ? NULL : __real_realloc(memory, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    return fails() ? NULL : __real_aligned_alloc(alignment, size);
}

enum { M = 40, N = 72, K = 512, MAX_OUT = M * N };
/* The products on the CPU: of groups by the type of a (NN: A . B), then of few rows and of many. */
typedef enum product { E2M1, FP16, FP16_NN, FEW, MANY, PRODUCTS } product;

_Alignas(16) static uint8_t a[M * K / 2], b[N * K / 2], scale_a[M * K / 16], scale_b[N * K / 16];
_Alignas(16) static uint16_t a16[M * K];
static float expected[PRODUCTS][MAX_OUT]; /* of the first thread, in which nothing fails */
static int gpu;

typedef struct run {
    int first;                  /* product: it allocates scratch space, and later ones find that of earlier ones */
    int fail_at, failed, wrong; /* wrong: the line of the rule that does not hold */
} run;

#define EXPECT(holds)                                                                                                  \
    if (!(holds) && !r->wrong) r->wrong = __LINE__

/* Whether the call succeeded. A failure must be the one that was made. */
static int succeeded(run *r, nvfp4_status status) {
    EXPECT(status == NVFP4_OK ? !failures : status == NVFP4_OUT_OF_MEMORY && failures && *nvfp4_last_error());
    return status == NVFP4_OK;
}

static int multiply(run *r, nvfp4_context *context, int m, int32_t backend, float *result) {
    static _Thread_local float out[MAX_OUT], before[MAX_OUT];
    nvfp4_gemm_args args = NVFP4_GEMM_ARGS;
    args.a = matrix(a, NVFP4_UINT8, m, K / 2), args.scale_a = matrix(scale_a, NVFP4_E4M3, m, K / 16);
    args.b = matrix(b, NVFP4_UINT8, N, K / 2), args.scale_b = matrix(scale_b, NVFP4_E4M3, N, K / 16);
    args.out = matrix(out, NVFP4_FP32, m, N);
    args.scale_layout = NVFP4_LINEAR, args.backend = backend, args.call.threads = 2;
    memset(out, 0x77, sizeof out);
    memcpy(before, out, sizeof out);
    if (!succeeded(r, nvfp4_gemm(context, &args))) {
        EXPECT(memcmp(out, before, sizeof out) == 0);
        return 0;
    }
    if (!result) return 1; /* launched, by a libcuda that runs nothing */
    if (!r->fail_at) memcpy(result, out, sizeof out);
    EXPECT(memcmp(out, result, sizeof out) == 0);
    return 1;
}

/* b as the matrices of three groups, one of few rows and two of many, each of which needs more memory. */
static int multiply_groups(run *r, nvfp4_context *context, product kind, float *result) {
    enum { GROUPS = 3, COLUMNS = N / GROUPS, NN_COLUMNS = 16 };
    static _Thread_local float out[M * COLUMNS], before[M * COLUMNS];
    static int32_t ends[GROUPS] = {2, 11, M}, rows[M];
    const int32_t b_rows = kind == FP16_NN ? K : COLUMNS, b_columns = kind == FP16_NN ? NN_COLUMNS : K;
    nvfp4_grouped_gemm_args args = NVFP4_GROUPED_GEMM_ARGS;
    nvfp4_tensor *const stacks[] = {&args.b, &args.scale_b}, *const vectors[] = {&args.ends, &args.rows};
    args.a = kind == E2M1 ? matrix(a, NVFP4_UINT8, M, K / 2) : matrix(a16, NVFP4_FP16, M, K);
    if (kind == E2M1) args.scale_a = matrix(scale_a, NVFP4_E4M3, M, K / 16);
    if (kind == FP16_NN) args.flags |= NVFP4_NO_TRANSPOSE_B;
    args.out = matrix(out, NVFP4_FP32, M, kind == FP16_NN ? NN_COLUMNS : COLUMNS);
    args.b = matrix(b, NVFP4_UINT8, b_rows, b_columns / 2);
    args.scale_b = matrix(scale_b, NVFP4_E4M3, b_rows, b_columns / 16);
    args.ends = matrix(ends, NVFP4_INT32, 1, GROUPS), args.rows = matrix(rows, NVFP4_INT32, 1, M);
    for (int i = 0; i < 2; i++) {
        nvfp4_tensor *t = stacks[i], *x = vectors[i];
        t->ndim = 3, t->shape[2] = t->shape[1], t->shape[1] = b_rows, t->shape[0] = GROUPS;
        t->stride[0] = b_rows * t->shape[2], t->stride[1] = t->shape[2], t->stride[2] = 1;
        x->ndim = 1, x->shape[0] = x->shape[1], x->stride[0] = 1;
    }
    args.scale_layout = NVFP4_LINEAR, args.call.threads = 2;
    memset(out, 0x77, sizeof out);
    memcpy(before, out, sizeof out);
    if (!succeeded(r, nvfp4_grouped_gemm(context, &args))) {
        EXPECT(memcmp(out, before, sizeof out) == 0);
        return 0;
    }
    if (!r->fail_at) memcpy(result, out, sizeof out);
    EXPECT(memcmp(out, result, sizeof out) == 0);
    if (kind == FP16_NN) return 1; /* an activation follows products with the transpose */
    nvfp4_gated_grouped_gemm_args expert = NVFP4_GATED_GROUPED_GEMM_ARGS;
    expert.grouped = args, expert.grouped.call.size = sizeof expert, expert.activation = NVFP4_RELU2;
    if (!succeeded(r, nvfp4_gated_grouped_gemm(context, &expert))) {
        EXPECT(memcmp(out, result, sizeof out) == 0);
        return 0;
    }
    for (int i = 0; i < M * COLUMNS; i++) EXPECT(out[i] == (result[i] > 0 ? result[i] * result[i] : 0));
    return 1;
}

/* Ends at the first failure: what the thread then holds is freed when it ends. */
static void *run_calls(void *argument) {
    run *r = argument;
    nvfp4_context *context = NULL;
    nvfp4_plan plan;
    nvfp4_shape shape = NVFP4_SHAPE;
    shape.device = 0, shape.backend = NVFP4_BACKEND_SM80, shape.m = M, shape.n = N, shape.k = K;
    left = r->fail_at, failures = 0;
    int goes_on = succeeded(r, nvfp4_create(&context));
    for (int i = 0; goes_on && i < PRODUCTS; i++) {
        const product kind = (product)((r->first + i) % PRODUCTS);
        goes_on = kind < FEW ? multiply_groups(r, context, kind, expected[kind])
                             : multiply(r, context, kind == FEW ? 2 : M, NVFP4_BACKEND_CPU, expected[kind]);
    }
    if (gpu && r->first == 0) {
        goes_on = goes_on && multiply(r, context, M, NVFP4_BACKEND_SM80, NULL);
        goes_on = goes_on && succeeded(r, nvfp4_plan_shape(context, &shape, &plan));
        goes_on = goes_on && succeeded(r, nvfp4_override_plan(context, &shape, &plan));
    }
    r->failed = failures;
    EXPECT(goes_on != (failures > 0));
    nvfp4_destroy(context);
    return NULL;
}

/* How many allocations failed, each in a run of its own that begins with product `first`. */
static int fail_each(int first, int *wrong) {
    for (int at = 0;; at++) {
        run r = {.first = first, .fail_at = at};
        pthread_t thread;
        *wrong = pthread_create(&thread, NULL, run_calls, &r) || pthread_join(thread, NULL) || r.wrong;
        if (*wrong) printf("line %d: not so where allocation %d fails, product %d first\n", r.wrong, at, first);
        if (*wrong || (at && !r.failed)) return at - 1;
    }
}

int main(void) {
    uint64_t state = 1;
    for (size_t i = 0; i < sizeof a + sizeof b; i++) {
        state = state * 6364136223846793005 + 1442695040888963407;
        *(i < sizeof a ? &a[i] : &b[i - sizeof a]) = (uint8_t)(state >> 56);
    }
    for (int i = 0; i < M * K; i++) a16[i] = 0x3C00;                              /* 1 */
    memset(scale_a, 0x38, sizeof scale_a), memset(scale_b, 0x40, sizeof scale_b); /* 1 and 2 */
    gpu = getenv("FAKE_CC") != NULL;
    int failed = 0, wrong = 0;
    for (int first = 0; first < PRODUCTS && !wrong; first++) failed += fail_each(first, &wrong);
    printf("%d allocations failed\n", failed);
    return wrong || failed < PRODUCTS * 10 + (gpu ? 2 : 0);
}
