/* Arguments of the public C interface that no front end passes on: undefined bits of `flags`, sizes past 2^31 and
 * quantize's data of another shape are rejected, and the library can tell how a product runs without a GPU. The
 * planners learn that B is constant. Prints "N passed, N failed". */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/operation.h"
#include "matrix.h"

static int passed, failed;

static void expect(int holds, const char *rule) {
    passed += holds != 0;
    failed += holds == 0;
    if (!holds) printf("FAILED: %s (%s)\n", rule, nvfp4_last_error());
}

static void expect_error(nvfp4_status status, const char *message) {
    expect(status == NVFP4_INVALID && !strcmp(nvfp4_last_error(), message), message);
}

/* One of M, N, K, L at a time is the most that there may be, more, or less than nothing. */
static void check_shapes(nvfp4_context *context) {
    const int64_t more = (int64_t)1 << 31;
    for (int i = 0; i < 4; i++) {
        const int64_t most = i == 2 ? more - 16 : more - 1, sizes[] = {0, most, more, -16};
        for (int j = 0; j < 4; j++) {
            nvfp4_plan plan;
            char message[160];
            int64_t shape[4] = {2, 3, 32, 5};
            shape[i] = sizes[j];
            snprintf(message, sizeof message,
                     "shape: is %lld x %lld x %lld x %lld; M, N, K, L must be between 0 and 2147483647, and K a "
                     "multiple of 16",
                     (long long)shape[0], (long long)shape[1], (long long)shape[2], (long long)shape[3]);
            nvfp4_shape asked = NVFP4_SHAPE;
            expect(asked.size == sizeof asked && asked.device == NVFP4_HOST && asked.l == 1, "a shape begins so");
            asked.m = shape[0], asked.n = shape[1], asked.k = shape[2], asked.l = shape[3];
            const nvfp4_status status = nvfp4_plan_shape(context, &asked, &plan);
            expect(j < 2 ? status == NVFP4_OK : status == NVFP4_INVALID && !strcmp(nvfp4_last_error(), message),
                   "sizes of a plan have 31 bits");
        }
    }
    nvfp4_plan plan = {.name = "nvfp4_sm80_gemm_64x64"};
    nvfp4_shape shape = NVFP4_SHAPE;
    shape.size = offsetof(nvfp4_shape, l);
    expect(nvfp4_plan_shape(context, &shape, &plan) == NVFP4_INVALID &&
               !strcmp(nvfp4_last_error(), "shape: its size is 48; must be 72, as NVFP4_SHAPE sets it"),
           "a struct of another version is rejected");
    expect(nvfp4_override_plan(context, &shape, &plan) == NVFP4_INVALID && strstr(nvfp4_last_error(), "must be 72"),
           "here as well");
    shape.size = offsetof(nvfp4_shape, groups), shape.groups = -1;
    expect(nvfp4_plan_shape(context, &shape, &plan) == NVFP4_OK, "an older program has no groups");
    shape.size = offsetof(nvfp4_shape, operation), shape.groups = 0, shape.operation = 3;
    expect(nvfp4_plan_shape(context, &shape, &plan) == NVFP4_OK, "nor another operation");
    shape.size = sizeof shape;
    expect_error(nvfp4_plan_shape(context, &shape, &plan),
                 "operation: is 3; must be 0, 1 (quantize_gemm) or 2 (gated_grouped_gemm)");
    plan = (nvfp4_plan){.name = "nvfp4_sm80_gemm_64x64"};
    shape = NVFP4_SHAPE;
    expect(nvfp4_override_plan(context, &shape, &plan) == NVFP4_INVALID && strstr(nvfp4_last_error(), "device: is -1"),
           "the CPU has one plan");
    shape.device = 0, shape.flags = NVFP4_BATCH_INVARIANT;
    expect(nvfp4_override_plan(context, &shape, &plan) == NVFP4_INVALID &&
               !strcmp(nvfp4_last_error(), "flags: is 1; must be 0 or 4 (b not transposed) for an override"),
           "no plan is put first of batch-invariant products");
    shape.flags = 0, shape.operation = NVFP4_SHAPE_QUANTIZE_GEMM, shape.a_dtype = NVFP4_FP32;
    expect_error(nvfp4_override_plan(context, &shape, &plan), "operation: is 1; must be 0 for an override");
}

