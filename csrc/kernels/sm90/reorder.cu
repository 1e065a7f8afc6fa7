/* Pre-passes of sm90/grouped.cu: the rows of its result in their order, as rows of A in 16 bits, in the order along K to
 * which dequantizing B in registers leads. So a row is put into order once, and not for every tile that it meets. Rows
 * have 64 * ceil(K/64) values, zero past K. Rows that A does not have are left as they are.
 *
 * Eight lanes have a span of 64 values: lane 4w + t the values 8w to 8w + 7 of the 16 at 16t, which as pairs
 * (common/w4a16.cuh) are a word each of the 16-byte chunks 4w to 4w + 3. So four lanes transpose theirs, and each
 * stores a chunk.
 *
 *   nvfp4_sm90_reorder        fp16 or bf16 A, any rows of it
 *   nvfp4_sm90_reorder_e2m1   NVFP4 A with 128x4 scales: its values times their scales, exact in fp16
 *
 * Both begin the count of tiles that CTAs of the product claim, and let the grid after them start once all grids before
 * them have completed. */
#include "kernels/common/cluster.cuh"
#include "kernels/common/group_scales.cuh"
#include "kernels/common/group_tile.cuh"
#include "kernels/common/w4a16.cuh"
#include "kernels/sm90/grouped_config.h"

/* Lane t of four neighbours gets v[t] of each, in their order. */
__device__ __forceinline__ void transpose_4x4(uint32_t (&v)[4]) {
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {
        const bool upper = threadIdx.x & step;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int low = step == 1 ? 2 * i : i, high = low + step;
            const uint32_t got = __shfl_xor_sync(0xFFFFFFFF, upper ? v[low] : v[high], step);
            if (upper)
                v[low] = got;
            else
                v[high] = got;
        }
    }
}

extern "C" __global__ void __launch_bounds__(SM90_REORDER_THREADS)
    nvfp4_sm90_reorder(const __grid_constant__ sm90_reorder_schedule s) {
    constexpr int SPANS = SM90_REORDER_THREADS / 8; /* that the CTA has at a time */
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    if (blockIdx.x == 0 && threadIdx.x == 0) *s.claimed = 0;
    const uint32_t t = threadIdx.x % 4, word = threadIdx.x % 8 / 4;
    uint4 pieces[SM90_REORDER_PASSES];
    uint32_t exists = 0;
#pragma unroll
    for (int i = 0; i < SM90_REORDER_PASSES; i++) {
        const uint32_t index = (blockIdx.x * SM90_REORDER_PASSES + i) * SPANS + threadIdx.x / 8;
        const uint32_t row = index / (uint32_t)s.spans, span = index % (uint32_t)s.spans;
        const int64_t k = (int64_t)span * SM90_GROUPED_STAGE_K + t * 16 + word * 8;
        const int64_t from = row >= s.count ? -1 : s.rows ? s.rows[row] : (int64_t)row;
        pieces[i] = make_uint4(0, 0, 0, 0);
        if (from < 0 || from >= s.a_rows) continue;
        exists |= 1u << i;
        if (k < s.k) pieces[i] = *(const uint4 *)(s.a + from * s.a_pitch + k * 2);
    }
#pragma unroll
    for (int i = 0; i < SM90_REORDER_PASSES; i++) {
        const int64_t index = (int64_t)(blockIdx.x * SM90_REORDER_PASSES + i) * SPANS + threadIdx.x / 8;
        uint32_t pairs[4];
        if (s.bf16)
            w4a16<NVFP4_BF16>::activations(pieces[i], pairs);
        else
            w4a16<NVFP4_FP16>::activations(pieces[i], pairs);
        transpose_4x4(pairs);
        if (exists >> i & 1)
            *(uint4 *)(s.to + index * (SM90_GROUPED_STAGE_K * 2) + threadIdx.x % 8 * 16) =
                make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
}

/* A CTA has up to 32 rows of a group, neighbours in the 128x4 layout, by 16 * 64 values. Of a row a warp has 4 spans at a
 * time. Scales of such rows exist or do not, all of them; those past K may be NaN. The factor 2^6 removes what
 * decode_word leaves: 448 * 2^6 is below fp16's 65504, and no product is below 2^-10. */
extern "C" __global__ void __launch_bounds__(SM90_REORDER_THREADS)
    nvfp4_sm90_reorder_e2m1(const __grid_constant__ grouped_problem p,
                            const __grid_constant__ sm90_reorder_e2m1_schedule s) {
    constexpr int WARPS = SM90_REORDER_THREADS / 32, ROWS = SM90_REORDER_TILE_M / WARPS,
                  PASSES = SM90_REORDER_SPANS / 4;
    __shared__ group_tile_scratch<SM90_REORDER_THREADS> scratch;
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    if (blockIdx.x == 0 && threadIdx.x == 0) *s.claimed = 0;
    const gemm_problem &g = p.g;
    const uint32_t number = blockIdx.x / (uint32_t)s.chunks, chunk = blockIdx.x % (uint32_t)s.chunks;
    const group_tile tile =
        find_group_tile<SM90_REORDER_THREADS>(p.ends, p.groups, (int)g.m, SM90_REORDER_TILE_M, number, scratch);
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4, word = lane % 8 / 4;
    const int32_t first = (int32_t)chunk * SM90_REORDER_SPANS + lane / 8, in_group = tile.row - tile.begin;
    if (tile.rows == 0 || in_group >= rows_with_scales(p, tile.group)) return; /* all of the CTA */

    const int64_t scale_row = p.scale_rows[tile.group] + (int64_t)in_group;
    const uint8_t *scales = g.scale_a + scale_row / SM90_ATOM_ROWS * g.scale_a_pitch +
                            (int64_t)first * SM90_ATOM_BYTES + scale_row % SM90_ATOM_ROWS / 32 * 4 + t;
    const uint8_t *values = g.a + tile.row * g.a_pitch + first * 32 + t * 8 + word * 4;
    uint8_t *to = s.to + ((int64_t)tile.row * s.spans + first) * (SM90_GROUPED_STAGE_K * 2) + lane % 8 * 16;
    const int32_t left = (int32_t)(g.k / 16) - first * 4 - t; /* blocks of 16 values from the lane's first one to K */
    uint32_t words[ROWS][PASSES], scale[ROWS][PASSES];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            const int row = warp + r * WARPS;
            words[r][i] = scale[r][i] = 0;
            if (row >= tile.rows || left <= i * 16) continue;
            words[r][i] = *(const uint32_t *)(values + row * g.a_pitch + i * 4 * 32);
            scale[r][i] = scales[row * 16 + i * 4 * SM90_ATOM_BYTES] & 0x7F;
        }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            const int row = warp + r * WARPS;
            uint32_t pairs[4];
            decode_word<0>(words[r][i], half2_multiply(decode_scales(scale[r][i], 0), 0x54005400), pairs);
            transpose_4x4(pairs);
            if (row < tile.rows && first + i * 4 < s.spans)
                *(uint4 *)(to + ((int64_t)row * s.spans + i * 4) * (SM90_GROUPED_STAGE_K * 2)) =
                    make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
}
