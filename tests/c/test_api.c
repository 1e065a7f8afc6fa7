/* Arguments of the public C interface that no front end passes on: undefined bits of `flags` are rejected, and the
 * library can tell how a product runs without a GPU. The planners learn that B is constant. Prints "N passed, N
 * failed". */
#include <stdio.h>
#include <string.h>

#include "api/gemm.h"
#include "matrix.h"

static int passed, failed;

static void expect(int holds, const char *rule) {
    passed += holds != 0;
    failed += holds == 0;
    if (!holds) printf("FAILED: %s (%s)\n", rule, nvfp4_last_error());
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
        gemm_call call;
        args.flags = (uint32_t)flags;
        expect(gemm_prepare(context, &args, &call) == NVFP4_OK && call.problem.constant_b == (flags >> 1 & 1),
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
    nvfp4_destroy(context);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