static void check_quantized_shape(nvfp4_context *context) {
    enum { ROWS = 3, COLUMNS = 48 };
    static float x[ROWS][COLUMNS];
    static uint8_t data[ROWS][COLUMNS], scale[ROWS][COLUMNS / 16];
    nvfp4_quantize_args args = NVFP4_QUANTIZE_ARGS;
    args.x = matrix(x, NVFP4_FP32, ROWS, COLUMNS);
    args.data = matrix(data, NVFP4_UINT8, ROWS, COLUMNS);
    args.scale = matrix(scale, NVFP4_E4M3, ROWS, COLUMNS / 16);
    args.scale_layout = NVFP4_LINEAR;
    memset(data, 7, sizeof data);
    expect(nvfp4_quantize(context, &args) == NVFP4_INVALID &&
               !strcmp(nvfp4_last_error(), "data: is 1 x 3 x 48; x needs L x R x K/2 = 1 x 3 x 24 in 2 dimensions"),
           "data have two values a byte");
    expect(data[0][0] == 7 && data[ROWS - 1][COLUMNS - 1] == 7, "none is written");
}

/* Products of groups: b and scale_b are stacks of E * parts matrices, which the front ends make of more dimensions. */
static void check_groups(nvfp4_context *context) {
    enum { R = 3, T = 4, E = 2, PARTS = 3, N = 2, K = 16 };
    static const uint16_t half_one = 0x3C00;
    _Alignas(16) static uint16_t a[R][K];
    static uint8_t b[E * PARTS][N][K / 2], scale_b[E * PARTS][N];
    static int32_t ends[E] = {1, 3}, rows[T] = {2, 0, 7, 1};
    static float out[T][PARTS * N], row_scale[T] = {1, 2, 3, 4}, alpha[E * PARTS] = {1, 2, 3, 4, 5, 6};
    nvfp4_grouped_gemm_args args = NVFP4_GROUPED_GEMM_ARGS;
    nvfp4_plan plan;
    expect(args.parts == 1 && args.alpha_value == 1.0f && args.flags == 0 && args.groups == 0 && !args.b_list,
           "arguments begin so");
    for (int i = 0; i < R * K; i++) a[i / K][i % K] = half_one;
    memset(b, 0x22, sizeof b), memset(scale_b, 0x38, sizeof scale_b); /* each value is 1 */
    args.a = matrix(a, NVFP4_FP16, R, K), args.b = matrix(b, NVFP4_UINT8, E * PARTS * N, K / 2);
    args.b.ndim = 3, args.b.shape[0] = E * PARTS, args.b.shape[1] = N, args.b.shape[2] = K / 2;
    args.b.stride[0] = N * K / 2, args.b.stride[1] = K / 2, args.b.stride[2] = 1;
    args.scale_b = args.b, args.scale_b.data = scale_b, args.scale_b.dtype = NVFP4_E4M3, args.scale_b.shape[2] = 1;
    args.scale_b.stride[0] = N, args.scale_b.stride[1] = 1;
    args.scale_layout = NVFP4_LINEAR;
    args.ends = matrix(ends, NVFP4_INT32, 1, E), args.rows = matrix(rows, NVFP4_INT32, 1, T);
    args.row_scale = matrix(row_scale, NVFP4_FP32, 1, T), args.alpha = matrix(alpha, NVFP4_FP32, 1, E * PARTS);
    nvfp4_tensor *const vectors[] = {&args.ends, &args.rows, &args.row_scale, &args.alpha};
    for (int i = 0; i < 4; i++) {
        vectors[i]->ndim = 1, vectors[i]->shape[0] = vectors[i]->shape[1], vectors[i]->stride[0] = 1;
    }
    args.out = matrix(out, NVFP4_FP32, T, PARTS * N);
    memset(out, 0x77, sizeof out);
    const float untouched = out[0][0];
    static const int32_t wrong[] = {4, 0, -1, INT32_MAX};
    for (int i = 0; i < 4; i++) {
        char message[80];
        args.parts = wrong[i];
        snprintf(message, sizeof message, "b: has 6 matrices in %d parts; must have as many of each part", wrong[i]);
        expect(nvfp4_grouped_gemm(context, &args) == NVFP4_INVALID && !strcmp(nvfp4_last_error(), message),
               "a number of parts that b has not");
    }
    args.parts = PARTS, args.flags = 8;
    expect(nvfp4_grouped_gemm(context, &args) == NVFP4_INVALID && strstr(nvfp4_last_error(), "flags: is 8"),
           "a flag that does not exist");
    args.flags = NVFP4_NO_TRANSPOSE_B, args.a.shape[1] = N;
    args.out.shape[1] = K;
    expect(nvfp4_grouped_gemm(context, &args) == NVFP4_INVALID &&
               !strcmp(nvfp4_last_error(),
                       "b: has 6 matrices in 3 parts; must have one part where flags has NVFP4_NO_TRANSPOSE_B"),
           "parts of the other product");
    args.flags = 0, args.a.shape[1] = K, args.out.shape[1] = PARTS * N;
    args.call.size -= 8;
    expect(nvfp4_grouped_gemm(context, &args) == NVFP4_INVALID && strstr(nvfp4_last_error(), "size"),
           "a struct of another version");
    args.call.size += 8;
    expect(out[0][0] == untouched && memcmp(out[0], out[1], sizeof out[0]) == 0, "nothing is written");
    expect(nvfp4_grouped_gemm_plan(context, &args, &plan) == NVFP4_OK && plan.backend == NVFP4_BACKEND_CPU &&
               !strcmp(plan.name, nvfp4_cpu_kernel()),
           "the plan of a product of groups on the CPU");
    expect(nvfp4_grouped_gemm(context, &args) == NVFP4_OK, "it runs");
    for (int t = 0; t < 3; t++)
        for (int j = 0; j < PARTS * N; j++) {
            const float expected = row_scale[t] * 16 * alpha[(t > 0) * PARTS + j / N];
            expect(t == 2 ? isnan(out[t][j]) : out[t][j] == expected, "a result of its matrix, NaN of no row");
        }
    expect(memcmp(&out[3][0], &untouched, sizeof untouched) == 0, "a row past the last end is not written");

    static float wanted[T][PARTS * N];
    const void *matrices[E] = {b[0], b[PARTS]}, *scales[E] = {scale_b[0], scale_b[PARTS]};
    memcpy(wanted, out, sizeof out), memset(out, 0x77, sizeof out);
    args.b.shape[0] = args.scale_b.shape[0] = PARTS, args.groups = E;
    args.b.data = args.scale_b.data = NULL, args.b_list = matrices, args.scale_b_list = scales;
    expect(nvfp4_grouped_gemm(context, &args) == NVFP4_OK && memcmp(out, wanted, sizeof out) == 0,
           "a list stands for b and scale_b, whose data may be NULL");
    memset(out, 0x77, sizeof out);
    for (int e = 0; e < E; e++) {
        char message[80];
        const void **const lists[] = {matrices, scales};
        for (int i = 0; i < 2; i++) {
            const void *kept = lists[i][e];
            lists[i][e] = NULL;
            snprintf(message, sizeof message, "%s: data of matrix %d is NULL; must be an address", i ? "scale_b" : "b",
                     e);
            expect_error(nvfp4_grouped_gemm(context, &args), message);
            lists[i][e] = kept;
        }
    }
    expect(out[0][0] == untouched && memcmp(out[0], out[2], sizeof out[0]) == 0, "nothing is written then either");
}

