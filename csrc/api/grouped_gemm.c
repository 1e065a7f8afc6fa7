/* grouped_gemm: its row of the table and its rules. product.c runs it. gated_grouped_gemm's arguments begin with those
 * of grouped_gemm, so its row is here too; gated_grouped_gemm.c has its rules and its two steps. */
#include "api/gemm.h"
#include "api/rules.h"
#include "common/error.h"
#include "common/math.h"

static int is_nn(const nvfp4_grouped_gemm_args *args) {
    return (args->flags & NVFP4_NO_TRANSPOSE_B) != 0;
}

/* ---- stacks with parts ---- */

/* Joins the first two dimensions of a stack, [E, P, ..] to [E * P, ..]. */
static nvfp4_status join(const char *name, nvfp4_tensor *t, int64_t experts, int64_t parts) {
    if (t->shape[0] != experts || t->shape[1] != parts)
        return REJECT(name, ("begins with %lld x %lld", (long long)t->shape[0], (long long)t->shape[1]),
                      ("must begin with E x P = %lld x %lld", (long long)experts, (long long)parts));
    if (t->shape[0] > 1 && t->shape[1] > 1 && element_count(t) && t->stride[0] != t->shape[1] * t->stride[1])
        return REJECT(
            name, ("parts are %lld elements apart and experts %lld", (long long)t->stride[1], (long long)t->stride[0]),
            ("must lie one after the other: use .contiguous()"));
    const int64_t step = t->shape[1] == 1 && t->shape[0] > 1 ? t->stride[0] : t->stride[1];
    if (__builtin_mul_overflow(t->shape[0], t->shape[1], &t->shape[0])) t->shape[0] = INT64_MAX; /* no tensor has it */
    t->stride[0] = step;
    for (int i = 1; i + 1 < t->ndim; i++) t->shape[i] = t->shape[i + 1], t->stride[i] = t->stride[i + 1];
    t->ndim--;
    return NVFP4_OK;
}

nvfp4_status join_parts(operation_args *all) {
    nvfp4_grouped_gemm_args *args = &all->grouped_gemm;
    nvfp4_tensor *alpha = &args->alpha, *bias = &args->bias, *scale_b = &args->scale_b;
    if (args->b.ndim != 4) return NVFP4_OK;
    const int64_t matrices = args->b.shape[0], parts = args->b.shape[1];
    const int64_t experts = args->b_list ? args->groups : matrices; /* a list's b is that of one expert */
    args->parts = parts > INT32_MAX ? INT32_MAX : (int32_t)parts;
    nvfp4_status status = join("b", &args->b, matrices, parts);
    if (!status && args->scale_layout == NVFP4_LINEAR && scale_b->ndim == 4)
        status = join("scale_b", scale_b, matrices, parts);
    if (!status && !absent(alpha) && alpha->ndim > 1 && element_count(alpha) != 1)
        status = join("alpha", alpha, experts, parts);
    if (!status && !absent(bias) && bias->ndim == 3) status = join("bias", bias, experts, parts);
    return status;
}

/* ---- rules ---- */

/* Matrices at addresses of their own: each aligned, none in memory that is written. */
static nvfp4_status check_lists(const nvfp4_grouped_gemm_args *args) {
    const uintptr_t out = (uintptr_t)args->out.data, out_end = out + (uintptr_t)bytes_to_end(&args->out);
    if (args->a.device != NVFP4_HOST)
        return CONTRADICTS("b", ("is a list but a is on a GPU; must be one tensor there"));
    for (int32_t e = 0; e < args->groups; e++) {
        const uintptr_t b = (uintptr_t)args->b_list[e], scale = (uintptr_t)args->scale_b_list[e];
        if ((!b && element_count(&args->b)) || (!scale && element_count(&args->scale_b)))
            return REJECT(b ? "scale_b" : "b", ("data of matrix %d is NULL", e), ("must be an address"));
        if (b % 8)
            return REJECT("b", ("data of matrix %d is at address %p", e, args->b_list[e]),
                          ("must be aligned to 8 bytes"));
        if (args->scale_layout == NVFP4_128X4 && scale % 16)
            return REJECT("scale_b", ("data of matrix %d is at address %p", e, args->scale_b_list[e]),
                          ("must be aligned to 16 bytes"));
        if (out && out < b + (uintptr_t)bytes_to_end(&args->b) && b < out_end)
            return REJECT("out", ("shares memory with b, matrix %d", e), ("must not overlap it, it is written"));
        if (out && out < scale + (uintptr_t)bytes_to_end(&args->scale_b) && scale < out_end)
            return REJECT("out", ("shares memory with scale_b, matrix %d", e), ("must not overlap it, it is written"));
    }
    return NVFP4_OK;
}

