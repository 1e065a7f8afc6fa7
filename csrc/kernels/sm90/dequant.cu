/* Dequantize pre-pass of sm90/gemm.cu and sm90/prefill.cu: NVFP4 to fp16, exact up to the power of two that decode.cuh
 * leaves to the epilogue. Rows have 128 * ceil(K/128) values, zero past K. An fp16 or bf16 A (W4A16) is copied in the
 * same order along K; its pairs are those of common/w4a16.cuh.
 *
 * Order along K: the order in which those kernels dequantize the other operand in registers. In a wgmma K-step of 16,
 * lane t of a quad supplies columns 2t, 2t + 1, 2t + 8, 2t + 9. Four K-steps, 128 bytes of the output, take 16 values
 * under one scale from each lane: pairs 0 and 1 of their word 0 for step 0, pairs 2 and 3 for step 1, word 1 likewise
 * for steps 2 and 3. So 16-byte chunk 4w + q of 128 bytes holds pair q of word w of four scale groups. Of each `span`
 * values these groups are
 *
 *   span 64, sm90/prefill.cu    0, 1, 2, 3
 *   span 128, sm90/gemm.cu      0, 2, 4, 6 in the first 128 bytes, 1, 3, 5, 7 in the second
 *
 * A CTA dequantizes 256 values of 128 rows, or of 32 rows (rows_per_thread 1) if latency matters more than throughput:
 *
 *   lane      4 scale groups x 4 times 128 bytes of the output x 2 rows
 *   further   rows 32, 64, 96 of the same lane: their scales are neighbours in the 128x4 layout
 *
 * Lanes of a quad exchange pairs (transpose_quad), so that each holds whole chunks and a warp stores whole lines. */
#include "common/problem.h"
#include "kernels/common/cluster.cuh"
#include "kernels/common/decode.cuh"
#include "kernels/common/w4a16.cuh"
#include "kernels/sm90/gemm_config.h"
#include "kernels/sm90/prefill_config.h"

static_assert(SM90_DEQUANT_THREADS >= SM90_MAX_WORKERS, "a thread for each flag");

enum { ROWS_PER_THREAD = 4 };
static_assert(2 * SM90_DEQUANT_THREADS / 32 == 32, "a warp has 2 of 32 rows");

/* Transposes a 4x4 matrix of words over the lanes of a quad. */
__device__ __forceinline__ void transpose_quad(uint32_t (&v)[4]) {
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint32_t got = __shfl_xor_sync(~0u, odd ? v[i] : v[i + 1], 1);
        if (odd)
            v[i] = got;
        else
            v[i + 1] = got;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t got = __shfl_xor_sync(~0u, high ? v[i] : v[i + 2], 2);
        if (high)
            v[i] = got;
        else
            v[i + 2] = got;
    }
}

/* Stores 16 values, as pairs of two words, of each lane of a quad. */
__device__ __forceinline__ void store_pairs(char *to, uint32_t (&pairs)[2][4], bool exists) {
    transpose_quad(pairs[0]);
    transpose_quad(pairs[1]);
    if (!exists) return;
    ((uint4 *)to)[0] = make_uint4(pairs[0][0], pairs[0][1], pairs[0][2], pairs[0][3]);
    ((uint4 *)to)[4] = make_uint4(pairs[1][0], pairs[1][1], pairs[1][2], pairs[1][3]);
}

