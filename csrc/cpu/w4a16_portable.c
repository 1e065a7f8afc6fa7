/* W4A16 in C with gcc's vectors of 16 bytes, which every machine has. */
#include "cpu/gemm.h"

enum { LANES = 4, STRIP_ROWS = 4, TILE_PANELS = 2 };

typedef float floats __attribute__((vector_size(LANES * 4)));

static inline floats broadcast(float x) {
    return (floats){x, x, x, x};
}

static inline floats fused(floats x, floats y, floats sum) {
#ifdef __FP_FAST_FMAF
    for (int i = 0; i < LANES; i++) sum[i] = __builtin_fmaf(x[i], y[i], sum[i]);
    return sum;
#else
    return sum + x * y;
#endif
}

static inline float add_lanes(floats x) {
    return (x[0] + x[2]) + (x[1] + x[3]);
}

static void decode_row(float *to, const operand *x, int64_t row, int64_t block, int64_t blocks) {
    const uint8_t *from = x->data + row * x->pitch + block * block_bytes(x);
    if (x->type != VALUES_E2M1) {
        load_floats(to, from, x->type, blocks * 16);
        return;
    }
    for (int64_t b = 0; b < blocks; b++, from += 8, to += 16) {
        float table[16],
            half = 0.5f * e4m3_decode(x->scale[scale_offset(x->scale_layout, x->scale_pitch, row, block + b)]);
        for (int code = 0; code < 16; code++) table[code] = half * e2m1_doubled[code];
        for (int i = 0; i < 8; i++) {
            to[2 * i] = table[from[i] & 15];
            to[2 * i + 1] = table[from[i] >> 4];
        }
    }
}

static inline void transpose_16(floats to[16], const float *rows, size_t pitch) {
    for (int lane = 0; lane < LANES; lane++) {
        const float *from = (const float *)((const char *)rows + (size_t)lane * pitch);
        for (int k = 0; k < 16; k++) to[k][lane] = from[k];
    }
}

#include "cpu/w4a16.h"

static void pack_vector(void *vector, const operand *x, int64_t row, int64_t blocks) {
    decode_row(vector, x, row, 0, blocks);
}

static const vector_kernel vectors = {vector_bytes, pack_vector, decoded_dots};
const cpu_kernel w4a16_portable_kernel = {W4A16_TILES, .vectors = &vectors, .max_vectors = 4};