/* 128x4 scales of groups: whole blocks, as many as the caller takes for groups of any size. */
static nvfp4_status check_scale_blocks(const checked_call *c, const nvfp4_tensor *t, grouped_problem *p) {
    const int64_t block = ceil_div(p->g.k, 64) * 512, have = element_count(t);
    if (block ? have % block : have)
        return REJECT(argument_name(c, t), ("has %lld bytes", (long long)have),
                      ("the 128x4 layout of groups and K = %lld needs a multiple of ceil(K/64) * 512 = %lld",
                       (long long)p->g.k, (long long)block));
    if (!is_contiguous(t)) return REJECT(argument_name(c, t), ("is not contiguous"), ("the 128x4 layout must be"));
    p->g.scale_a_pitch = block;
    p->scale_a_rows = block ? have / block * 128 : INT64_MAX; /* without values, rows have no scales */
    return check_alignment(c, t, 16);
}

static nvfp4_status check_scale_a(const checked_call *c, const nvfp4_grouped_gemm_args *args, grouped_problem *p) {
    const nvfp4_tensor *scale_a = &args->scale_a, *scale_rows = &args->scale_rows;
    gemm_problem *g = &p->g;
    p->scale_rows = NULL, p->scale_a_rows = 0;
    if (g->a_type != VALUES_E2M1) {
        const nvfp4_tensor *given = !absent(scale_a) ? scale_a : !absent(scale_rows) ? scale_rows : NULL;
        if (!given) return NVFP4_OK;
        return REJECT(argument_name(c, given), ("is given but a is %s", nvfp4_dtype_name(args->a.dtype)),
                      ("must be absent, its values have no scales"));
    }
    if (absent(scale_a)) return REJECT("scale_a", ("is missing"), ("must be a tensor where a is NVFP4"));
    g->scale_a = scale_a->data;
    if (args->scale_layout == NVFP4_LINEAR) {
        if (!absent(scale_rows))
            return REJECT("scale_rows", ("is given but the scales of a are linear"),
                          ("must be absent: they lie as the rows of a do"));
        int64_t batch; /* one array serves all groups and parts: g->scale_a_batch stays 0 */
        return check_scale(c, scale_a, NVFP4_LINEAR, 1, p->a_rows, g->k / 16, READ_ONLY, &g->scale_a_pitch, &batch);
    }
    if (absent(scale_rows))
        return REJECT("scale_rows", ("is missing"), ("must be a tensor where a is NVFP4 with 128x4 scales"));
    if (!absent(&args->rows))
        return REJECT("rows", ("is given but a has 128x4 scales, which lie in the order of groups"),
                      ("must be absent: quantize in that order, by quantize's ends and rows"));
    p->scale_rows = scale_rows->data;
    return check_scale_blocks(c, scale_a, p);
}

