/* The sm90 backend: the table of its kinds of kernels, which list candidates and build their launches. */
#include "kernels/sm90/plan.h"

#include "common/error.h"
#include "plan/reject.h"

/* A pre-pass. It is launched programmatically, as the product behind it is. */
#define PRE_PASS(symbol, file, threads_)                                                                               \
    {.name = "nvfp4_sm90_" symbol, .source = "sm90_" file, .threads = threads_, .pdl = 1}
static const kernel_entry kernels[SM90_KERNELS] = {
#define X(kind, configs, entry) configs(entry)
    SM90_KINDS(X)
#undef X
        [KERNEL_SM90_DEQUANT] = PRE_PASS("dequant", "dequant", SM90_DEQUANT_THREADS),
    [KERNEL_SM90_FAKE_QUANTIZE_FP16] = PRE_PASS("fake_quantize_fp16", "dequant", SM90_DEQUANT_THREADS),
    [KERNEL_SM90_FAKE_QUANTIZE_BF16] = PRE_PASS("fake_quantize_bf16", "dequant", SM90_DEQUANT_THREADS),
    [KERNEL_SM90_REORDER] = PRE_PASS("reorder", "reorder", SM90_REORDER_THREADS),
    [KERNEL_SM90_REORDER_E2M1] = PRE_PASS("reorder_e2m1", "reorder", SM90_REORDER_THREADS),
};
static const kernel_set set = {
    .kernels = kernels, .count = SM90_KERNELS, .min_capability = 90, .max_capability = 90, .optional = 1};

