/* Quantization, dequantization and changes of scale layout on the GPU, bit for bit as cpu/quantize.c.
 *
 * quantize and dequantize: a CTA has a tile of QUANTIZE_THREADS scales, a thread a block of 16 values. A CTA of
 * quantize continues along K, gridDim.x tiles further each time, and loads a tile while it quantizes the one before.
 *
 *   128x4 layout   half an atom: 64 rows x 4 scales in the order of their bytes. A warp stores 32 neighbours; it loads
 *                  or stores the values of 4 neighbours in 8 rows
 *   linear         2^tile_log2 scales of as many rows as fit
 *
 * The grid has tiles of a row along x, rows of tiles of all batches along y and z. swizzle and unswizzle: a thread has
 * the 4x4 bytes that are neighbours in the 128x4 layout, a CTA 128 rows x SWIZZLE_COLUMNS scales. */
#include <math.h>

#include "kernels/common/cluster.cuh"
#include "kernels/common/decode.cuh"
#include "kernels/common/epilogue.cuh"
#include "kernels/quantize/kernels.h"
#include "kernels/quantize/quotient.h"

/* --- numbers ------------------------------------------------------------------------------------------------------ */

/* An e4m3 scale; bit 7 is ignored. */
__device__ __forceinline__ float decode_e4m3(uint32_t code) {
    float scale = __half2float(__ushort_as_half((uint16_t)decode_scales(code, 0)));
    return DECODE_HAS_CVT ? scale : __fmul_rn(scale, 0x1p-7f);
}

/* A value that is not negative to nearest even, saturating at 448. NaN gives NaN. */
__device__ __forceinline__ uint32_t encode_e4m3(float value) {
#if DECODE_HAS_CVT
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    return pair;
#else
    if (isnan(value)) return 0x7F;
    if (value >= 448.0f) return 0x7E;
    /* The last bit of a float near 2^14 is worth 2^-9, the step of the subnormals. */
    if (value < 0x1p-6f) return __float_as_uint(__fadd_rn(value, 0x1p14f)) & 0xF;
    uint32_t bits = __float_as_uint(value);
    bits += 0x7FFFF + (bits >> 20 & 1);
    return (bits >> 20) - ((127 - 7) << 3);
#endif
}

/* To nearest even, saturating at 6; NaN gives 0. */
__device__ uint32_t encode_e2m1(float value) {
    if (isnan(value)) return 0;
    float x = fabsf(value);
    uint32_t code = (x > 0.25f) + (x >= 0.75f) + (x > 1.25f) + (x >= 1.75f) + (x > 2.5f) + (x >= 3.5f) + (x > 5.0f);
    return code | __float_as_uint(value) >> 31 << 3;
}

/* 0 <= value < 7 to nearest even, as ROUND_BASE + code: the bits of 2^22 + code / 2. With v = code / 2, as a function
 * of the value and rounded to multiples of 1/2: v is the value up to 2, value / 2 + 1 up to 4, value / 4 + 2 above, and
 * always the least of the three. */
constexpr uint32_t ROUND_BASE = 0x4A800000;
__device__ __forceinline__ uint32_t round_e2m1(float value) {
    float low = __fadd_rn(value, 0x1p22f), middle = __fmaf_rn(value, 0.5f, 0x1p22f + 1);
    float high = __fmaf_rn(value, 0.25f, 0x1p22f + 2);
    return min(min(__float_as_uint(low), __float_as_uint(middle)), __float_as_uint(high));
}

__device__ __forceinline__ float global_scale(const quantize_problem &p) {
    return p.global_scale ? *p.global_scale : p.global_value;
}

/* --- tiles -------------------------------------------------------------------------------------------------------- */

/* Batch, and row of tiles in it. The grid may overshoot: then l is too large. */
struct tile_coord {
    uint32_t l, y;

    __device__ __forceinline__ tile_coord(int64_t batches, uint32_t tiles) {
        l = 0, y = blockIdx.z * gridDim.y + blockIdx.y;
        if (batches > 1 || gridDim.z > 1) l = y / tiles, y %= tiles;
    }
};

/* What a thread has of a CTA's first tile. Sizes fit 32 bits (api/check.c). */
struct block_coord {
    uint32_t l, row, column; /* of the tile's first scale in this row */
    uint32_t lane, width;    /* the thread's own from there, and how many the tile has */
    uint8_t *scale;          /* the first */

