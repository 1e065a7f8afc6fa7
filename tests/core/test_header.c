/* The public header as a user's program has it: C11 here, C++17 by the same text, both
 * with -Wall -Wextra -Wpedantic -Werror (tests/core/test_c_core.py). Every initializer gives a struct that begins with
 * its size and has the documented defaults; an older program, whose structs lack the last fields, is served; sizes that
 * no version had are rejected; an error is data. Prints "N passed, N failed". */
#include <stdio.h>
#include <string.h>

#include "nvfp4.h"

static int passed, failed;

static void expect(int holds, const char *rule) {
    passed += holds != 0;
    failed += holds == 0;
    if (!holds) printf("FAILED: %s (%s)\n", rule, nvfp4_last_error());
}

static nvfp4_tensor vector(void *data, nvfp4_dtype dtype, int64_t rows, int64_t columns) {
    nvfp4_tensor t;
    memset(&t, 0, sizeof t);
    t.data = data;
    t.dtype = dtype;
    t.device = NVFP4_HOST;
    t.ndim = 2;
    t.shape[0] = rows, t.shape[1] = columns;
    t.stride[0] = columns, t.stride[1] = 1;
    return t;
}

/* A field that is appended later must change the size, so none of the structs ends with padding. */
#define ENDS_WITH(type, field)                                                                                         \
    expect(sizeof(type) == offsetof(type, field) + sizeof(((type *)NULL)->field), #type " ends with a field")
#define NO_PADDING(type) ENDS_WITH(type, reserved)

static void check_defaults(void) {
    NO_PADDING(nvfp4_gemm_args);
    NO_PADDING(nvfp4_quantize_args);
    ENDS_WITH(nvfp4_weighted_quantize_args, importance);
    NO_PADDING(nvfp4_gptq_block_args);
    ENDS_WITH(nvfp4_rms_norm_quantize_args, round_steps);
    NO_PADDING(nvfp4_grouped_quantize_args);
    ENDS_WITH(nvfp4_amax_scale_args, by_row);
    ENDS_WITH(nvfp4_quantize_gemm_args, block_scale);
    NO_PADDING(nvfp4_gated_args);
    ENDS_WITH(nvfp4_gated_quantize_args, round_steps);
    ENDS_WITH(nvfp4_grouped_gemm_args, flags);
    NO_PADDING(nvfp4_gated_grouped_gemm_args);
    NO_PADDING(nvfp4_gated_grouped_quantize_args);
    NO_PADDING(nvfp4_moe_route_args);
    NO_PADDING(nvfp4_moe_combine_args);
    const nvfp4_gemm_args gemm = NVFP4_GEMM_ARGS;
    const nvfp4_quantize_args quantize = NVFP4_QUANTIZE_ARGS;
    const nvfp4_weighted_quantize_args weighted = NVFP4_WEIGHTED_QUANTIZE_ARGS;
    const nvfp4_gptq_block_args gptq = NVFP4_GPTQ_BLOCK_ARGS;
    const nvfp4_rms_norm_quantize_args norm = NVFP4_RMS_NORM_QUANTIZE_ARGS;
    const nvfp4_amax_scale_args amax = NVFP4_AMAX_SCALE_ARGS;
    const nvfp4_swizzle_args swizzle = NVFP4_SWIZZLE_ARGS;
    const nvfp4_gated_args gated = NVFP4_GATED_ARGS;
    const nvfp4_grouped_quantize_args grouped = NVFP4_GROUPED_QUANTIZE_ARGS;
    const nvfp4_gated_quantize_args fused = NVFP4_GATED_QUANTIZE_ARGS;
    const nvfp4_quantize_gemm_args layer = NVFP4_QUANTIZE_GEMM_ARGS;
    const nvfp4_gated_grouped_gemm_args expert = NVFP4_GATED_GROUPED_GEMM_ARGS;
    const nvfp4_moe_route_args route = NVFP4_MOE_ROUTE_ARGS;
    const nvfp4_moe_combine_args combine = NVFP4_MOE_COMBINE_ARGS;
    expect(gemm.call.size == sizeof gemm && gemm.alpha_value == 1.0f && gemm.beta == 0.0f && gemm.flags == 0 &&
               gemm.backend == NVFP4_AUTO && gemm.scale_layout == NVFP4_128X4 && gemm.a.dtype == NVFP4_NONE,
           "defaults of gemm");
    expect(quantize.call.size == sizeof quantize && quantize.global_value == 1.0f &&
               quantize.block_scale == NVFP4_AMAX6,
           "defaults of quantize");
    expect(weighted.quantize.call.size == sizeof weighted && weighted.quantize.global_value == 1.0f &&
               weighted.quantize.block_scale == NVFP4_SEARCH,
           "defaults of weighted_quantize");
    expect(gptq.call.size == sizeof gptq && gptq.global_value == 1.0f, "defaults of gptq_block");
    expect(norm.quantize.call.size == sizeof norm && norm.quantize.global_value == 1.0f && norm.eps == 1e-6f,
           "defaults of rms_norm_quantize");
    expect(gated.call.size == sizeof gated && gated.activation == NVFP4_SILU && isinf(gated.limit) &&
               gated.alpha == 1.702f && gated.up.dtype == NVFP4_NONE,
           "defaults of gated");
    expect(grouped.quantize.call.size == sizeof grouped && grouped.quantize.global_value == 1.0f &&
               grouped.ends.dtype == NVFP4_NONE && grouped.rows.dtype == NVFP4_NONE,
           "defaults of grouped_quantize");
    expect(fused.quantize.call.size == sizeof fused && fused.quantize.global_value == 1.0f &&
               fused.activation == NVFP4_SILU && isinf(fused.limit) && fused.alpha == 1.702f,
           "defaults of gated_quantize");
    expect(expert.grouped.call.size == sizeof expert && expert.grouped.alpha_value == 1.0f &&
               expert.grouped.parts == 1 && expert.activation == NVFP4_SILU && isinf(expert.limit) &&
               expert.activation_alpha == 1.702f,
           "defaults of gated_grouped_gemm");
    expect(layer.gemm.call.size == sizeof layer && layer.gemm.alpha_value == 1.0f && layer.global_value == 1.0f &&
               layer.global_scale.dtype == NVFP4_NONE && layer.block_scale == NVFP4_AMAX6,
           "defaults of quantize_gemm");
    expect(amax.call.size == sizeof amax && swizzle.call.size == sizeof swizzle && route.call.size == sizeof route &&
               combine.call.size == sizeof combine,
           "the others begin with their size");
}

/* rms_norm_quantize's arguments begin with those of quantize. */
static void check_sizes(nvfp4_context *context) {
    static float x[2][32];
    static uint8_t data[2][16], scale[2][2];
    nvfp4_quantize_args args = NVFP4_QUANTIZE_ARGS;
    for (int i = 0; i < 32; i++) x[0][i] = x[1][i] = (float)(i % 7);
    args.x = vector(x, NVFP4_FP32, 2, 32);
    args.data = vector(data, NVFP4_UINT8, 2, 16);
    args.scale = vector(scale, NVFP4_E4M3, 2, 2);
    args.scale_layout = NVFP4_LINEAR;
    expect(nvfp4_quantize(context, &args) == NVFP4_OK && data[0][0] != 0, "a complete struct is taken");
    memset(data, 7, sizeof data);
    const size_t wrong[] = {0, 1, sizeof args - 1, sizeof args + 1, sizeof args + 8};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        nvfp4_error error;
        args.call.size = wrong[i];
        expect(nvfp4_quantize(context, &args) == NVFP4_INVALID, "a size that no version had is rejected");
        nvfp4_last_error_data(&error);
        expect(!strcmp(error.argument, "size") && data[0][0] == 7, "it is named, and nothing is written");
    }
}

