/* The torch operation of the competition's file: checks the tensors of a call and calls contest_gemm. An argument that
 * the kernel cannot take raises an error that names it. */
#include "contest/checks.h"
#include "contest/launch.h"

#include <torch/library.h>

namespace {

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
    check_result(c);
    check_devices(a, {&b, &sfa, &sfb, &c});

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