    __device__ __forceinline__ block_coord(const quantize_problem &p) {
        uint32_t across = threadIdx.x >> p.tile_log2;
        width = 1u << p.tile_log2;
        lane = threadIdx.x & (width - 1);
        column = blockIdx.x << p.tile_log2;
        if (p.scale_layout == SCALES_LINEAR) {
            uint32_t height = QUANTIZE_THREADS >> p.tile_log2;
            tile_coord tile(p.l, ((uint32_t)p.rows + height - 1) / height);
            l = tile.l, row = tile.y * height + across;
            scale = p.scale + l * p.scale_batch + row * p.scale_pitch + column;
        } else {
            tile_coord tile(p.l, ((uint32_t)p.rows + 127) / 128 * 2);
            l = tile.l, row = tile.y / 2 * 128 + tile.y % 2 * 16 + across % 4 * 32 + across / 4;
            scale = p.scale + l * p.scale_batch + tile.y / 2 * p.scale_pitch + blockIdx.x * (int64_t)512 +
                    tile.y % 2 * 256 + across * 4;
        }
    }
    __device__ __forceinline__ char *x(const quantize_problem &p, int item) const {
        return (char *)p.x + l * p.x_batch + row * p.x_pitch + (int64_t)column * (16 * item);
    }
    __device__ __forceinline__ uint8_t *data(const quantize_problem &p) const {
        return p.data + l * p.data_batch + row * p.data_pitch + (int64_t)column * 8;
    }
};

/* --- quantize ----------------------------------------------------------------------------------------------------- */

/* Global scales for which no quotient overflows or loses bits. */
constexpr float LEAST_SCALE = 0x1p-48f, MOST_SCALE = 0x1p48f;

/* 16 values: magnitudes, and the signs at the sign bits of their codes. */
struct block {
    float magnitude[16];
    uint32_t signs[2];
};

/* The signs of 8 values, which are pairs of 16-bit values, at the sign bits of 8 codes. */
__device__ __forceinline__ uint32_t sign_bits(const uint32_t *pairs) {
    uint32_t first = __byte_perm(pairs[0], pairs[1], 0x7351), second = __byte_perm(pairs[2], pairs[3], 0x7351);
    uint32_t even = __byte_perm(first, second, 0x5410), odd = __byte_perm(first, second, 0x7632);
    return (even >> 4 & 0x08080808) | (odd & 0x80808080);
}

/* 16 values as they are in memory. */
template <int TYPE> struct raw_block {
    static constexpr int words = TYPE == OUT_FP32 ? 16 : 8;
    uint32_t w[words];

    /* From an address aligned to 16 bytes. */
    __device__ __forceinline__ void load(const char *x) {
#pragma unroll
        for (int i = 0; i < words; i += 4) {
            uint4 four = ((const uint4 *)x)[i / 4];
            w[i] = four.x, w[i + 1] = four.y, w[i + 2] = four.z, w[i + 3] = four.w;
        }
    }
    /* From any address of a value. */
    __device__ __forceinline__ void load_unaligned(const char *x) {
#pragma unroll
        for (int i = 0; i < words; i++)
            w[i] = TYPE == OUT_FP32 ? ((const uint32_t *)x)[i]
                                    : ((const uint16_t *)x)[2 * i] | (uint32_t)((const uint16_t *)x)[2 * i + 1] << 16;
    }
    __device__ __forceinline__ block unpack() const {
        block b;
        uint32_t pairs[8];
#pragma unroll
        for (int i = 0; i < 8; i++) /* of fp32 the high halves */
            pairs[i] = TYPE == OUT_FP32 ? __byte_perm(w[2 * i % words], w[(2 * i + 1) % words], 0x7632) : w[i];
        b.signs[0] = sign_bits(pairs), b.signs[1] = sign_bits(pairs + 4);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            uint32_t half = w[i / 2] >> i % 2 * 16 & 0x7FFF;
            b.magnitude[i] = TYPE == OUT_FP32   ? fabsf(__uint_as_float(w[i % words]))
                             : TYPE == OUT_BF16 ? __uint_as_float(half << 16)
                                                : __half2float(__ushort_as_half((uint16_t)half));
        }
        return b;
    }
};

