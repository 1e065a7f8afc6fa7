/* Pre-passes of sm90/grouped.cu: rows of A in 16 bits, in the order along K to which dequantizing B in registers leads
 * (sm90/gemm.cu). So a row is put into order once, and not for every tile that it meets. Rows have 128 * ceil(K/128)
 * values, zero past K.
 *
 * A thread has 8 of every 32 of 128 values. As pairs (common/w4a16.cuh) they are a word each of four 16-byte chunks, so
 * its four loads make four whole chunks, which are neighbours.
 *
 *   nvfp4_sm90_reorder        fp16 or bf16 A, any rows of it
 *   nvfp4_sm90_reorder_e2m1   NVFP4 A with 128x4 scales: its values times their scales, exact in fp16
 *
 * Each lets the grid after it start once all grids before it have completed. */
#include "kernels/common/cluster.cuh"
#include "kernels/common/group_scales.cuh"
#include "kernels/common/group_tile.cuh"
#include "kernels/common/w4a16.cuh"
#include "kernels/sm90/grouped_config.h"

template <int TYPE> __device__ __forceinline__ void store_chunks(uint4 *to, const uint4 (&natural)[4]) {
    uint32_t pairs[4][4];
#pragma unroll
    for (int t = 0; t < 4; t++) w4a16<TYPE>::activations(natural[t], pairs[t]);
#pragma unroll
    for (int q = 0; q < 4; q++) to[q] = make_uint4(pairs[0][q], pairs[1][q], pairs[2][q], pairs[3][q]);
}

extern "C" __global__ void __launch_bounds__(SM90_REORDER_THREADS)
    nvfp4_sm90_reorder(const __grid_constant__ sm90_reorder_schedule s) {
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    const int64_t index = ((int64_t)blockIdx.x * SM90_REORDER_THREADS + threadIdx.x) / 4, row = index / s.stages;
    if (row >= s.count) return;
    const int32_t k = (int32_t)(index % s.stages) * SM90_STAGE_K, eight = threadIdx.x % 4;
    const int64_t from = s.rows ? s.rows[row] : row;
    if (from < 0 || from >= s.a_rows) return; /* what is there is not multiplied */
    uint4 natural[4] = {};
#pragma unroll
    for (int t = 0; t < 4; t++)
        if (k + t * 32 + eight * 8 < s.k)
            natural[t] = *(const uint4 *)(s.a + from * s.a_pitch + (k + t * 32 + eight * 8) * 2);
    uint4 *to = (uint4 *)(s.to + (row * s.stages + k / SM90_STAGE_K) * (SM90_STAGE_K * 2)) + eight * 4;
    if (s.bf16)
        store_chunks<NVFP4_BF16>(to, natural);
    else
        store_chunks<NVFP4_FP16>(to, natural);
}

/* A thread reads 8 of every 32 values of a row, of 128 in all, and the scales under them. */
struct e2m1_piece {
    uint32_t words[4], scales[2];
};

__device__ __forceinline__ e2m1_piece load_piece(const uint8_t *values, const uint8_t *scales, int32_t left) {
    e2m1_piece piece = {};
#pragma unroll
    for (int t = 0; t < 4; t++)
        if (t < left) piece.words[t] = *(const uint32_t *)(values + t * 16);
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (2 * i < left) piece.scales[i] = *(const uint32_t *)(scales + i * SM90_ATOM_BYTES);
    return piece;
}

/* The even or the odd bytes of the scales are the thread's. Those past K, of which `mask` has no bits, may be NaN. The
 * factor 2^6 removes what e2m1_pairs leaves: 448 * 2^6 is below fp16's 65504, and no product is below 2^-10. */
__device__ __forceinline__ void store_piece(uint4 *to, const e2m1_piece &piece, bool odd, uint32_t mask) {
    const uint32_t four = __byte_perm(piece.scales[0], piece.scales[1], odd ? 0x7531 : 0x6420) & mask;
    uint32_t low, high, pairs[4][4];
    e4m3x4_to_half2x2(four, low, high);
    low = half2_multiply(low, 0x54005400), high = half2_multiply(high, 0x54005400);
    decode_word<0>(piece.words[0], low, pairs[0]);
    decode_word<1>(piece.words[1], low, pairs[1]);
    decode_word<0>(piece.words[2], high, pairs[2]);
    decode_word<1>(piece.words[3], high, pairs[3]);
#pragma unroll
    for (int q = 0; q < 4; q++) to[q] = make_uint4(pairs[0][q], pairs[1][q], pairs[2][q], pairs[3][q]);
}

/* A CTA has up to 32 rows of a group, neighbours in the 128x4 layout, by 8 * 128 values, which are a warp's. Scales of
 * such rows exist or do not, all of them. */
extern "C" __global__ void __launch_bounds__(SM90_REORDER_THREADS)
    nvfp4_sm90_reorder_e2m1(const __grid_constant__ grouped_problem p,
                            const __grid_constant__ sm90_reorder_e2m1_schedule s) {
    constexpr int WARPS = SM90_REORDER_THREADS / 32, PASSES = SM90_REORDER_TILE_M / WARPS;
    __shared__ group_tile_scratch<SM90_REORDER_THREADS> scratch;
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    const gemm_problem &g = p.g;
    const uint32_t number = blockIdx.x / (uint32_t)s.chunks, chunk = blockIdx.x % (uint32_t)s.chunks;
    const group_tile tile =
        find_group_tile<SM90_REORDER_THREADS>(p.ends, p.groups, (int)g.m, SM90_REORDER_TILE_M, number, scratch);
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, eight = lane % 4;
    const int32_t stage = (int32_t)chunk * SM90_REORDER_STAGES + lane / 4, in_group = tile.row - tile.begin;
    if (tile.rows == 0 || stage >= s.stages || in_group >= rows_with_scales(p, tile.group)) return;

    /* The thread has so many words that are not past K. */
    const int32_t left = min(4, max(0, (int32_t)(g.k - (int64_t)stage * SM90_STAGE_K - eight * 8 + 31) / 32));
    const uint32_t mask = 0x7F7F7F7F & (uint32_t)((1ull << left * 8) - 1);
    const int64_t scale_row = p.scale_rows[tile.group] + (int64_t)in_group;
    const uint8_t *values = g.a + tile.row * g.a_pitch + stage * (SM90_STAGE_K / 2) + eight * 4;
    const uint8_t *scales = g.scale_a + scale_row / SM90_ATOM_ROWS * g.scale_a_pitch +
                            (int64_t)stage * SM90_BLOCK_BYTES + scale_row % SM90_ATOM_ROWS / 32 * 4;
    uint8_t *to = s.to + ((int64_t)tile.row * s.stages + stage) * (SM90_STAGE_K * 2) + eight * 64;
    e2m1_piece pieces[PASSES];
#pragma unroll
    for (int i = 0; i < PASSES; i++) {
        const int row = warp + i * WARPS;
        if (row < tile.rows) pieces[i] = load_piece(values + row * g.a_pitch, scales + row * 16, left);
    }
#pragma unroll
    for (int i = 0; i < PASSES; i++) {
        const int row = warp + i * WARPS;
        if (row < tile.rows)
            store_piece((uint4 *)(to + (int64_t)row * s.stages * (SM90_STAGE_K * 2)), pieces[i], eight >= 2, mask);
    }
}
