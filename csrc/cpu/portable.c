/* The kernel in C with gcc's vectors of 16 bytes, which every machine has: products of doubled values are at most 144,
 * so a block of 16 sums in int16. */
#include "cpu/gemm.h"

enum { LANES = 8, STRIP_ROWS = 4 };

typedef int16_t shorts __attribute__((vector_size(LANES * 2)));
typedef float floats __attribute__((vector_size(LANES * 4)));

typedef struct panel {
    shorts values[CHUNK_BLOCKS][16]; /* doubled */
    floats scales[CHUNK_BLOCKS];     /* a quarter of the scale: both sides are doubled */
} panel;

typedef struct strip {
    int16_t values[STRIP_ROWS][CHUNK_BLOCKS][16];
    float scales[STRIP_ROWS][CHUNK_BLOCKS];
} strip;

/* Both doubled values of a byte. */
#define PAIR(high, low) {low, high}
#define PAIRS(high)                                                                                                    \
    PAIR(high, 0), PAIR(high, 1), PAIR(high, 2), PAIR(high, 3), PAIR(high, 4), PAIR(high, 6), PAIR(high, 8),           \
        PAIR(high, 12), PAIR(high, 0), PAIR(high, -1), PAIR(high, -2), PAIR(high, -3), PAIR(high, -4), PAIR(high, -6), \
        PAIR(high, -8), PAIR(high, -12)
static const int16_t pairs[256][2] = {PAIRS(0),  PAIRS(1),  PAIRS(2),  PAIRS(3),  PAIRS(4),  PAIRS(6),
                                      PAIRS(8),  PAIRS(12), PAIRS(0),  PAIRS(-1), PAIRS(-2), PAIRS(-3),
                                      PAIRS(-4), PAIRS(-6), PAIRS(-8), PAIRS(-12)};

static inline void decode_block(int16_t to[16], const uint8_t from[8]) {
    for (int i = 0; i < 8; i++) memcpy(to + 2 * i, pairs[from[i]], 4);
}

static inline float scale_at(const operand *x, int64_t row, int64_t block) {
    return e4m3_decode(x->scale[scale_offset(x->scale_layout, x->scale_pitch, row, block)]);
}

static void pack_panel(void *memory, const operand *x, int64_t row, int64_t block, int64_t blocks) {
    panel *to = memory;
    for (int64_t b = 0; b < blocks; b++)
        for (int lane = 0; lane < LANES; lane++) {
            int16_t values[16] = {0};
            float scale = 0.0f;
            if (row + lane < x->rows) {
                decode_block(values, x->data + (row + lane) * x->pitch + (block + b) * 8);
                scale = 0.25f * scale_at(x, row + lane, block + b);
            }
            for (int k = 0; k < 16; k++) to->values[b][k][lane] = values[k];
            to->scales[b][lane] = scale;
        }
}

static void decode_strip(void *memory, const operand *x, int64_t row, int64_t block, int64_t blocks) {
    strip *to = memory;
    memset(to, 0, sizeof *to);
    for (int64_t r = 0; r < min_int(STRIP_ROWS, x->rows - row); r++)
        for (int64_t b = 0; b < blocks; b++) {
            decode_block(to->values[r][b], x->data + (row + r) * x->pitch + (block + b) * 8);
            to->scales[r][b] = scale_at(x, row + r, block + b);
        }
}

static void tile(float *sums, const void *strip_memory, const void *panels, int panel_count, int64_t blocks,
                 int first) {
    const strip *s = strip_memory;
    for (int i = 0; i < panel_count; i++) {
        const panel *q = (const panel *)panels + i;
        for (int r = 0; r < STRIP_ROWS; r++) {
            float *row_sums = sums + r * SUMS_PITCH + i * LANES;
            floats sum = {0};
            if (!first) memcpy(&sum, row_sums, sizeof sum);
            for (int64_t b = 0; b < blocks; b++) {
                shorts dot = {0};
                for (int k = 0; k < 16; k++) dot += s->values[r][b][k] * q->values[b][k];
                sum += __builtin_convertvector(dot, floats) * q->scales[b] * s->scales[r][b];
            }
            memcpy(row_sums, &sum, sizeof sum);
        }
    }
}

/* A packed vector: blocks of 16 doubled values, then their scales. */
static size_t vector_bytes(int64_t blocks) {
    return (size_t)round_up(blocks * 36, 64);
}

static void pack_vector(void *vector, const operand *x, int64_t row, int64_t blocks) {
    int16_t *values = vector;
    float *scales = (float *)(values + blocks * 16);
    const uint8_t *from = x->data + row * x->pitch;
    for (int64_t b = 0; b < blocks; b++) scales[b] = 0.25f * scale_at(x, row, b);
    for (int64_t b = 0; b < blocks; b++) decode_block(values + b * 16, from + b * 8);
}

static void dots_row(float *sums, const operand *x, int64_t row, const void *vectors, int count, int64_t blocks) {
    const uint8_t *from = x->data + row * x->pitch;
    for (int i = 0; i < count; i++) sums[i] = 0.0f;
    for (int64_t b = 0; b < blocks; b++) {
        int16_t values[16];
        decode_block(values, from + b * 8);
        float scale = scale_at(x, row, b);
        for (int i = 0; i < count; i++) {
            const int16_t *other = (const int16_t *)((const char *)vectors + (size_t)i * vector_bytes(blocks));
            int dot = 0;
            for (int k = 0; k < 16; k++) dot += values[k] * other[b * 16 + k];
            sums[i] += (float)dot * (((const float *)(other + blocks * 16))[b] * scale);
        }
    }
}

static void dots(float *sums, const operand *x, int64_t row, int64_t rows, const void *vectors, int count,
                 int64_t blocks) {
    for (int64_t r = 0; r < rows; r++) dots_row(sums + r * count, x, row + r, vectors, count, blocks);
}

static const vector_kernel vectors = {vector_bytes, pack_vector, dots};
const cpu_kernel portable_kernel = {
    .lanes = LANES,
    .strip_rows = STRIP_ROWS,
    .chunk_blocks = CHUNK_BLOCKS,
    .panel_bytes = sizeof(panel),
    .strip_bytes = sizeof(strip),
    .pack_panel = pack_panel,
    .decode_strip = decode_strip,
    .tile = tile,
    .vectors = &vectors,
    .max_vectors = 4,
    .epilogue = epilogue,
};
