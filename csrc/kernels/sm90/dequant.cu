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
 * Lanes of a quad exchange pairs (sm90/dequant.cuh), so that each holds whole chunks and a warp stores whole lines.
 *
 * For sm90/prefill.cu it dequantizes the first `chunks` of K alone, and prepares the flags with which that kernel
 * dequantizes the rest.
 *
 * The kernels sm90_fake_quantize take an fp16 or bf16 x that the product multiplies as NVFP4 (quantize_gemm): they
 * quantize each block of 16 with the bits of kernels/quantize, and dequantize it in registers. */
#include "common/problem.h"
#include "kernels/common/cluster.cuh"
#include "kernels/quantize/block.cuh"
#include "kernels/sm90/dequant.cuh"
#include "kernels/sm90/gemm_config.h"
#include "kernels/sm90/prefill_config.h"

enum { MAX_ROWS = 4 }; /* of a thread */
static_assert(2 * SM90_DEQUANT_THREADS / 32 == 32, "a warp has 2 of 32 rows");

/* Quantizes 16 values of each of `count` rows, of which `have` exist: e2m1_lane::load of an x. */
template <int TYPE>
__device__ __forceinline__ void quantize_lane(e2m1_lane<MAX_ROWS> &rows, const char *x, int64_t step, float g,
                                              int count, int have) {
    const bool in_range = g >= MIN_SCALE && g <= MAX_SCALE;
    const reciprocal over_g = reciprocal_of(g);
#pragma unroll
    for (int i = 0; i < MAX_ROWS; i++) {
        uint8_t scale = 0;
        rows.words[i] = make_uint2(0, 0);
        const bool exists = i < count && i < have;
        if (exists && in_range) {
            raw_block<TYPE> raw;
            raw.load(x + i * step, true);
            quantize_block<NVFP4_AMAX6>(raw.unpack(), g, over_g, &rows.words[i], &scale);
        } else if (exists) {
            quantize_any<TYPE, NVFP4_AMAX6>(x + i * step, g, &rows.words[i], &scale);
        }
        rows.scales[i] = scale;
    }
}

/* QUANTIZED: an operand of this type is quantized; 0: it is copied. */
template <int QUANTIZED> __device__ __forceinline__ void dequant(const sm90_dequant_schedule &s) {
    bool is_second = (int32_t)blockIdx.x >= s.first_ctas;
    const sm90_dequant_operand &operand = is_second ? s.second : s.first;
    uint32_t chunks = (uint32_t)s.chunks;
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
    for (uint32_t i = blockIdx.x * SM90_DEQUANT_THREADS + threadIdx.x; i < s.flags;
         i += gridDim.x * SM90_DEQUANT_THREADS) {
        uint32_t word = 0;
        if (i < s.ready) word = SM90_PREFILL_BLOCK_PIECES;
        if (i >= s.flags - 2) word = s.ready * SM90_PREFILL_BLOCK_PIECES; /* next, done */
        s.zeroed[i] = word;
    }

    const int have = first < operand.rows ? (operand.rows - first + 31) / 32 : 0;
    const int loaded = exists ? have : 0, kept = stored ? have : 0;
    e2m1_lane<MAX_ROWS> rows;
    if (operand.type == VALUES_E2M1) {
        rows.load(data, 32 * operand.pitch, scale, scale_step, s.rows_per_thread, loaded);
    } else if constexpr (QUANTIZED != 0) {
        const float g = s.global_scale ? *s.global_scale : s.global_value;
        quantize_lane<QUANTIZED>(rows, (const char *)data, 32 * operand.pitch, g, s.rows_per_thread, loaded);
    } else {
        a16_lane<MAX_ROWS> in_order;
        in_order.load(data, 32 * operand.pitch, s.rows_per_thread, loaded);
        in_order.store(operand.type, to, 32 * to_pitch, s.rows_per_thread, kept);
        return;
    }
    rows.store(to, 32 * to_pitch, s.rows_per_thread, kept);
}

extern "C" __global__ void __launch_bounds__(SM90_DEQUANT_THREADS)
    nvfp4_sm90_dequant(const __grid_constant__ sm90_dequant_schedule s) {
    dequant<0>(s);
}

extern "C" __global__ void __launch_bounds__(SM90_DEQUANT_THREADS, 2)
    nvfp4_sm90_fake_quantize_fp16(const __grid_constant__ sm90_dequant_schedule s) {
    dequant<NVFP4_FP16>(s);
}

extern "C" __global__ void __launch_bounds__(SM90_DEQUANT_THREADS, 2)
    nvfp4_sm90_fake_quantize_bf16(const __grid_constant__ sm90_dequant_schedule s) {
    dequant<NVFP4_BF16>(s);
}