/* Groups of NVFP4 rows: each has its scales from a block of 128 rows on. */
static void check_groups_of_values(nvfp4_context *context) {
    enum { T = 3, E = 3, N = 2, K = 16, BLOCK = 512, BLOCKS = 2 };
    _Alignas(16) static uint8_t a[T][K / 2], b[E][N][K / 2], scale_a[BLOCKS][BLOCK], scale_b[E][BLOCK];
    static int32_t ends[E] = {1, 2, 3}, scale_rows[E] = {128, 0, 64};
    static float out[T][N];
    nvfp4_grouped_gemm_args args = NVFP4_GROUPED_GEMM_ARGS;
    memset(a, 0x22, sizeof a), memset(b, 0x22, sizeof b); /* each value is 1 */
    memset(scale_a, 0x7F, sizeof scale_a), memset(scale_b, 0x38, sizeof scale_b);
    scale_a[0][0] = 0x40, scale_a[1][0] = 0x44; /* 2 and 3 of the first rows, of which the second group has the first */
    args.a = matrix(a, NVFP4_UINT8, T, K / 2), args.out = matrix(out, NVFP4_FP32, T, N);
    args.b = matrix(b, NVFP4_UINT8, E * N, K / 2);
    args.b.ndim = 3, args.b.shape[0] = E, args.b.shape[1] = N, args.b.shape[2] = K / 2;
    args.b.stride[0] = N * K / 2, args.b.stride[1] = K / 2, args.b.stride[2] = 1;
    args.scale_a = matrix(scale_a, NVFP4_E4M3, BLOCKS, BLOCK), args.scale_b = matrix(scale_b, NVFP4_E4M3, E, BLOCK);
    args.ends = matrix(ends, NVFP4_INT32, 1, E), args.scale_rows = matrix(scale_rows, NVFP4_INT32, 1, E);
    nvfp4_tensor *const vectors[] = {&args.ends, &args.scale_rows};
    for (int i = 0; i < 2; i++) vectors[i]->ndim = 1, vectors[i]->shape[0] = E, vectors[i]->stride[0] = 1;
    expect(nvfp4_grouped_gemm(context, &args) == NVFP4_OK, nvfp4_last_error());
    for (int n = 0; n < N; n++)
        expect(out[0][n] == 16 * 3 && out[1][n] == 16 * 2 && isnan(out[2][n]),
               "a group's scales, NaN where they begin inside a block");
    nvfp4_gated_grouped_gemm_args expert = NVFP4_GATED_GROUPED_GEMM_ARGS;
    nvfp4_plan plan;
    expert.grouped = args, expert.grouped.call.size = sizeof expert;
    expert.grouped.flags = NVFP4_NO_TRANSPOSE_B, expert.activation = NVFP4_RELU2;
    memset(out, 0, sizeof out);
    expect_error(
        nvfp4_gated_grouped_gemm(context, &expert),
        "flags: is 4; must be without 4 (b not transposed): an activation follows products with the transpose");
    expert.grouped.flags = 0, expert.activation = 4;
    expect_error(nvfp4_gated_grouped_gemm(context, &expert),
                 "activation: is 4; must be silu (0), gelu_tanh (1), relu2 (2) or swiglu (3)");
    expert.activation = NVFP4_RELU2;
    expect(nvfp4_gated_grouped_gemm_plan(context, &expert, &plan) == NVFP4_OK && plan.backend == NVFP4_BACKEND_CPU &&
               plan.workspace == 0,
           "on the CPU the products need no workspace of the caller's");
    expect(out[0][0] == 0, "a plan computes nothing");
    expect(nvfp4_gated_grouped_gemm(context, &expert) == NVFP4_OK && out[0][1] == 48 * 48 && out[1][0] == 32 * 32 &&
               isnan(out[2][0]),
           "the squares of the products");
    nvfp4_gated_grouped_quantize_args quantized = NVFP4_GATED_GROUPED_QUANTIZE_ARGS;
    quantized.gated = expert, quantized.gated.grouped.call.size = sizeof quantized;
    expect_error(nvfp4_gated_grouped_quantize(context, &quantized), "data: is missing; must be a tensor");
    args.scale_rows.dtype = NVFP4_NONE;
    expect(nvfp4_grouped_gemm(context, &args) == NVFP4_INVALID && strstr(nvfp4_last_error(), "scale_rows: is missing"),
           "scales without their places");
}

