/* custom_kernel: gemm of the views that the competition passes. */
#include "api/gemm.h"
#include "bindings/frontend.h"
#include "common/error.h"
#include "common/math.h"

/* [rows, columns, L] in memory order (L, rows, columns), as [L, rows, columns]. */
static nvfp4_status rotate(const char *name, const char *shape, nvfp4_tensor *t) {
    if (t->dtype == NVFP4_NONE) return REJECT(name, ("is missing"), ("must be a tensor"));
    if (t->ndim != 3) return REJECT(name, ("has %d dimensions", t->ndim), ("must have 3 (%s)", shape));
    if (t->shape[1] > 1 && t->stride[1] != 1)
        return REJECT(name, ("stride of dimension 1 is %lld", (long long)t->stride[1]),
                      ("must be 1 (%s in memory order L, rows, columns)", shape));
    nvfp4_tensor view = *t;
    for (int i = 0; i < 3; i++) {
        view.shape[(i + 1) % 3] = t->shape[i];
        view.stride[(i + 1) % 3] = t->stride[i];
    }
    *t = view;
    return NVFP4_OK;
}

/* [32, 4, rest_m, 4, rest_k, L]: the 128x4 layout as a permuted view of contiguous (L, rest_m, rest_k, 32, 4, 4).
 * Becomes that contiguous tensor. */
static nvfp4_status restore_blocks(const char *name, int64_t rows, int64_t k, int64_t l, nvfp4_tensor *t) {
    static const int axes[6] = {5, 2, 4, 0, 1, 3}; /* of the view, in memory order */
    const int64_t wanted[6] = {32, 4, ceil_div(rows, 128), 4, ceil_div(k, 64), l};
    if (t->dtype == NVFP4_NONE) return REJECT(name, ("is missing"), ("must be a tensor"));
    if (t->ndim != 6)
        return REJECT(name, ("has %d dimensions", t->ndim), ("must have 6 ([32, 4, rest_m, 4, rest_k, L])"));
    int64_t shape[6];
    for (int i = 0; i < 6; i++) {
        shape[i] = t->shape[axes[i]];
        if (shape[i] != wanted[axes[i]])
            return REJECT(name, ("dimension %d is %lld", axes[i], (long long)shape[i]),
                          ("must be %lld ([32, 4, rest_m, 4, rest_k, L])", (long long)wanted[axes[i]]));
    }
    nvfp4_tensor blocks = contiguous_tensor((int32_t)t->dtype, t->device, 6, shape);
    for (int i = 0; i < 6; i++)
        if (shape[i] > 1 && t->stride[axes[i]] != blocks.stride[i])
            return REJECT(
                name, ("stride of dimension %d is %lld", axes[i], (long long)t->stride[axes[i]]),
                ("must be %lld (a view of contiguous (L, rest_m, rest_k, 32, 4, 4))", (long long)blocks.stride[i]));
    blocks.data = t->data;
    *t = blocks;
    return NVFP4_OK;
}

static nvfp4_status gemm_of_views(operation_args *all) {
    nvfp4_gemm_args *args = &all->gemm;
    if (args->a.dtype == NVFP4_FP16 || args->a.dtype == NVFP4_BF16)
        return REJECT("a", ("dtype is %s", nvfp4_dtype_name(args->a.dtype)), ("must be uint8 or float4_e2m1fn_x2"));
    nvfp4_status status = rotate("a", "[M, K/2, L]", &args->a);
    if (!status) status = rotate("b", "[N, K/2, L]", &args->b);
    if (!status) status = rotate("c", "[M, N, L]", &args->out);
    if (status) return status;
    int64_t l = args->a.shape[0], k = args->a.shape[2] * 2;
    status = restore_blocks("sfa_permuted", args->a.shape[1], k, l, &args->scale_a);
    if (!status) status = restore_blocks("sfb_permuted", args->b.shape[1], k, l, &args->scale_b);
    return status;
}

#define AT(field) offsetof(nvfp4_gemm_args, field)
static const operation_tensor view_tensors[] = {
    {"a", AT(a), INPUT, HOLDS_VALUES, 0, 0},
    {"b", AT(b), INPUT, HOLDS_VALUES, 0, 0},
    {"sfa_permuted", AT(scale_a), INPUT, HOLDS_SCALES, 0, 0},
    {"sfb_permuted", AT(scale_b), INPUT, HOLDS_SCALES, 0, 0},
    {"c", AT(out), OUTPUT, HOLDS_FLOATS, 0, 0},
};
#undef AT
const operation operation_custom_kernel = {
    .name = "custom_kernel",
    .args_bytes = sizeof(nvfp4_gemm_args),
    .min_bytes = sizeof(nvfp4_gemm_args),
    .defaults = default_gemm,
    .tensors = TENSORS(view_tensors),
    .given = RESULTS_GIVEN,
    .adapt = gemm_of_views,
    .check = check_gemm,
    .plan = gemm_plan,
    .bind = bind_gemm,
    .run = gemm_run,
};
