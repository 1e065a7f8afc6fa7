/* Stores of a lane that has a column of the result, of a 16-bit type. */
#ifndef NVFP4_SM100_COLUMN_PAIRS_CUH
#define NVFP4_SM100_COLUMN_PAIRS_CUH

#include "kernels/common/epilogue.cuh"

/* Neighbouring lanes have neighbouring columns, the even one an even column: each stores both columns of every other
 * row. All lanes of a warp. v: `count` rows of the lane's column, which `exists`, from `to` on, `pitch` bytes apart. */
template <int TYPE, int COUNT>
__device__ __forceinline__ void store_column_pairs(const float (&v)[COUNT], char *to, int64_t pitch, bool exists,
                                                   int count) {
    uint32_t rows[COUNT / 2];
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) rows[i / 2] = pack_16(v[i], v[i + 1], TYPE);
    int odd = threadIdx.x % 2;
    to += odd * (pitch - 2);
#pragma unroll
    for (int i = 0; i < COUNT; i += 2, to += 2 * pitch) {
        uint32_t own = rows[i / 2], other = __shfl_xor_sync(0xffffffff, own, 1);
        uint32_t pair = odd ? __byte_perm(other, own, 0x7632) : __byte_perm(own, other, 0x5410);
        if (exists && i + odd < count) *(uint32_t *)to = pair;
    }
}

#endif
