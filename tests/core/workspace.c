/* The rules of a caller's workspace, on a libcuda that runs nothing (NVFP4_LIBCUDA): a product of 1 x 64 by 65536,
 * which sm80 splits along K, amax_scale, and products of groups. Prints what each call answers; 1 if one is not as it
 * should be.
 *
 * workspace [DEVICE]: the ordinal of the tensors' GPU; without it the product's are in host memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "matrix.h"

enum { M = 1, N = 64, K = 65536 };

static nvfp4_context *context;
static int failed;

static void answers(const char *what, nvfp4_status status, nvfp4_status wanted, const char *word) {
    int right = status == wanted && (!status || strstr(nvfp4_last_error(), word));
    printf("%s: status %d%s%s%s\n", what, (int)status, status ? ", " : "", status ? nvfp4_last_error() : "",
           right ? "" : "  WRONG");
    failed |= !right;
}

static void expect(const char *what, const nvfp4_gemm_args *args, nvfp4_status wanted, const char *word) {
    answers(what, nvfp4_gemm(context, args), wanted, word);
}

static nvfp4_tensor on(int32_t device, nvfp4_tensor t) {
    t.device = device;
    return t;
}

/* One CTA has nothing to exchange. */
static void check_amax_scale(int32_t device) {
    nvfp4_amax_scale_args args = NVFP4_AMAX_SCALE_ARGS;
    void *x = calloc(64, 4096 * 4);
    args.scale = on(device, matrix(calloc(1, 4), NVFP4_FP32, 1, 1));
    args.x = on(device, matrix(x, NVFP4_FP32, 1, 16));
    answers("amax_scale of a block", nvfp4_amax_scale(context, &args), NVFP4_OK, "");
    args.x = on(device, matrix(x, NVFP4_FP32, 0, 16));
    answers("amax_scale of nothing", nvfp4_amax_scale(context, &args), NVFP4_OK, "");
    args.x = on(device, matrix(x, NVFP4_FP32, 64, 4096));
    answers("amax_scale of many rows", nvfp4_amax_scale(context, &args), NVFP4_INVALID, "workspace: has ");
}

/* Rows of the result, however many A has, in 16 bits, and behind them the count of claimed tiles. */
static void check_groups(int32_t device) {
    enum { T = 64, E = 2, N = 128, K = 256, ROW = K * 2 };
    static const int64_t rows_of_a[] = {1, 8, T, 4 * T};
    nvfp4_grouped_gemm_args args = NVFP4_GROUPED_GEMM_ARGS;
    nvfp4_plan plan;
    char *memory = aligned_alloc(16, T * ROW + 16);
    nvfp4_tensor *const rows = &args.rows;
    args.b = on(device, matrix(aligned_alloc(16, E * N * K / 2), NVFP4_UINT8, N, K / 2));
    args.b.ndim = 3, args.b.shape[0] = E, args.b.shape[1] = N, args.b.shape[2] = K / 2;
    args.b.stride[0] = N * K / 2, args.b.stride[1] = K / 2, args.b.stride[2] = 1;
    args.scale_b = on(device, matrix(calloc(E * N, K / 16), NVFP4_E4M3, 1, E * N * K / 16));
    args.scale_b.ndim = 1, args.scale_b.shape[0] = E * N * K / 16, args.scale_b.stride[0] = 1;
    args.ends = on(device, matrix(calloc(E, 4), NVFP4_INT32, 1, E));
    *rows = on(device, matrix(calloc(T, 4), NVFP4_INT32, 1, T));
    args.ends.ndim = rows->ndim = 1, args.ends.shape[0] = E, rows->shape[0] = T;
    args.ends.stride[0] = rows->stride[0] = 1;
    args.out = on(device, matrix(calloc(T * N, 2), NVFP4_BF16, T, N));
    args.backend = NVFP4_BACKEND_SM90, args.flags = NVFP4_BATCH_INVARIANT;
    for (size_t i = 0; i < sizeof rows_of_a / sizeof *rows_of_a; i++) {
        const int64_t count = rows_of_a[i];
        const size_t needed = T * ROW + 16; /* rows of the result, and a count */
        args.a = on(device, matrix(aligned_alloc(16, (size_t)count * ROW), NVFP4_BF16, count, K));
        args.call.workspace = memory, args.call.workspace_size = needed;
        answers("groups of rows of A", nvfp4_grouped_gemm(context, &args), NVFP4_OK, "");
        failed |= nvfp4_grouped_gemm_plan(context, &args, &plan) || plan.workspace != needed;
        args.call.workspace_size = needed - 1;
        answers("a byte less", nvfp4_grouped_gemm(context, &args), NVFP4_INVALID, "workspace: has ");
    }
}

static void *no_memory(void *owner, size_t bytes) {
    *(size_t *)owner = bytes;
    return NULL;
}

int main(int argc, char **argv) {
    const int32_t device = argc > 1 ? atoi(argv[1]) : NVFP4_HOST;
    if (nvfp4_create(&context)) return 1;
    nvfp4_gemm_args args = NVFP4_GEMM_ARGS;
    args.a = on(device, matrix(calloc(M, K / 2), NVFP4_UINT8, M, K / 2));
    args.b = on(device, matrix(calloc(N, K / 2), NVFP4_UINT8, N, K / 2));
    args.scale_a = on(device, matrix(calloc(M, K / 16), NVFP4_E4M3, M, K / 16));
    args.scale_b = on(device, matrix(calloc(N, K / 16), NVFP4_E4M3, N, K / 16));
    args.out = on(device, matrix(calloc(M, N * 4), NVFP4_FP32, M, N));
    args.scale_layout = NVFP4_LINEAR;
    args.backend = NVFP4_BACKEND_SM80;

    nvfp4_plan plan;
    if (nvfp4_gemm_plan(context, &args, &plan) || plan.workspace <= 0) {
        printf("no workspace is needed: %s\n", nvfp4_last_error());
        return 1;
    }
    const size_t bytes = (size_t)plan.workspace;
    char *memory = aligned_alloc(16, (bytes + 63) / 16 * 16);
    args.call.workspace = memory, args.call.workspace_size = bytes;
    expect("the exact size", &args, NVFP4_OK, "");
    args.call.workspace_size = bytes - 1;
    expect("a byte less", &args, NVFP4_INVALID, "workspace: has ");
    args.call.workspace = memory + 8, args.call.workspace_size = bytes + 16;
    expect("aligned to 8", &args, NVFP4_INVALID, "aligned to 16");
    args.call.workspace = NULL, args.call.workspace_size = bytes;
    expect("NULL with a size", &args, NVFP4_INVALID, "workspace: has ");
    size_t asked = 0;
    args.call.workspace_size = 0, args.call.allocate = no_memory, args.call.owner = &asked;
    expect("an allocator without memory", &args, NVFP4_OUT_OF_MEMORY, "workspace: no memory for ");
    failed |= asked != bytes;
    check_amax_scale(argc > 1 ? device : 0);
    check_groups(argc > 1 ? device : 0);
    nvfp4_destroy(context);
    return failed;
}
