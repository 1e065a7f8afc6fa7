/* The torch operation of the competition's file: checks the tensors of a call and calls contest_gemm. An argument that
 * the kernel cannot take raises an error that names it. */
#include "contest/launch.h"

#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace {

bool on_16_bytes(const at::Tensor &t) {
    return (uintptr_t)t.const_data_ptr() % 16 == 0;
}

bool has_type(const at::Tensor &t, at::ScalarType type) {
    return t.scalar_type() == type || t.scalar_type() == at::kByte;
}

/* [rows, K/2, L] with K innermost and 16-byte alignment, which TMA needs. The stride of a dimension of size 1 may be
 * anything; the launch plan does not use it. */
void check_values(const char *name, const at::Tensor &t, int64_t rows, int64_t k, int64_t l) {
    TORCH_CHECK(t.dim() == 3 && t.size(0) == rows && t.size(1) == k / 2 && t.size(2) == l, name, ": is ", t.sizes(),
                "; must be [", rows, ", ", k / 2, ", ", l, "]");
    TORCH_CHECK(has_type(t, at::ScalarType::Float4_e2m1fn_x2), name, ": is ", t.scalar_type(),
                "; must be float4_e2m1fn_x2 or uint8");
    TORCH_CHECK(t.stride(1) == 1 && (rows == 1 || t.stride(0) % 16 == 0) && (l == 1 || t.stride(2) % 16 == 0) &&
                    on_16_bytes(t),
                name, ": has strides ", t.strides(), "; K must be innermost, rows and batches on 16 bytes");
}

/* [32, 4, 128-row blocks, 4, K/64, L]; in memory [L, blocks, K/64, 32, 4, 4]. */
void check_scales(const char *name, const at::Tensor &t, int64_t rows, int64_t k, int64_t l) {
    const int64_t blocks = (rows + 127) / 128, atoms = k / 64;
    const int64_t sizes[] = {32, 4, blocks, 4, atoms, l};
    const int64_t strides[] = {16, 4, atoms * 512, 1, 512, blocks * atoms * 512};
    TORCH_CHECK(t.dim() == 6 && has_type(t, at::ScalarType::Float8_e4m3fn), name, ": has ", t.dim(), " dimensions of ",
                t.scalar_type(), "; must have 6 of float8_e4m3fn or uint8");
    for (int i = 0; i < 6; i++)
        TORCH_CHECK(t.size(i) == sizes[i] && (sizes[i] == 1 || t.stride(i) == strides[i]), name, ": is ", t.sizes(),
                    " with strides ", t.strides(), "; must be ", at::IntArrayRef(sizes), " with ",
                    at::IntArrayRef(strides));
    TORCH_CHECK(on_16_bytes(t), name, ": must begin on 16 bytes");
}

/* c[m, n, l] = a[m, :, l] . b[n, :, l]. b may have its rows padded to a multiple of 128; the first n are used. */
void gemm(const at::Tensor &a, const at::Tensor &b, const at::Tensor &sfa, const at::Tensor &sfb, const at::Tensor &c) {
    TORCH_CHECK(a.dim() == 3 && b.dim() == 3 && c.dim() == 3, "a, b and c: must have 3 dimensions");
    const int64_t m = c.size(0), n = c.size(1), l = c.size(2), k = 2 * a.size(1);
    TORCH_CHECK(m > 0 && n > 0 && l > 0 && m < INT32_MAX && n < INT32_MAX && l < INT32_MAX && k < INT32_MAX, "c: is ",
                c.sizes(), "; no size may be 0 or 2^31");
    TORCH_CHECK(k > 0 && k % 64 == 0, "a: K is ", k, "; must be a multiple of 64");
    const int64_t padded = (n + 127) / 128 * 128, rows_b = b.size(0) == padded ? padded : n;
    check_values("a", a, m, k, l);
    check_values("b", b, rows_b, k, l);
    check_scales("sfa_permuted", sfa, m, k, l);
    check_scales("sfb_permuted", sfb, n, k, l);
    TORCH_CHECK(c.scalar_type() == at::kHalf && (n == 1 || c.stride(1) == 1) && c.is_non_overlapping_and_dense(),
                "c: is ", c.scalar_type(), " with strides ", c.strides(), "; must be float16 with rows of neighbours");
    for (const at::Tensor *t : {&b, &sfa, &sfb, &c})
        TORCH_CHECK(t->device() == a.device(), "a tensor is on ", t->device(), ", but a is on ", a.device());

    const std::string error =
        contest_gemm({m, n, k, l, a.const_data_ptr(), b.const_data_ptr(), sfa.const_data_ptr(), sfb.const_data_ptr(),
                      c.mutable_data_ptr(), a.stride(0), a.stride(2), b.stride(0), b.stride(2), 2 * c.stride(0),
                      2 * c.stride(2), a.is_cpu() ? -1 : a.device().index()});
    TORCH_CHECK(error.empty(), error);
}

} // namespace

/* No dispatch key: gemm checks the device of the tensors. */
TORCH_LIBRARY(nvfp4_contest, library) {
    library.def("gemm(Tensor a, Tensor b, Tensor sfa_permuted, Tensor sfb_permuted, Tensor(a!) c) -> ()", &gemm);
}
