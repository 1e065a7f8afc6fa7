/* Dequantizes rows in the order along K of the Hopper kernels (sm90/dequant.cu). A warp takes 256 values of two rows at
 * a time. A lane has a scale group of each row, lanes of a quad exchange pairs, so that each holds whole chunks of 16
 * bytes, and a warp stores whole lines. */
#ifndef NVFP4_SM90_DEQUANT_CUH
#define NVFP4_SM90_DEQUANT_CUH

#include "kernels/common/decode.cuh"
#include "kernels/common/w4a16.cuh"

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

/* A scale group of each of a lane's `count` rows; the same count in the whole warp. */
template <int ROWS> struct e2m1_lane {
    uint2 words[ROWS];
    uint32_t scales[ROWS];

    /* The steps lie between two rows. `have`: rows that exist. */
    __device__ __forceinline__ void load(const uint8_t *data, int64_t data_step, const uint8_t *scale,
                                         int64_t scale_step, int count, int have) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            words[i] = make_uint2(0, 0);
            scales[i] = 0;
            if (i < count && i < have) {
                words[i] = *(const uint2 *)(data + i * data_step);
                scales[i] = scale[i * scale_step];
            }
        }
    }

    __device__ __forceinline__ void store(char *to, int64_t step, int count, int have) const {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (i == count) break;
            uint32_t pairs[2][4], scale_pair = decode_scales(scales[i], 0);
            decode_word<0>(words[i].x, scale_pair, pairs[0]);
            decode_word<0>(words[i].y, scale_pair, pairs[1]);
            store_pairs(to + i * step, pairs, i < have);
        }
    }
};

/* The same for fp16 or bf16, which are put into order: 16 values of each row. */
template <int ROWS> struct a16_lane {
    uint4 values[ROWS][2];

    __device__ __forceinline__ void load(const uint8_t *data, int64_t step, int count, int have) {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int w = 0; w < 2; w++)
                values[i][w] = i < count && i < have ? ((const uint4 *)(data + i * step))[w] : make_uint4(0, 0, 0, 0);
    }

    __device__ __forceinline__ void store(int type, char *to, int64_t step, int count, int have) const {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (i >= count) break;
            uint32_t pairs[2][4];
#pragma unroll
            for (int w = 0; w < 2; w++)
                if (type == NVFP4_FP16)
                    w4a16<NVFP4_FP16>::activations(values[i][w], pairs[w]);
                else
                    w4a16<NVFP4_BF16>::activations(values[i][w], pairs[w]);
            store_pairs(to + i * step, pairs, i < have);
        }
    }
};

#endif