/* The codes of 8 values over 1 / r. CAP: quotients may be 7 or more, or infinite, or an infinity's NaN. */
template <bool CAP> __device__ __forceinline__ uint32_t encode_8(const float *magnitude, reciprocal r) {
    uint32_t sum = 0;
#pragma unroll
    for (int i = 7; i >= 0; i--) {
        uint32_t code = round_e2m1(quotient(magnitude[i], r));
        sum = sum * 16 + (CAP ? min(code, ROUND_BASE + 7) : code);
    }
    return sum - ROUND_BASE * 0x11111111u;
}

__device__ __forceinline__ void quantize_block(const block &b, float g, reciprocal over_g, uint2 *data,
                                               uint8_t *scale) {
    constexpr float most = 0x1p62f; /* over 6 and MOST_SCALE it is above 448 */
    constexpr reciprocal sixth = {0x1.555556p-3f, -0x1.555556p-28f};
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) bits = max(bits, __float_as_uint(b.magnitude[i])); /* NaN is above infinity */
    float amax = __uint_as_float(bits);
    uint32_t code = encode_e4m3(quotient(quotient(amax > most ? most : amax, sixth), over_g));
    float unit = __fmul_rn(decode_e4m3(code), g);
    reciprocal r = reciprocal_of(unit);
    uint2 codes;
    if (amax > __fmul_rn(6.5f, unit)) /* the scale saturates, or is a small subnormal */
        codes = make_uint2(encode_8<true>(b.magnitude, r), encode_8<true>(b.magnitude + 8, r));
    else
        codes = make_uint2(encode_8<false>(b.magnitude, r), encode_8<false>(b.magnitude + 8, r));
    uint32_t mask = code - 1 < 0x7E ? ~0u : 0; /* a scale of 0 or NaN has no values */
    *scale = (uint8_t)code;
    *data = make_uint2((codes.x | b.signs[0]) & mask, (codes.y | b.signs[1]) & mask);
}

/* The block at any address x by the definition, with any global scale. */
template <int TYPE> __device__ __forceinline__ void quantize_any(const char *x, float g, uint2 *data, uint8_t *scale) {
    float amax = 0.0f;
    bool nan = false;
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        float value = load_float(x, i, TYPE);
        nan |= isnan(value);
        amax = fmaxf(amax, fabsf(value));
    }
    float wanted = __fdiv_rn(__fdiv_rn(amax, 6.0f), g);
    uint32_t code = nan ? 0x7F : amax == 0.0f || wanted <= 0.0f ? 0 : encode_e4m3(wanted);
    float unit = __fmul_rn(decode_e4m3(code), g);
    uint64_t codes = 0;
    bool empty = code == 0 || code == 0x7F;
#pragma unroll 1
    for (int i = 0; i < 16 && !empty; i++)
        codes |= (uint64_t)encode_e2m1(__fdiv_rn(load_float(x, i, TYPE), unit)) << 4 * i;
    *scale = (uint8_t)code;
    *data = make_uint2((uint32_t)codes, (uint32_t)(codes >> 32));
}

/* The product that follows may then start while this grid runs. It reads what this grid writes after its own
 * griddepcontrol.wait. Not before sm90_gemv, which takes up to 4 rows: with it, 1 x 7168 x 16384 takes 28 us instead of
 * 21 (H200), probably because two of its CTAs share an SM while another SM has none. */
__device__ __forceinline__ void launch_dependents(int64_t rows) {
#if __CUDA_ARCH__ >= 900
    if (rows > 4) griddepcontrol_launch_dependents();
#endif
}

