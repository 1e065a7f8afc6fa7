/* The sm90 family: its kernels, and which kind of them lists and builds a candidate. */
#include "kernels/sm90/plan.h"

#include "common/error.h"

static const kernel_entry kernels[SM90_KERNELS] = {
#define X(id, math_warpgroups, wgmmas_m, mma_tile_n, group_words, stages, ...)                                         \
    [KERNEL_##id] = {.name = "nvfp4_" #id,                                                                             \
                     .fatbin = "sm90_gemm",                                                                            \
                     .threads = SM90_THREADS(math_warpgroups),                                                         \
                     .shared_bytes = SM90_SHARED_BYTES(math_warpgroups, wgmmas_m, mma_tile_n, stages),                 \
                     .more_shared = 1,                                                                                 \
                     .pdl = 1},
    SM90_GEMM_CONFIGS(X)
#undef X
#define X(id, rows, warps, ...)                                                                                        \
    [KERNEL_##id] = {                                                                                                  \
        .name = "nvfp4_" #id, .fatbin = "sm90_gemv", .threads = SM90_GEMV_THREADS(warps), .more_shared = 1, .pdl = 1},
        SM90_GEMV_CONFIGS(X)
#undef X
#define X(id, mma_a_e2m1, stages, ...)                                                                                 \
    [KERNEL_##id] = {.name = "nvfp4_" #id,                                                                             \
                     .fatbin = "sm90_prefill",                                                                         \
                     .threads = SM90_PREFILL_THREADS,                                                                  \
                     .shared_bytes = SM90_PREFILL_SHARED_BYTES(mma_a_e2m1, stages),                                    \
                     .pdl = 1},
            SM90_PREFILL_CONFIGS(X)
#undef X
#define X(id, ...)                                                                                                     \
    [KERNEL_##id] = {                                                                                                  \
        .name = "nvfp4_" #id, .fatbin = "sm90_skinny", .threads = SM90_SKINNY_THREADS, .more_shared = 1, .pdl = 1},
                SM90_SKINNY_CONFIGS(X)
#undef X
#define X(id, tile_m, stages, ...)                                                                                     \
    [KERNEL_##id] = {.name = "nvfp4_" #id,                                                                             \
                     .fatbin = "sm90_nn",                                                                              \
                     .threads = SM90_NN_THREADS,                                                                       \
                     .shared_bytes = SM90_NN_SHARED_BYTES(tile_m, stages)},
                    SM90_NN_CONFIGS(X)
#undef X
                        [KERNEL_SM90_DEQUANT] = {.name = "nvfp4_sm90_dequant",
                                                 .fatbin = "sm90_dequant",
                                                 .threads = SM90_DEQUANT_THREADS,
                                                 .pdl = 1},
};
static const kernel_set set = {
    .kernels = kernels, .count = SM90_KERNELS, .least_capability = 90, .most_capability = 90, .optional = 1};

int32_t sm90_kernel_shared_bytes(int32_t kernel) {
    return kernels[kernel].shared_bytes;
}

const char *sm90_kernel_name(int32_t kernel) {
    return kernels[kernel].name;
}

static const sm90_model measured = {
#define X(name, value) .name = value,
    SM90_MODEL_CONSTANTS(X)
#undef X
};

int32_t sm90_candidates(const sm90_model *model, const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    const sm90_model on = sm90_model_of(model, props);
    int32_t count = sm90_gemv_candidates(&on, props, t, out);
    count += sm90_skinny_candidates(&on, props, t, out + count);
    count += sm90_prefill_candidates(&on, props, t, out + count);
    return count + sm90_gemm_candidates(&on, props, t, out + count);
}

static int32_t candidates(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    return sm90_candidates(&measured, props, t, out);
}

static int32_t nn_candidates(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    const sm90_model on = sm90_model_of(&measured, props);
    return sm90_nn_candidates(&on, props, t, out);
}

static int32_t batch_invariant(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    return sm90_gemm_batch_invariant(&measured, props, t, out);
}

static void build(const device_props *props, const gemm_problem *p, const gemm_candidate *c, void *workspace,
                  launch_plan *out) {
    if (c->kernel < SM90_FIRST_GEMV)
        sm90_gemm_build(props, p, c, workspace, out);
    else if (c->kernel < SM90_FIRST_PREFILL)
        sm90_gemv_build(props, p, c, workspace, out);
    else if (c->kernel < SM90_FIRST_SKINNY)
        sm90_prefill_build(props, p, c, workspace, out);
    else
        sm90_skinny_build(props, p, c, workspace, out);
}

/* NVFP4_OK: the GPU has enough shared memory. */
static nvfp4_status reject_memory(const device_props *props) {
    int32_t least = INT32_MAX;
    for (int32_t kernel = 0; kernel < SM90_FIRST_GEMV; kernel++)
        if (kernels[kernel].shared_bytes < least) least = kernels[kernel].shared_bytes;
    if (least <= props->shared_per_block) return NVFP4_OK;
    return fail(NVFP4_UNSUPPORTED, "the sm90 kernels need %d bytes of shared memory or more; the GPU has %d a CTA",
                least, props->shared_per_block);
}

static nvfp4_status reject_tiles(const gemm_traits *t) {
    return fail(NVFP4_UNSUPPORTED,
                "the product of M = %lld, N = %lld, L = %lld has more tiles than the sm90 kernels count, which is %d",
                (long long)t->m, (long long)t->n, (long long)t->l, INT32_MAX);
}

static nvfp4_status reject(const device_props *props, const gemm_traits *t) {
    nvfp4_status status = reject_memory(props);
    if (status) return status;
    if (t->a_type != VALUES_E2M1 && (t->scale_layout != NVFP4_128X4 || !t->tma_values))
        return fail(NVFP4_UNSUPPORTED,
                    "a: dtype is %s, which the sm90 kernels multiply by b with 128x4 scales and rows and batches on 16 "
                    "bytes alone; must be uint8 or float4_e2m1fn_x2, or the backend sm80",
                    t->a_type == NVFP4_FP16 ? "float16" : "bfloat16");
    sm90_operand_size a, b;
    if (!sm90_fp16_operand(t, 0, 1, &a) || !sm90_fp16_operand(t, 1, 1, &b))
        return fail(
            NVFP4_UNSUPPORTED,
            "the product of M = %lld, N = %lld, K = %lld, L = %lld needs a workspace beyond the %lld bytes that "
            "the sm90 kernels reach; must be smaller, or backend sm80",
            (long long)t->m, (long long)t->n, (long long)t->k, (long long)t->l, (long long)TENSOR_STRIDE_END);
    return reject_tiles(t);
}

static nvfp4_status reject_nn(const device_props *props, const gemm_traits *t) {
    nvfp4_status status = reject_memory(props);
    if (status) return status;
    if (t->scale_layout != NVFP4_128X4 || !t->tma_values)
        return fail(
            NVFP4_UNSUPPORTED,
            "transpose_b: is False, which the sm90 kernels take with 128x4 scales and rows and batches of a and "
            "b on 16 bytes alone; must be True, or the backend sm80");
    return reject_tiles(t);
}

static const gemm_planner gemm = {.a_types = TAKES_E2M1 | TAKES_16_BIT,
                                  .candidates = candidates,
                                  .batch_invariant = batch_invariant,
                                  .reject = reject,
                                  .build = build};
static const gemm_planner gemm_nn = {
    .a_types = TAKES_16_BIT, .candidates = nn_candidates, .reject = reject_nn, .build = sm90_nn_build};

const gemm_family sm90_family = {
    FAMILY_ROW(sm90),
    .kernels = &set,
    .operations = {[OP_GEMM] = &gemm, [OP_GEMM_NN] = &gemm_nn},
};