enum {
#define NVFP4_FAMILY(...) +1
    FAMILIES = 0
#include "families.def"
};

/* Former names that programs may use. */
static void check_aliases(void) {
    expect((int)FAMILIES == (int)NVFP4_BACKEND_SM120, "families.def has the rows of backends.def");
    expect(NVFP4_MOE_MOST_EXPERTS == NVFP4_MOE_MAX_EXPERTS, "the most experts of moe_route");
}

static void check_error(nvfp4_context *context) {
    nvfp4_gemm_args args = NVFP4_GEMM_ARGS;
    nvfp4_error error;
    char message[512];
    args.a = vector(NULL, NVFP4_UINT8, 2, 32), args.b = vector(NULL, NVFP4_UINT8, 3, 16);
    args.scale_a = vector(NULL, NVFP4_E4M3, 128, 4), args.scale_b = vector(NULL, NVFP4_E4M3, 128, 4);
    args.out = vector(NULL, NVFP4_FP16, 2, 3);
    expect(nvfp4_gemm(context, &args) == NVFP4_INVALID, "b has half the K of a");
    nvfp4_last_error_data(&error);
    expect(error.status == NVFP4_INVALID && !strcmp(error.argument, "b") &&
               !strcmp(error.value, "K is 32 but a has K = 64") && !*error.rule,
           "argument and value");
    args.b = vector(NULL, NVFP4_FP16, 3, 32);
    expect(nvfp4_gemm(context, &args) == NVFP4_INVALID, "b is not fp16");
    nvfp4_last_error_data(&error);
    snprintf(message, sizeof message, "%s: %s; %s", error.argument, error.value, error.rule);
    expect(!strcmp(message, "b: dtype is float16; must be uint8 or float4_e2m1fn_x2") &&
               !strcmp(message, nvfp4_last_error()),
           "argument, value and rule are the message");
    args.b = vector(NULL, NVFP4_UINT8, 3, 32);
    args.flags = NVFP4_NO_TRANSPOSE_B;
    expect(nvfp4_gemm(context, &args) == NVFP4_INVALID &&
               strstr(nvfp4_last_error(), "where flags has NVFP4_NO_TRANSPOSE_B"),
           "in the words of C");
}

int main(void) {
    nvfp4_context *context = NULL;
    if (nvfp4_create(&context)) return 1;
    check_defaults();
    check_sizes(context);
    check_error(context);
    check_aliases();
    nvfp4_destroy(context);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
