/* Quantization, dequantization and changes of scale layout on the GPU, bit for bit as cpu/quantize.c. quantize and
 * dequantize have the tiles of tiles.cuh. swizzle and unswizzle: a thread has the 4x4 bytes that are neighbours in the
 * 128x4 layout, a CTA 128 rows x SWIZZLE_COLUMNS scales. */
#include "kernels/quantize/tiles.cuh"

/* --- SwiGLU before quantization ------------------------------------------------------------------------------------
 */

template <int TYPE_> struct silu_mul_of_x {
    static constexpr int TYPE = TYPE_;
    static constexpr bool GATED = true;
    raw_block<TYPE> gate, up;

    __device__ __forceinline__ void load(const char *x, int64_t up_at, bool aligned) {
        gate.load(x, aligned), up.load(x + up_at, aligned);
    }
    __device__ __forceinline__ void values(float (&v)[16], bool steps) const {
        float factor[16];
        gate.values(v), up.values(factor);
#pragma unroll
        for (int i = 0; i < 16; i++) v[i] = silu(v[i]);
        multiply(v, factor, steps);
    }
    static __device__ __forceinline__ void multiply(float (&v)[16], const float (&factor)[16], bool steps) {
        if (steps) round_to_type<TYPE>(v);
#pragma unroll
        for (int i = 0; i < 16; i++) v[i] = __fmul_rn(v[i], factor[i]);
        if (steps) round_to_type<TYPE>(v);
    }
    /* |v|, and the sign of a product without the product. */
    __device__ __forceinline__ block unpack(bool steps) const {
        block b = signs_of(gate, up);
        float factor[16];
        gate.values(b.magnitude), up.values(factor);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float c = silu_limited(b.magnitude[i]);
            b.magnitude[i] = fabsf(__fmul_rn(c, sigmoid(c)));
            factor[i] = fabsf(factor[i]);
        }
        multiply(b.magnitude, factor, steps);
        return b;
    }
    template <int BLOCK_SCALE>
    static __device__ __forceinline__ void quantize_any_at(const char *x, int64_t up_at, bool steps, float g,
                                                           uint2 *data, uint8_t *scale, const float *) {
        silu_mul_of_x source;
        float v[16];
        source.load(x, up_at, false);
        source.values(v, steps);
        quantize_any<NVFP4_FP32, BLOCK_SCALE>((const char *)v, g, data, scale);
    }
};

/* --- dequantize --------------------------------------------------------------------------------------------------- */

/* Stores the 16 bytes of COUNT values. */
template <int TYPE, int COUNT> __device__ __forceinline__ void store_piece(const float (&v)[COUNT], char *to) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        w[i] = TYPE == NVFP4_FP32 ? __float_as_uint(v[i]) : pack_16(v[2 * i % COUNT], v[(2 * i + 1) % COUNT], TYPE);
    if ((uintptr_t)to % 16 == 0)
        *(uint4 *)to = make_uint4(w[0], w[1], w[2], w[3]);
    else
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (TYPE == NVFP4_FP32)
                ((uint32_t *)to)[i] = w[i];
            else
                ((uint16_t *)to)[i] = (uint16_t)(w[i / 2] >> i % 2 * 16);
}

/* A thread has the 16-byte pieces of the output that are as many apart as the tile has scales in a row, so that a warp
 * stores neighbours. All loads precede the stores. */
template <int TYPE> __device__ __forceinline__ void dequantize(const quantize_problem &p) {
    constexpr int item = TYPE == NVFP4_FP32 ? 4 : 2, count = 16 / item;
    block_coord at(p);
    if (at.l >= (uint32_t)p.l || at.row >= (uint32_t)p.rows) return;
    float g = global_scale(p, at.l, at.row);
    const uint8_t *data = at.data(p);
    uint32_t codes[item], scales[item], left = (uint32_t)p.k / 16 - at.column;
#pragma unroll
    for (int i = 0; i < item; i++) {
        uint32_t piece = i * at.width + at.lane;
        codes[i] = scales[i] = 0;
        if (piece / item >= left) continue;
        codes[i] = count == 8 ? ((const uint32_t *)data)[piece] : ((const uint16_t *)data)[piece];
        scales[i] = at.scale[piece / item];
    }
    char *x = at.x(p, item);
#pragma unroll
    for (int i = 0; i < item; i++) {
        uint32_t piece = i * at.width + at.lane;
        if (piece / item >= left) return;
        float scale = __fmul_rn(decode_e4m3(scales[i]), 0x1p14f), v[count];
        decode_e2m1(codes[i], v);
#pragma unroll
        for (int j = 0; j < count; j++) v[j] = __fmul_rn(__fmul_rn(v[j], scale), g);
        store_piece<TYPE>(v, x + piece * 16);
    }
}