static nvfp4_status check_operands(const checked_call *c, const nvfp4_grouped_gemm_args *args, grouped_problem *p) {
    matrix a, b;
    gemm_problem *g = &p->g;
    const int nn = is_nn(args), a_is_e2m1 = args->a.dtype != NVFP4_FP16 && args->a.dtype != NVFP4_BF16;
    if (a_is_e2m1 && nn)
        return REJECT("a", ("dtype is %s", nvfp4_dtype_name(args->a.dtype)),
                      ("must be float16 or bfloat16 " WHERE_NOT_TRANSPOSED));
    if (!args->b_list != !args->scale_b_list)
        return CONTRADICTS("scale_b",
                           ("is %s list but b is %s", args->scale_b_list ? "a" : "no", args->b_list ? "one" : "not"));
    if (args->a.ndim != 2)
        return REJECT("a", ("has %d dimensions", args->a.ndim),
                      ("must have 2 (%s)", a_is_e2m1 ? "[R, K/2]"
                                           : nn      ? "[R, N]"
                                                     : "[R, K]"));
    if (args->b.ndim != 3) return REJECT("b", ("has %d dimensions", args->b.ndim), ("must have 3, or 4 with parts"));
    nvfp4_status status =
        a_is_e2m1 ? check_values(c, &args->a, "[R, K/2]", "", READ_ONLY, &a) : check_activations(c, &args->a, nn, &a);
    if (!status) status = check_values(c, &args->b, "[N, K/2]", "[E, N, K/2]", READ_ONLY, &b);
    if (status) return status;
    const int64_t k = b.columns * 2, summed = nn ? b.rows : k;
    const int64_t a_columns = a_is_e2m1 ? a.columns * 2 : a.columns;
    if (a_columns != summed)
        return CONTRADICTS("b", ("%c is %lld but a has %c = %lld", nn ? 'N' : 'K', (long long)summed, nn ? 'N' : 'K',
                                 (long long)a_columns));
    if (k > MAX_SIZE) return REJECT("b", ("K is %lld", (long long)k), ("must be at most %d", MAX_SIZE));
    if (args->parts < 1 || b.l % args->parts || (nn && args->parts != 1) || (args->b_list && b.l != args->parts))
        return REJECT("b", ("has %lld matrices in %d parts", (long long)b.l, args->parts),
                      ("%s", nn ? "must have one part " WHERE_NOT_TRANSPOSED : "must have as many of each part"));
    const int64_t groups = args->b_list ? args->groups : b.l / args->parts;
    if (groups < 0) return REJECT("b", ("E is %lld", (long long)groups), ("must not be negative"));
    if (groups > NVFP4_MAX_GROUPS)
        return REJECT("b", ("E is %lld", (long long)groups), ("must be at most %d", NVFP4_MAX_GROUPS));
    *g = (gemm_problem){
        .m = a.rows,
        .n = nn ? k : b.rows,
        .k = summed,
        .l = groups * args->parts,
        .a = args->a.data,
        .b = args->b.data,
        .a_pitch = a.pitch,
        .b_pitch = b.pitch,
        .b_batch = b.batch,
        .a_type = a_is_e2m1 ? VALUES_E2M1 : (int32_t)args->a.dtype,
        .product_kind = nn ? PRODUCT_GROUPED_NN : PRODUCT_GROUPED,
    };
    p->a_rows = a.rows;
    p->groups = (int32_t)groups;
    p->parts = args->parts;
    uintptr_t bits = (uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)(a.pitch | b.pitch);
    if (b.l > 1) bits |= (uintptr_t)b.batch;
    g->aligned16 = bits % 16 == 0;
    status = check_layout(args->scale_layout);
    if (!status)
        status = check_scale(c, &args->scale_b, args->scale_layout, b.l, b.rows, k / 16, READ_ONLY, &g->scale_b_pitch,
                             &g->scale_b_batch);
    if (!status && args->b_list) status = check_lists(args);
    if (!status) status = check_scale_a(c, args, p);
    p->b_list = args->b_list;
    p->scale_b_list = args->scale_b_list;
    g->scale_b = args->scale_b.data;
    g->scale_layout = (int32_t)args->scale_layout;
    return status;
}

/* A dense vector of numbers, one for each of `length` things; -1: of any length. */
static nvfp4_status check_numbers(const checked_call *c, const nvfp4_tensor *t, const char *size, int64_t length) {
    const char *name = argument_name(c, t);
    if (t->ndim != 1) return REJECT(name, ("has %d dimensions", t->ndim), ("must be a vector of length %s", size));
    if (length >= 0 && t->shape[0] != length)
        return REJECT(name, ("has length %lld", (long long)t->shape[0]),
                      ("must be a vector of length %s = %lld", size, (long long)length));
    if (!is_contiguous(t))
        return REJECT(name, ("stride is %lld", (long long)t->stride[0]), ("must be 1: pass a copy, .contiguous()"));
    return check_alignment(c, t, 4);
}

static nvfp4_status check_order(const checked_call *c, const nvfp4_grouped_gemm_args *args, grouped_problem *p) {
    const nvfp4_tensor *rows = &args->rows, *row_scale = &args->row_scale;
    nvfp4_status status = check_numbers(c, &args->ends, "E", p->groups);
    if (!status && !absent(&args->scale_rows)) status = check_numbers(c, &args->scale_rows, "E", p->groups);
    if (!status && !absent(rows)) {
        status = check_numbers(c, rows, "T", -1);
        p->g.m = rows->shape[0];
    }
    if (!status && !absent(row_scale)) status = check_numbers(c, row_scale, "T", p->g.m);
    p->ends = args->ends.data;
    p->rows = absent(rows) ? NULL : rows->data;
    p->row_scale = absent(row_scale) ? NULL : row_scale->data;
    return status;
}

static nvfp4_status check_result(const checked_call *c, const nvfp4_grouped_gemm_args *args, grouped_problem *p) {
    const nvfp4_tensor *out = &args->out;
    gemm_problem *g = &p->g;
    matrix x;
    int64_t columns;
    if (out->ndim != 2) return REJECT("out", ("has %d dimensions", out->ndim), ("must have 2"));
    const char *size = g->product_kind == PRODUCT_GROUPED_NN ? "K" : p->has_activation ? "N" : "parts * N";
    nvfp4_status status = check_matrix(c, out, p->has_activation ? "[T, N]" : "[T, parts * N]", "", WRITTEN, &x);
    if (status) return status;
    const int64_t side_by_side = p->has_activation ? 1 : p->parts;
    if (__builtin_mul_overflow(g->n, side_by_side, &columns)) columns = INT64_MAX; /* no tensor has it */
    if (x.rows != g->m || x.columns != columns)
        return REJECT("out", ("is %lld x %lld", (long long)x.rows, (long long)x.columns),
                      ("must be T x %s = %lld x %lld", size, (long long)g->m, (long long)columns));
    g->out = out->data;
    g->out_type = (int32_t)out->dtype;
    g->out_pitch = x.pitch;
    g->out_batch = p->has_activation ? 0 : g->n * dtype_bytes(out->dtype);
    return check_alignment(c, out, dtype_bytes(out->dtype));
}