static const struct {
    const sm90_kind *kind;
    int32_t kernels; /* how many it has in the set */
} kinds[] = {
#define ONE(...)                +1
#define X(kind, configs, entry) {&sm90_##kind##_kind, 0 configs(ONE)},
    SM90_KINDS(X)
#undef X
#undef ONE
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static const sm90_kind *kind_of(int32_t kernel) {
    int32_t i = 0;
    for (int32_t end = kinds[0].kernels; kernel >= end; i++) end += kinds[i + 1].kernels;
    return kinds[i].kind;
}

static int32_t of_this_backend(gemm_candidate *all, int32_t count) {
    return complete_candidates(NVFP4_BACKEND_SM90, kernels, all, count);
}

int32_t sm90_candidates(const sm90_model *model, const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    int32_t count = 0;
    for (int32_t i = 0; i < KINDS; i++)
        if ((int32_t)kinds[i].kind->product_kind == t->product_kind)
            count += kinds[i].kind->candidates(model, props, t, out + count);
    return of_this_backend(out, count);
}

static int32_t candidates(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    const sm90_model model = sm90_model_on(props);
    return sm90_candidates(&model, props, t, out);
}

/* The first kind that has an order for every M takes the product: another adds in another order. */
static int32_t batch_invariant(const device_props *props, const gemm_traits *t, gemm_candidate *out) {
    const sm90_model model = sm90_model_on(props);
    int32_t count = -1;
    for (int32_t i = 0; i < KINDS && count < 0; i++)
        if ((int32_t)kinds[i].kind->product_kind == t->product_kind && kinds[i].kind->batch_invariant)
            count = kinds[i].kind->batch_invariant(&model, props, t, out);
    return of_this_backend(out, count);
}

static void build(const device_props *props, const product_problem *problem, const gemm_candidate *c, void *workspace,
                  launch_plan *out) {
    kind_of(c->kernel)->build(props, problem, c, workspace, out);
}

static int32_t with_quantizer(const device_props *props, const quantize_gemm_problem *p, const gemm_candidate *of,
                              gemm_candidate *out) {
    const sm90_kind *kind = kind_of(of->kernel);
    const quantize_problem *q = &p->q;
    const int64_t bits = (int64_t)(uintptr_t)q->x | (q->rows > 1 ? q->x_pitch : 0) | (q->l > 1 ? q->x_batch : 0);
    if (q->block_scale != NVFP4_AMAX6 || q->x_type == NVFP4_FP32 || bits % 16 || q->l * q->rows * q->k == 0) return 0;
    if (!kind->with_quantizer || !kind->with_quantizer(props, p, of, out)) return 0;
    out->name = kernels[out->kernel].name;
    out->quantizes = 1;
    return 1;
}

/* One launch in place of the product's and the activation's, which begins later, reads all results and writes them. */
int32_t sm90_with_activation(const sm90_model *model, const device_props *props, const gemm_traits *t,
                             const gemm_candidate *of, gemm_candidate *out) {
    const sm90_kind *kind = kind_of(of->kernel);
    const double bytes = (double)(t->m * t->n) * (double)(t->l / t->groups + 1) * t->output_bytes;
    gemm_candidate fused;
    if (!kind->with_activation || of->single_us < model->activation_least_us) return 0;
    if (!kind->with_activation(model, props, t, of, &fused)) return 0;
    if (fused.single_us > of->single_us + model->activation_us + bytes / model->dram_tb_s * 1e-6) return 0;
    of_this_backend(&fused, 1);
    *out = fused;
    return 1;
}

static int32_t with_activation(const device_props *props, const grouped_problem *p, const gemm_candidate *of,
                               gemm_candidate *out) {
    const sm90_model model = sm90_model_on(props);
    gemm_traits t = traits_of(&p->g);
    t.groups = p->groups;
    return sm90_with_activation(&model, props, &t, of, out);
}

/* gemm's kernels need less shared memory than those of other kinds. */
static nvfp4_status reject_memory(const device_props *props) {
    return reject_shared_memory("sm90", kernels, kinds[0].kernels, props);
}

static nvfp4_status reject(const device_props *props, const gemm_traits *t) {
    nvfp4_status status = reject_memory(props);
    if (status) return status;
    if (t->a_type != VALUES_E2M1 && !sm90_reaches(t))
        return REJECT_AS(NVFP4_UNSUPPORTED, "a",
                         ("dtype is %s, which the sm90 kernels multiply by b with 128x4 scales and rows and batches on "
                          "16 bytes alone",
                          t->a_type == NVFP4_FP16 ? "float16" : "bfloat16"),
                         ("must be uint8 or float4_e2m1fn_x2, or the backend sm80"));
    sm90_operand_size a, b;
    if (!sm90_fp16_operand(t, 0, 1, &a) || !sm90_fp16_operand(t, 1, 1, &b))
        return fail(
            NVFP4_UNSUPPORTED,
            "the product of M = %lld, N = %lld, K = %lld, L = %lld needs a workspace beyond the %lld bytes that "
            "the sm90 kernels reach; must be smaller, or backend sm80",
            (long long)t->m, (long long)t->n, (long long)t->k, (long long)t->l, (long long)TENSOR_STRIDE_END);
    return reject_tiles("sm90", t);
}

static nvfp4_status reject_nn(const device_props *props, const gemm_traits *t) {
    nvfp4_status status = reject_memory(props);
    if (status) return status;
    if (!sm90_reaches(t))
        return REJECT_AS(NVFP4_UNSUPPORTED, ARGUMENT_TRANSPOSE,
                         (WORD_NOT_TRANSPOSED
                          ", which the sm90 kernels take with 128x4 scales and rows and batches of a and b on "
                          "16 bytes alone"),
                         (WORD_MUST_TRANSPOSE ", or the backend must be sm80"));
    return reject_tiles("sm90", t);
}

static nvfp4_status reject_grouped(const device_props *props, const gemm_traits *t) {
    nvfp4_status status = reject_memory(props);
    if (status) return status;
    if (!sm90_reaches(t))
        return REJECT_AS(NVFP4_UNSUPPORTED, "b",
                         ("has linear scales, or rows of a or b lie otherwise than on 16 bytes, which the sm90 kernels "
                          "of groups do not take"),
                         ("must have 128x4 scales, or the backend must be sm80"));
    return reject_tiles("sm90", t);
}

/* Each planner asks the kernel kinds of its product kind. */
#define PLANNER(types, tma_types, why, ...)                                                                            \
    {.a_types = types,                                                                                                 \
     .tma_a_types = tma_types,                                                                                         \
     .candidates = candidates,                                                                                         \
     .batch_invariant = batch_invariant,                                                                               \
     .reject = why,                                                                                                    \
     .build = build,                                                                                                   \
     __VA_ARGS__}
static const gemm_planner gemm =
    PLANNER(TAKES_E2M1 | TAKES_16_BIT, TAKES_16_BIT, reject, .with_quantizer = with_quantizer);
static const gemm_planner gemm_nn = PLANNER(TAKES_16_BIT, TAKES_16_BIT, reject_nn, );
static const gemm_planner grouped = PLANNER(TAKES_E2M1 | TAKES_16_BIT, TAKES_E2M1 | TAKES_16_BIT, reject_grouped,
                                            .takes_by_batch = 1, .with_activation = with_activation);

const gemm_backend sm90_backend = {
    BACKEND_ROW(sm90),
    .kernels = &set,
    .planners = {[PRODUCT_GEMM] = &gemm, [PRODUCT_GEMM_NN] = &gemm_nn, [PRODUCT_GROUPED] = &grouped},
    .model = sm90_model_name,
    .roundings = {.per_block = 72, .block_k = 16, .constant = 64},
};