/* 4 CTAs an SM: 64 registers hold a block and the next one, without spills. 3 for two block scales or two inputs: 80.
 */
#define KERNELS(NAME, TYPE, SILU_CTAS)                                                                                 \
    QUANTIZE_KERNEL(nvfp4_quantize_##NAME, 4, values_of_x<TYPE>, NVFP4_AMAX6)                                          \
    QUANTIZE_KERNEL(nvfp4_four_over_six_##NAME, 3, values_of_x<TYPE>, NVFP4_FOUR_OVER_SIX)                             \
    QUANTIZE_KERNEL(nvfp4_silu_mul_quantize_##NAME, SILU_CTAS, silu_mul_of_x<TYPE>, NVFP4_AMAX6)                       \
    extern "C" __global__ void __launch_bounds__(QUANTIZE_THREADS)                                                     \
        nvfp4_dequantize_##NAME(const __grid_constant__ quantize_problem p) {                                          \
        dequantize<TYPE>(p);                                                                                           \
    }
KERNELS(fp16, NVFP4_FP16, 3)
KERNELS(bf16, NVFP4_BF16, 3)
KERNELS(fp32, NVFP4_FP32, 2)

/* --- changes of scale layout -------------------------------------------------------------------------------------- */

/* Columns 4c to 4c + 3 of rows r, r + 32, r + 64 and r + 96 of a 128-row block: 16 neighbours in the 128x4 layout. */
struct swizzle_chunk {
    uint8_t *linear; /* the first row */
    uint4 *swizzled;
    int rows, columns; /* how many exist; columns <= 0: there is no such chunk */
    bool aligned;      /* each row is a word */

    __device__ __forceinline__ swizzle_chunk(const swizzle_problem &p) {
        constexpr uint32_t width = SWIZZLE_COLUMNS / 4;
        uint32_t atoms = ((uint32_t)p.columns + 3) / 4, blocks = ((uint32_t)p.rows + 127) / 128;
        tile_coord tile(p.l, blocks);
        uint32_t atom = blockIdx.x * width + threadIdx.x % width, row = tile.y * 128 + threadIdx.x / width;
        linear = p.linear + tile.l * p.linear_batch + row * p.linear_pitch + (int64_t)atom * 4;
        swizzled = (uint4 *)p.swizzled + (((int64_t)tile.l * blocks + tile.y) * atoms + atom) * 32 + row % 128;
        rows = row < (uint32_t)p.rows ? (int)min(((uint32_t)p.rows - row + 31) / 32, 4u) : 0;
        columns = tile.l < (uint32_t)p.l ? min((int)p.columns - (int)atom * 4, 4) : 0;
        aligned = columns == 4 && (((uintptr_t)linear | (uintptr_t)p.linear_pitch) & 3) == 0;
    }
};

extern "C" __global__ void __launch_bounds__(QUANTIZE_THREADS)
    nvfp4_swizzle_scales(const __grid_constant__ swizzle_problem p) {
    swizzle_chunk at(p);
    if (at.columns <= 0) return;
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint8_t *row = at.linear + i * 32 * p.linear_pitch;
        words[i] = at.aligned && i < at.rows ? *(const uint32_t *)row : 0;
        if (!at.aligned && i < at.rows)
            for (int j = 0; j < at.columns; j++) words[i] |= (uint32_t)row[j] << 8 * j;
    }
    *at.swizzled = make_uint4(words[0], words[1], words[2], words[3]);
}

extern "C" __global__ void __launch_bounds__(QUANTIZE_THREADS)
    nvfp4_unswizzle_scales(const __grid_constant__ swizzle_problem p) {
    swizzle_chunk at(p);
    if (at.columns <= 0 || at.rows <= 0) return;
    uint4 chunk = *at.swizzled;
    const uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint8_t *row = at.linear + i * 32 * p.linear_pitch;
        if (i >= at.rows) break;
        if (at.aligned)
            *(uint32_t *)row = words[i];
        else
            for (int j = 0; j < at.columns; j++) row[j] = (uint8_t)(words[i] >> 8 * j);
    }
}