nvfp4_status check_groups(const checked_call *c, const nvfp4_grouped_gemm_args *args, int has_activation,
                          prepared_call *call) {
    grouped_problem *p = &call->problem.grouped;
    p->has_activation = has_activation;
    p->activation = NVFP4_SILU, p->limit = INFINITY, p->activation_alpha = 1.702f; /* defined in every launch */
    const uint32_t own_flags = has_activation ? 0 : NVFP4_CONSTANT_ENDS;
    nvfp4_status status = check_flags(args->flags & ~own_flags);
    if (!status) status = check_operands(c, args, p);
    if (!status) status = check_order(c, args, p);
    if (!status) status = check_result(c, args, p);
    if (status) return status;
    p->g.alpha_value = args->alpha_value;
    status = check_alpha(c, &args->alpha, &p->g);
    if (!status) status = check_bias(c, &args->bias, args->out.dtype, &p->g);
    p->g.constant_b = (args->flags & NVFP4_CONSTANT_B) != 0;
    p->constant_ends = (args->flags & NVFP4_CONSTANT_ENDS) != 0;
    call->is_empty = p->g.m == 0 || p->g.n == 0 || p->groups == 0;
    return status;
}

static nvfp4_status check_grouped_gemm(const checked_call *c, prepared_call *call) {
    return check_groups(c, c->args, 0, call);
}

static void bind_grouped_gemm(const checked_call *c, prepared_call *call) {
    const nvfp4_grouped_gemm_args *args = c->args;
    call->problem.grouped.g.out = args->out.data;
}

/* ---- the rows ---- */

enum { GROUPED_OUT = GROUPED_INPUT_COUNT };

static const operation_tensor grouped_tensors[] = {
    GROUPED_INPUTS,
    [GROUPED_OUT] = {"out", GROUPED_AT(out), OUTPUT, HOLDS_FLOATS, 0, 0},
};
static const operation_list grouped_lists[] = {
    {GROUPED_B, GROUPED_AT(b_list), GROUPED_AT(groups)},
    {GROUPED_SCALE_B, GROUPED_AT(scale_b_list), GROUPED_AT(groups)},
};
static const operation_scalar grouped_scalars[] = {GROUPED_FACTOR, GROUPED_SCALARS};
static const operation_result grouped_results[] = {{
    .tensor = GROUPED_OUT,
    .dtype = DTYPE_OF_CALLER,
    .default_dtype = NVFP4_FP16,
    .shape = {"[sorted_rows(rows, a), rows_of_parts(b)]", 0},
    .flag_shape = {"[sorted_rows(rows, a), 2 * columns_of_part(b)]", 0},
    .flags_offset = GROUPED_AT(flags),
    .flags_mask = NVFP4_NO_TRANSPOSE_B,
}};
const operation operation_grouped_gemm = {
    .name = OPERATION(grouped_gemm),
    .tensors = TENSORS(grouped_tensors),
    .scalars = SCALARS(grouped_scalars),
    .results = RESULTS(grouped_results),
    .lists = LISTS(grouped_lists),
    .given = RESULTS_NEW_OR_GIVEN,
    .adapt = join_parts,
    .check = check_grouped_gemm,
    .plan = grouped_gemm_plan,
    .bind = bind_grouped_gemm,
    .run = gemm_run,
};

static const operation_scalar gated_grouped_scalars[] = {GROUPED_FACTOR, GATED_SCALARS, GROUPED_SCALARS};
static const operation_result gated_grouped_results[] = {{
    .tensor = GROUPED_OUT,
    .dtype = DTYPE_OF_CALLER,
    .default_dtype = NVFP4_FP16,
    .shape = {"[sorted_rows(rows, a), rows_of_part(b)]", 0},
}};
const operation operation_gated_grouped_gemm = {
    .name = OPERATION(gated_grouped_gemm),
    .tensors = TENSORS(grouped_tensors),
    .scalars = SCALARS(gated_grouped_scalars),
    .results = RESULTS(gated_grouped_results),
    .lists = LISTS(grouped_lists),
    .given = RESULTS_NEW_OR_GIVEN,
    .adapt = join_parts,
    .check = check_gated_grouped_gemm,
    .plan = gated_grouped_gemm_plan,
    .bind = bind_grouped_gemm,
    .run = gated_grouped_gemm_run,
};
