/* Dequantizes a few rows of NVFP4 from global memory to fp16 in shared memory, by one warp, in the order along K of
 * sm90/dequant.cu. */
#ifndef NVFP4_COMMON_DEQUANT_ROWS_CUH
#define NVFP4_COMMON_DEQUANT_ROWS_CUH

#include "kernels/common/decode.cuh"
#include "kernels/common/shared.cuh"

/* Dequantizes the 16 values of two words under one half of `scales` into a lane's places of a 128-byte row, `row` +
 * 4t: pair q of word w goes to 16-byte chunk 4w + q, in the 128-byte swizzle of a row r (mod 8). Each store of a warp
 * of 8 rows covers all 32 banks. */
template <int half>
__device__ __forceinline__ void store_dequantized(uint32_t row, int r, uint32_t first, uint32_t second,
                                                  uint32_t scales) {
#pragma unroll
    for (int w = 0; w < 2; w++) {
        uint32_t pairs[4];
        decode_word<half>(w ? second : first, scales, pairs);
#pragma unroll
        for (int q = 0; q < 4; q++) st_shared(row + ((4 * w + q) ^ r) * 16, pairs[q]);
    }
}

/* 8 * EIGHTS rows by 128 values along K. Lane 4r + t has rows r, r + 8, ... and the 32 values under scales 2t and 2t +
 * 1, which go to the first and the second span. */
template <int EIGHTS> class dequant_rows {
    const uint8_t *data[EIGHTS], *scale[EIGHTS];
    int32_t left;           /* scales of a row from this lane's first on */
    uint2 words[EIGHTS][2]; /* [8 rows][scale] */
    uint32_t scales[EIGHTS][2];
    int r = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

  public:
    /* Rows from `first` on of a matrix of `rows`; rows past the end repeat the last one. 128x4 scales, 128-row blocks
     * scale_pitch bytes apart, `all` scales along K; scales past them are zero. */
    __device__ __forceinline__ void begin(const uint8_t *values, int64_t pitch, const uint8_t *atoms,
                                          int64_t scale_pitch, int32_t first, int32_t rows, int32_t all) {
        left = all - 2 * t;
#pragma unroll
        for (int i = 0; i < EIGHTS; i++) {
            int32_t row = min(first + i * 8 + r, rows - 1);
            data[i] = values + row * pitch + t * 16;
            scale[i] = atoms + row / 128 * scale_pitch + row % 32 * 16 + row % 128 / 32 * 4 + t / 2 * 512 + t % 2 * 2;
        }
    }

    /* Loads values from 128 * k on. */
    __device__ __forceinline__ void load(int32_t k) {
#pragma unroll
        for (int i = 0; i < EIGHTS; i++)
#pragma unroll
            for (int b = 0; b < 2; b++) {
                words[i][b] = make_uint2(0, 0), scales[i][b] = 0;
                if (k * 8 + b < left) {
                    words[i][b] = *(const uint2 *)(data[i] + (int64_t)k * 64 + b * 8);
                    scales[i][b] = scale[i][(int64_t)k * 1024 + b];
                }
            }
    }

    /* Dequantizes the loaded values: the first span to `to`, the second `span` bytes further. */
    __device__ __forceinline__ void store(uint32_t to, uint32_t span) const {
#pragma unroll
        for (int i = 0; i < EIGHTS; i++)
#pragma unroll
            for (int b = 0; b < 2; b++) {
                store_dequantized<0>(to + b * span + (i * 8 + r) * 128 + t * 4, r, words[i][b].x, words[i][b].y,
                                     decode_scales(scales[i][b], 0));
            }
    }
};

#endif