/* Rules that Python's functions cannot break, and a call of groups. */
static void check_grouped_quantize(nvfp4_context *context) {
    enum { R = 3, T = 4, E = 2, K = 16 };
    static float x[R][K];
    static uint8_t data[T][K / 2], scale[T];
    static int32_t ends[E] = {1, 3}, rows[T] = {2, 0, 7, 1}, scale_rows[E] = {-1, -1};
    nvfp4_grouped_quantize_args args = NVFP4_GROUPED_QUANTIZE_ARGS;
    nvfp4_quantize_args *q = &args.quantize;
    for (int i = 0; i < R * K; i++) x[i / K][i % K] = 6;
    memset(data, 7, sizeof data), memset(scale, 7, sizeof scale);
    q->x = matrix(x, NVFP4_FP32, R, K), q->data = matrix(data, NVFP4_UINT8, T, K / 2);
    q->scale = matrix(scale, NVFP4_E4M3, T, 1), q->scale_layout = NVFP4_LINEAR;
    args.ends = matrix(ends, NVFP4_INT32, 1, E), args.rows = matrix(rows, NVFP4_INT32, 1, T);
    args.scale_rows = matrix(scale_rows, NVFP4_INT32, 1, E);
    nvfp4_tensor *const vectors[] = {&args.ends, &args.rows, &args.scale_rows};
    for (int i = 0; i < 3; i++)
        vectors[i]->ndim = 1, vectors[i]->shape[0] = vectors[i]->shape[1], vectors[i]->stride[0] = 1;
    args.rows.shape[0] = INT32_MAX;
    expect_error(nvfp4_grouped_quantize(context, &args),
                 "T: is 2147483647, with 2147483776 rows of scales; must have at most 2147483647");
    args.rows.shape[0] = T;
    expect(nvfp4_grouped_quantize(context, &args) == NVFP4_OK, "groups of a linear layout");
    expect(data[0][0] == 0x77 && scale[0] == 0x38 && data[1][7] == 0x77 && scale[1] == 0x38, "rows of x");
    expect(data[2][0] == 0 && scale[2] == 0x7F, "a row that x has not is NaN");
    expect(data[3][0] == 7 && scale[3] == 7, "a row past the last end is not written");
    expect(scale_rows[0] == 0 && scale_rows[1] == 1, "linear scales of a group begin with its first row");

    nvfp4_gated_quantize_args gated = NVFP4_GATED_QUANTIZE_ARGS;
    gated.quantize = *q, gated.quantize.call.size = sizeof gated, gated.scale_rows = args.scale_rows;
    gated.quantize.data.shape[0] = gated.quantize.scale.shape[0] = R, gated.scale_rows.shape[0] = 1;
    gated.quantize.block_scale = NVFP4_FOUR_OVER_SIX;
    expect_error(nvfp4_gated_quantize(context, &gated), "block_scale: is 1; must be amax6 (0)");
    gated.quantize.block_scale = NVFP4_AMAX6, gated.activation = NVFP4_RELU2;
    expect(nvfp4_gated_quantize(context, &gated) == NVFP4_OK && data[2][0] == 0x77 && scale[2] == 0x4C,
           "relu2 of 6 is 36: a scale of 6");

    nvfp4_amax_scale_args amax = NVFP4_AMAX_SCALE_ARGS;
    float found[R] = {0};
    amax.x = q->x, amax.scale = matrix(found, NVFP4_FP32, 1, R);
    amax.scale.ndim = 1, amax.scale.shape[0] = R, amax.scale.stride[0] = 1;
    amax.by_row = 2;
    expect_error(nvfp4_amax_scale(context, &amax), "by_row: is 2; must be 0 or 1");
    amax.by_row = 1, amax.scale.shape[0] = R - 1;
    expect_error(nvfp4_amax_scale(context, &amax),
                 "scale: has 2 elements in 1 dimension; must be a vector of length R = 3");
    amax.scale.shape[0] = R;
    expect(nvfp4_amax_scale(context, &amax) == NVFP4_OK && found[0] == 6.0f / 2688.0f && found[2] == found[0],
           "a scale for each row");
}

