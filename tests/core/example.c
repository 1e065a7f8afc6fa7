/* The library from C alone: a product of 2 x 16 by 3 x 16 on the CPU, and what a wrong call is answered.
 * csrc/nvfp4.h has the commands that compile it, with and without GPU code. */
#include <stdio.h>
#include <string.h>

#include "nvfp4.h"

enum { M = 2, N = 3, K = 16 };

static nvfp4_tensor matrix(void *data, nvfp4_dtype dtype, int64_t rows, int64_t columns) {
    return (nvfp4_tensor){
        .data = data,
        .dtype = dtype,
        .device = NVFP4_HOST,
        .ndim = 2,
        .shape = {rows, columns},
        .stride = {columns, 1},
    };
}

int main(void) {
    _Alignas(16) uint8_t a[M][K / 2], b[N][K / 2];
    uint8_t scale_a[M] = {0x38, 0x40};       /* 1 and 2 in e4m3, one scale a row as K is 16 */
    uint8_t scale_b[N] = {0x38, 0x38, 0x30}; /* 1, 1 and 0.5 */
    float out[M][N];
    memset(a, 0x22, sizeof a);       /* every value 1 */
    memset(b, 0x22, sizeof b);       /* every value 1, */
    memset(b[1], 0x5D, sizeof b[1]); /* but row 1: -3, 3, -3, 3, ... */
    memset(out, 0xFF, sizeof out);

    nvfp4_context *context = NULL;
    if (nvfp4_create(&context) != NVFP4_OK) {
        fprintf(stderr, "%s\n", nvfp4_last_error());
        return 1;
    }
    nvfp4_gemm_args args = NVFP4_GEMM_ARGS;
    args.a = matrix(a, NVFP4_UINT8, M, K / 2);
    args.b = matrix(b, NVFP4_UINT8, N, K / 2);
    args.scale_a = matrix(scale_a, NVFP4_E4M3, M, K / 16);
    args.scale_b = matrix(scale_b, NVFP4_E4M3, N, K / 16);
    args.out = matrix(out, NVFP4_FP32, M, N);
    args.alpha_value = 0.25f;
    args.scale_layout = NVFP4_LINEAR;

    int failed = 0;
    if (nvfp4_gemm(context, &args) != NVFP4_OK) {
        fprintf(stderr, "%s\n", nvfp4_last_error());
        failed = 1;
    }
    const float expected[M][N] = {{4, 0, 2}, {8, 0, 4}};
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            printf("%g%c", out[i][j], j + 1 < N ? ' ' : '\n');
            failed |= out[i][j] != expected[i][j];
        }
    }

    /* A wrong call: b has half the K of a. The status says so, the sentence says what; out keeps its bytes. */
    uint8_t before[sizeof out];
    memcpy(before, out, sizeof out);
    args.alpha_value = 1;
    args.b = matrix(b, NVFP4_UINT8, N, K / 4);
    nvfp4_status status = nvfp4_gemm(context, &args);
    printf("status %d: %s\n", (int)status, nvfp4_last_error());
    failed |= status != NVFP4_INVALID || memcmp(before, out, sizeof out) != 0;

    nvfp4_destroy(context);
    return failed;
}
