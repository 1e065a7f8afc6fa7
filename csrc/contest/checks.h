/* Checks of tensors that the operations of the competition's files share. */
#ifndef NVFP4_CONTEST_CHECKS_H
#define NVFP4_CONTEST_CHECKS_H

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <stdint.h>

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

void check_result(const at::Tensor &c) {
    TORCH_CHECK(c.scalar_type() == at::kHalf && (c.size(1) == 1 || c.stride(1) == 1) &&
                    c.is_non_overlapping_and_dense(),
                "c: is ", c.scalar_type(), " with strides ", c.strides(), "; must be float16 with rows of neighbours");
}

void check_devices(const at::Tensor &a, std::initializer_list<const at::Tensor *> others) {
    for (const at::Tensor *t : others)
        TORCH_CHECK(t->device() == a.device(), "a tensor is on ", t->device(), ", but a is on ", a.device());
}

} // namespace

#endif