/* Rules that Python's function cannot break, the plan of a call, and one product. */
static void check_quantize_gemm(nvfp4_context *context) {
    enum { M = 2, N = 3, K = 16 };
    static float a[M][K], out[M][N];
    static uint8_t b[N][K / 2], scale[N];
    nvfp4_quantize_gemm_args args = NVFP4_QUANTIZE_GEMM_ARGS;
    nvfp4_plan plan;
    for (int i = 0; i < M * K; i++) a[i / K][i % K] = 6;
    memset(b, 0x22, sizeof b), memset(scale, 0x38, sizeof scale);
    args.gemm.a = matrix(a, NVFP4_FP32, M, K), args.gemm.b = matrix(b, NVFP4_UINT8, N, K / 2);
    args.gemm.scale_b = matrix(scale, NVFP4_E4M3, N, 1), args.gemm.scale_layout = NVFP4_LINEAR;
    args.gemm.out = matrix(out, NVFP4_FP32, M, N), args.gemm.a.ndim = args.gemm.out.ndim = 2;
    args.gemm.flags = NVFP4_NO_TRANSPOSE_B;
    expect_error(nvfp4_quantize_gemm(context, &args),
                 "flags: is 4; must be without 4 (b not transposed), since a is quantized along K");
    args.gemm.flags = 0, args.gemm.scale_a = args.gemm.scale_b;
    expect_error(nvfp4_quantize_gemm(context, &args),
                 "scale_a: is given; must be absent, quantize_gemm makes the scales of a");
    args.gemm.scale_a.dtype = NVFP4_NONE;
    expect(nvfp4_quantize_gemm_plan(context, &args, &plan) == NVFP4_OK && plan.backend == NVFP4_BACKEND_CPU &&
               plan.workspace == 0,
           "on the CPU A needs no workspace of the caller's");
    expect(out[0][0] == 0, "a plan computes nothing");
    expect(nvfp4_quantize_gemm(context, &args) == NVFP4_OK && out[1][2] == 96, "16 products of 6 and 1");
}

