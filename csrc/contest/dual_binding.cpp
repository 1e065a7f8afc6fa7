/* The torch operation of the competition's file for nvfp4_dual_gemm: checks the tensors of a call and calls
 * contest_dual. An argument that the kernel cannot take raises an error that names it. */
#include "contest/checks.h"
#include "contest/dual_launch.h"

#include <torch/library.h>

namespace {

/* c[m, n, 0] = silu(a[m, :, 0] . b1[n, :, 0]) * (a[m, :, 0] . b2[n, :, 0]). */
void dual_gemm(const at::Tensor &a, const at::Tensor &b1, const at::Tensor &b2, const at::Tensor &sfa,
               const at::Tensor &sfb1, const at::Tensor &sfb2, const at::Tensor &c) {
    TORCH_CHECK(a.dim() == 3 && c.dim() == 3, "a and c: must have 3 dimensions");
    const int64_t m = c.size(0), n = c.size(1), l = c.size(2), k = 2 * a.size(1);
    TORCH_CHECK(m > 0 && n > 0 && l == 1 && m < INT32_MAX && n < INT32_MAX && k < INT32_MAX, "c: is ", c.sizes(),
                "; M and N must be positive and below 2^31, L must be 1");
    TORCH_CHECK(k > 0 && k % 64 == 0, "a: K is ", k, "; must be a multiple of 64");
    check_values("a", a, m, k, l);
    check_values("b1", b1, n, k, l);
    check_values("b2", b2, n, k, l);
    TORCH_CHECK(n == 1 || b1.stride(0) == b2.stride(0), "b2: has strides ", b2.strides(), ", but b1 has ",
                b1.strides());
    check_scales("sfa_permuted", sfa, m, k, l);
    check_scales("sfb1_permuted", sfb1, n, k, l);
    check_scales("sfb2_permuted", sfb2, n, k, l);
    check_result(c);
    check_devices(a, {&b1, &b2, &sfa, &sfb1, &sfb2, &c});

    const std::string error = contest_dual({m,
                                            n,
                                            k,
                                            a.const_data_ptr(),
                                            {b1.const_data_ptr(), b2.const_data_ptr()},
                                            sfa.const_data_ptr(),
                                            {sfb1.const_data_ptr(), sfb2.const_data_ptr()},
                                            c.mutable_data_ptr(),
                                            a.stride(0),
                                            b1.stride(0),
                                            2 * c.stride(0),
                                            a.is_cpu() ? -1 : a.device().index()});
    TORCH_CHECK(error.empty(), error);
}

} // namespace

/* No dispatch key: dual_gemm checks the device of the tensors. */
TORCH_LIBRARY(nvfp4_contest, library) {
    library.def("dual_gemm(Tensor a, Tensor b1, Tensor b2, Tensor sfa_permuted, Tensor sfb1_permuted, "
                "Tensor sfb2_permuted, Tensor(a!) c) -> ()",
                &dual_gemm);
}