template <int TYPE> __device__ __forceinline__ void quantize(const quantize_problem &p) {
    launch_dependents(p.rows);
    constexpr uint32_t item = TYPE == OUT_FP32 ? 4 : 2;
    block_coord at(p);
    if (at.l >= (uint32_t)p.l) return;
    uint32_t columns = (uint32_t)p.k / 16, first = at.column + at.lane, pitch = 1;
    uint32_t end = first < columns && at.row < (uint32_t)p.rows ? columns - first : 0, stored = end;
    if (p.scale_layout == SCALES_128X4) { /* the scales from `end` on are padding */
        pitch = 128;
        stored = (columns + 3) / 4 * 4 - first;
    }
    const char *x = at.x(p, item) + at.lane * (16 * item);
    uint2 *data = (uint2 *)at.data(p) + at.lane;
    uint8_t *scale = at.scale + at.lane;
    uint32_t step = gridDim.x << p.tile_log2; /* the thread's columns are first, first + step, ... */
    float g = global_scale(p);
    bool in_range = g >= LEAST_SCALE && g <= MOST_SCALE;
    if ((uintptr_t)x % 16 == 0 && in_range) {
        reciprocal over_g = reciprocal_of(g);
        raw_block<TYPE> next;
        if (end) next.load(x);
#pragma unroll 1
        for (uint32_t i = 0; i < stored; i += step) {
            raw_block<TYPE> raw = next;
            if (i + step < end) next.load(x + (uint64_t)(i + step) * (16 * item));
            if (i < end)
                quantize_block(raw.unpack(), g, over_g, data + i, scale + (uint64_t)i * pitch);
            else
                scale[(uint64_t)i * pitch] = 0;
        }
        return;
    }
#pragma unroll 1
    for (uint32_t i = 0; i < stored; i += step) {
        const char *from = x + (uint64_t)i * (16 * item);
        uint8_t *code = scale + (uint64_t)i * pitch;
        if (i >= end) {
            *code = 0;
        } else if (in_range) {
            raw_block<TYPE> raw;
            raw.load_unaligned(from);
            quantize_block(raw.unpack(), g, reciprocal_of(g), data + i, code);
        } else {
            quantize_any<TYPE>(from, g, data + i, code);
        }
    }
}

/* --- dequantize --------------------------------------------------------------------------------------------------- */

/* The e2m1 values of COUNT / 2 bytes, times 2^-14: with its fields at those of fp16, a code is this number. */
template <int COUNT> __device__ __forceinline__ void decode_e2m1(uint32_t codes, float (&v)[COUNT]) {
    if (COUNT == 4) codes = (codes & 0xFF) | codes << 8; /* pairs are 16 bits apart */
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++) {
        uint32_t pair =
            (codes << (12 - 4 * i) & 0x80008000) | ((i < 3 ? codes << (9 - 4 * i) : codes >> 3) & 0x0E000E00);
        v[i] = __half2float(__ushort_as_half((uint16_t)pair));
        v[i + COUNT / 2] = __half2float(__ushort_as_half((uint16_t)(pair >> 16)));
    }
}

__device__ __forceinline__ uint32_t pack_16(float low, float high, int type) {
    uint32_t pair;
    if (type == OUT_FP16)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* Stores the 16 bytes of COUNT values. */
template <int TYPE, int COUNT> __device__ __forceinline__ void store_piece(const float (&v)[COUNT], char *to) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        w[i] = TYPE == OUT_FP32 ? __float_as_uint(v[i]) : pack_16(v[2 * i % COUNT], v[(2 * i + 1) % COUNT], TYPE);
    if ((uintptr_t)to % 16 == 0)
        *(uint4 *)to = make_uint4(w[0], w[1], w[2], w[3]);
    else
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (TYPE == OUT_FP32)
                ((uint32_t *)to)[i] = w[i];
            else
                ((uint16_t *)to)[i] = (uint16_t)(w[i / 2] >> i % 2 * 16);
}

/* A thread has the 16-byte pieces of the output that are as many apart as the tile has scales in a row, so that a warp
 * stores neighbours. All loads precede the stores. */
template <int TYPE> __device__ __forceinline__ void dequantize(const quantize_problem &p) {
    constexpr int item = TYPE == OUT_FP32 ? 4 : 2, count = 16 / item;
    block_coord at(p);
    if (at.l >= (uint32_t)p.l || at.row >= (uint32_t)p.rows) return;
    float g = global_scale(p);
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

/* 4 CTAs an SM: 64 registers hold a block and the next one, without spills. */
#define KERNELS(NAME, TYPE)                                                                                            \
    extern "C" __global__ void __launch_bounds__(QUANTIZE_THREADS, 4)                                                  \
        nvfp4_quantize_##NAME(const __grid_constant__ quantize_problem p) {                                            \
        quantize<TYPE>(p);                                                                                             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(QUANTIZE_THREADS)                                                     \
        nvfp4_dequantize_##NAME(const __grid_constant__ quantize_problem p) {                                          \
        dequantize<TYPE>(p);                                                                                           \
    }
KERNELS(fp16, OUT_FP16)
KERNELS(bf16, OUT_BF16)
KERNELS(fp32, OUT_FP32)

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