extern "C" __global__ void __launch_bounds__(SM90_DEQUANT_THREADS)
    nvfp4_sm90_dequant(const __grid_constant__ sm90_dequant_schedule s) {
    bool is_second = (int32_t)blockIdx.x >= s.first_ctas;
    const sm90_dequant_operand &operand = is_second ? s.second : s.first;
    uint32_t chunks = (uint32_t)((s.k + SM90_DEQUANT_K - 1) / SM90_DEQUANT_K);
    uint32_t blocks = ((uint32_t)operand.rows + 32 * s.rows_per_thread - 1) / (32 * s.rows_per_thread);
    uint32_t index = blockIdx.x - (is_second ? s.first_ctas : 0), block = index / chunks,
             chunk = index - block * chunks;
    uint32_t l = 0;
    if (block >= blocks) l = block / blocks, block -= l * blocks; /* no division for one batch */

    int lane = threadIdx.x % 32, t = lane % 4, warp = threadIdx.x / 32;
    int r = warp * 2 + lane / 16;                                        /* of 32 rows */
    int64_t k64 = (int64_t)chunk * (SM90_DEQUANT_K / 64) + lane / 4 % 4; /* 128 bytes of the output */
    int64_t group = s.span == 128 ? k64 / 2 * 8 + t * 2 + k64 % 2 : k64 * 4 + t;
    bool exists = group * 16 < s.k, stored = k64 / 2 * 128 < s.k, linear = s.scale_layout == NVFP4_LINEAR;
    uint32_t quarter = block * s.rows_per_thread; /* quarter of a block of 128 rows */
    int32_t first = quarter * 32 + r;
    int64_t to_pitch = SM90_DEQUANT_PITCH(s.k);
    const uint8_t *data =
        operand.data + l * operand.batch + first * operand.pitch + group * (operand.type == VALUES_E2M1 ? 8 : 32);
    const uint8_t *scale =
        operand.scale + l * operand.scale_batch +
        (linear ? first * operand.scale_pitch + group
                : quarter / 4 * operand.scale_pitch + group / 4 * 512 + r * 16 + quarter % 4 * 4 + group % 4);
    int64_t scale_step = linear ? 32 * operand.scale_pitch : 4;
    char *to = (char *)operand.to + ((int64_t)l * operand.rows + first) * to_pitch + k64 * 128 + t * 16;

    if (s.launch_first) griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    griddepcontrol_launch_dependents(); /* has no effect the second time */
    if (blockIdx.x == 0 && (int32_t)threadIdx.x < s.flags) s.zeroed[threadIdx.x] = 0;

    if (operand.type != VALUES_E2M1) {
        uint4 values[ROWS_PER_THREAD][2];
#pragma unroll
        for (int i = 0; i < ROWS_PER_THREAD; i++)
#pragma unroll
            for (int w = 0; w < 2; w++) {
                const bool loaded = i < s.rows_per_thread && exists && first + i * 32 < operand.rows;
                values[i][w] = loaded ? ((const uint4 *)(data + i * 32 * operand.pitch))[w] : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
        for (int i = 0; i < ROWS_PER_THREAD; i++) {
            if (i >= s.rows_per_thread) break;
            uint32_t pairs[2][4];
#pragma unroll
            for (int w = 0; w < 2; w++)
                if (operand.type == NVFP4_FP16)
                    w4a16<NVFP4_FP16>::activations(values[i][w], pairs[w]);
                else
                    w4a16<NVFP4_BF16>::activations(values[i][w], pairs[w]);
            store_pairs(to + i * 32 * to_pitch, pairs, stored && first + i * 32 < operand.rows);
        }
        return;
    }
    uint2 words[ROWS_PER_THREAD];
    uint32_t scales[ROWS_PER_THREAD];
#pragma unroll
    for (int i = 0; i < ROWS_PER_THREAD; i++) {
        words[i] = make_uint2(0, 0);
        scales[i] = 0;
        if (i < s.rows_per_thread && exists && first + i * 32 < operand.rows) {
            words[i] = *(const uint2 *)(data + i * 32 * operand.pitch);
            scales[i] = scale[i * scale_step];
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS_PER_THREAD; i++) {
        if (i == s.rows_per_thread) break;
        uint32_t pairs[2][4], scale_pair = decode_scales(scales[i], 0);
        decode_word<0>(words[i].x, scale_pair, pairs[0]);
        decode_word<0>(words[i].y, scale_pair, pairs[1]);
        store_pairs(to + i * 32 * to_pitch, pairs, stored && first + i * 32 < operand.rows);
    }
}