int main(void) {
    enum { M = 2, N = 3, K = 16 };
    _Alignas(16) static uint8_t a[M][K / 2], b[N][K / 2];
    static uint8_t scale_a[M], scale_b[N];
    static float out[M][N], before[M][N];
    nvfp4_context *context = NULL;
    nvfp4_plan plan;
    if (nvfp4_create(&context)) return 1;
    nvfp4_gemm_args args = NVFP4_GEMM_ARGS;
    args.a = matrix(a, NVFP4_UINT8, M, K / 2), args.scale_a = matrix(scale_a, NVFP4_E4M3, M, 1);
    args.b = matrix(b, NVFP4_UINT8, N, K / 2), args.scale_b = matrix(scale_b, NVFP4_E4M3, N, 1);
    args.out = matrix(out, NVFP4_FP32, M, N);
    args.scale_layout = NVFP4_LINEAR;
    expect(args.flags == 0, "the default is no flag");
    memset(out, 0x77, sizeof out);
    memcpy(before, out, sizeof out);
    for (int bit = 3; bit < 32; bit++) {
        char flags[32];
        args.flags = (uint32_t)1 << bit;
        snprintf(flags, sizeof flags, "flags: is %u;", args.flags);
        expect(nvfp4_gemm(context, &args) == NVFP4_INVALID && strstr(nvfp4_last_error(), flags) == nvfp4_last_error(),
               "a flag is an error that names flags");
        expect(nvfp4_gemm_plan(context, &args, &plan) == NVFP4_INVALID &&
                   strstr(nvfp4_last_error(), flags) == nvfp4_last_error(),
               "of a plan too");
        expect(memcmp(out, before, sizeof out) == 0, "nothing is written");
    }
    for (int32_t flags = 0; flags < 4; flags++) {
        prepared_call call;
        const checked_call c = {&operation_gemm, &args};
        args.flags = (uint32_t)flags;
        expect(operation_prepare(context, &c, &call) == NVFP4_OK && call.problem.gemm.constant_b == (flags >> 1 & 1),
               "constant_b of the problem");
    }
    args.flags = 0;
    expect(nvfp4_gemm_plan(context, &args, &plan) == NVFP4_OK && plan.backend == NVFP4_BACKEND_CPU &&
               !strcmp(plan.name, nvfp4_cpu_kernel()) && plan.reason && *plan.reason && plan.workspace == 0 &&
               plan.grid == 0 && plan.candidates == 0 && plan.split_k == 1,
           "the plan of a product on the CPU");
    expect(nvfp4_gemm(context, &args) == NVFP4_OK && out[1][2] == 0.0f, "without flags it runs");
    expect(nvfp4_set_candidate(context, -1) == NVFP4_INVALID && strstr(nvfp4_last_error(), "candidate: is -1"),
           "a rank is not negative");
    check_shapes(context);
    check_quantized_shape(context);
    check_groups(context);
    check_groups_of_values(context);
    check_grouped_quantize(context);
    check_quantize_gemm(context);
    nvfp4_destroy(context);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
