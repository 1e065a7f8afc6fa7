/* Quantizes two matrices to NVFP4, multiplies them, and compares the result with a plain loop over the same bytes.
 * `product` runs on the CPU, `product 0` on CUDA device 0. docs/c-api.md has the commands that compile it, as C11; it
 * is C++17 as well. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvfp4.h"

enum { M = 24, N = 40, K = 256, BLOCKS = K / 16, MEMORY = 1 << 20 };

static void must(int holds, const char *why) {
    if (holds) return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static void check(nvfp4_status status) {
    must(status == NVFP4_OK, nvfp4_last_error());
}

static int copy_on_host(void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
    return 0;
}

/* Memory where the product runs. On a GPU the CUDA driver gives it; functions of the driver return 0. */
static int32_t device = NVFP4_HOST;
static char *memory;
static size_t taken;
static int (*copy_to)(void *, const void *, size_t) = copy_on_host;
static int (*copy_from)(void *, const void *, size_t) = copy_on_host;

static void allocate(void) {
    if (device == NVFP4_HOST) {
        memory = (char *)malloc(MEMORY);
        must(memory != NULL, "no memory");
        return;
    }
    const char *name = getenv("NVFP4_LIBCUDA"); /* as the library does */
    void *cuda = dlopen(name ? name : "libcuda.so.1", RTLD_NOW), *context;
    int (*init)(unsigned), (*retain)(void **, int), (*set_current)(void *), (*mem_alloc)(char **, size_t);
    must(cuda != NULL, "there is no libcuda.so.1, the library of NVIDIA's driver");
    *(void **)&init = dlsym(cuda, "cuInit");
    *(void **)&retain = dlsym(cuda, "cuDevicePrimaryCtxRetain");
    *(void **)&set_current = dlsym(cuda, "cuCtxSetCurrent");
    *(void **)&mem_alloc = dlsym(cuda, "cuMemAlloc_v2");
    *(void **)&copy_to = dlsym(cuda, "cuMemcpyHtoD_v2");
    *(void **)&copy_from = dlsym(cuda, "cuMemcpyDtoH_v2");
    must(!init(0) && !retain(&context, device) && !set_current(context) && !mem_alloc(&memory, MEMORY),
         "the CUDA driver has no such device, or no memory there");
}

static void *take(size_t bytes) {
    void *place = memory + taken;
    taken += (bytes + 255) / 256 * 256;
    must(taken <= MEMORY, "MEMORY is too small");
    return place;
}

static void *upload(const void *from, size_t bytes) {
    void *to = take(bytes);
    must(!copy_to(to, from, bytes), "a copy to the GPU failed");
    return to;
}

/* The driver's copies wait for what was enqueued on the default stream. */
static void download(void *to, const nvfp4_tensor *from, size_t bytes) {
    must(!copy_from(to, from->data, bytes), "a copy from the GPU failed");
}

static nvfp4_tensor matrix(void *data, nvfp4_dtype dtype, int64_t rows, int64_t columns) {
    const nvfp4_tensor tensor = {data, dtype, device, 2, {rows, columns}, {columns, 1}};
    return tensor;
}

/* Returns the arguments of its call: data, block scales and the global scale, whose product is x but for rounding. */
static nvfp4_quantize_args quantize(nvfp4_context *context, const float *x, int64_t rows) {
    nvfp4_quantize_args args = NVFP4_QUANTIZE_ARGS;
    float amax = 0;
    for (int64_t i = 0; i < rows * K; i++) amax = fmaxf(amax, fabsf(x[i]));
    args.x = matrix(upload(x, rows * K * sizeof *x), NVFP4_FP32, rows, K);
    args.data = matrix(take(rows * K / 2), NVFP4_UINT8, rows, K / 2);
    args.scale = matrix(take(rows * BLOCKS), NVFP4_E4M3, rows, BLOCKS);
    args.scale_layout = NVFP4_LINEAR;
    args.global_value = amax / (448 * 6); /* the largest scale times the largest value */
    check(nvfp4_quantize(context, &args));
    return args;
}

/* Value k of a row: its four bits times the scale of its block of 16. */
static double value(const uint8_t *data, const uint8_t *scale, int k) {
    static const double e2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const int code = data[k / 2] >> k % 2 * 4 & 15, e4m3 = scale[k / 16];
    const double factor = e4m3 < 8 ? ldexp(e4m3, -9) : ldexp(8 + e4m3 % 8, e4m3 / 8 - 10);
    return (code & 8 ? -1 : 1) * e2m1[code & 7] * factor;
}

int main(int argc, char **argv) {
    static float x[M][K], w[N][K], y[M][N];
    static uint8_t a[M][K / 2], b[N][K / 2], scale_a[M][BLOCKS], scale_b[N][BLOCKS];
    for (int i = 0; i < M * K; i++) x[i / K][i % K] = (float)sin(i);
    for (int i = 0; i < N * K; i++) w[i / K][i % K] = (float)cos(i * 0.7) / 50;
    if (argc > 1) device = atoi(argv[1]);
    allocate();

    nvfp4_context *context;
    check(nvfp4_create(&context));
    const nvfp4_quantize_args left = quantize(context, &x[0][0], M), right = quantize(context, &w[0][0], N);
    nvfp4_gemm_args args = NVFP4_GEMM_ARGS;
    args.a = left.data, args.scale_a = left.scale;
    args.b = right.data, args.scale_b = right.scale;
    args.scale_layout = NVFP4_LINEAR;
    args.alpha_value = left.global_value * right.global_value;
    args.out = matrix(take(sizeof y), NVFP4_FP32, M, N);
    nvfp4_plan plan;
    check(nvfp4_gemm_plan(context, &args, &plan));
    args.call.workspace_size = plan.workspace;
    if (plan.workspace) args.call.workspace = take(plan.workspace);
    check(nvfp4_gemm(context, &args));
    printf("%d x %d x %d by %s\n", M, N, K, plan.name);
    download(y, &args.out, sizeof y);
    download(a, &args.a, sizeof a), download(scale_a, &args.scale_a, sizeof scale_a);
    download(b, &args.b, sizeof b), download(scale_b, &args.scale_b, sizeof scale_b);

    int failed = 0;
    double worst = 0;
    for (int i = 0; i < M * N; i++) {
        double sum = 0, magnitude = 0;
        for (int k = 0; k < K; k++) {
            const double product = value(a[i / N], scale_a[i / N], k) * value(b[i % N], scale_b[i % N], k);
            sum += product, magnitude += fabs(product);
        }
        const double error = fabs(y[i / N][i % N] / args.alpha_value - sum) / magnitude;
        failed |= !(error < K * ldexp(1, -24)); /* K roundings to fp32; and NaN fails */
        worst = fmax(worst, error);
    }
    printf("largest error: %.1e of the sum of magnitudes\n", worst);

    args.b.shape[1] = K / 4; /* a wrong call: nothing is written, and the message says what is wrong */
    const nvfp4_status status = nvfp4_gemm(context, &args);
    printf("status %d: %s\n", (int)status, nvfp4_last_error());
    nvfp4_destroy(context);
    if (device == NVFP4_HOST) free(memory);
    return failed || status != NVFP4_INVALID;
}
