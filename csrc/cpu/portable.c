/* The kernel in plain C, for the compiler to vectorise: products of doubled values are at most 144, so a block of 16
 * sums in int16. */
#include "gemm.h"

enum { LANES = 16, STRIP_ROWS = 4 };

typedef struct panel {
    int16_t values[CHUNK_BLOCKS][16][LANES]; /* doubled */
    float scales[CHUNK_BLOCKS][LANES];       /* a quarter of the scale: both sides are doubled */
} panel;

typedef struct strip {
    int16_t values[STRIP_ROWS][CHUNK_BLOCKS][16];
    float scales[STRIP_ROWS][CHUNK_BLOCKS];
} strip;

static float scale_at(const operand *x, int64_t row, int64_t block) {
    return e4m3_decode(x->scale[scale_offset(x->scale_layout, x->scale_pitch, row, block)]);
}

static void pack_panel(void *memory, const operand *x, int64_t row, int64_t block, int64_t blocks) {
    panel *to = memory;
    for (int lane = 0; lane < LANES; lane++) {
        int present = row + lane < x->rows;
        const uint8_t *from = present ? x->data + (row + lane) * x->pitch + block * 8 : NULL;
        for (int64_t b = 0; b < blocks; b++) {
            to->scales[b][lane] = present ? 0.25f * scale_at(x, row + lane, block + b) : 0.0f;
            for (int k = 0; k < 16; k++)
                to->values[b][k][lane] = present ? e2m1_doubled[from[b * 8 + k / 2] >> k % 2 * 4 & 15] : 0;
        }
    }
}

static void decode_strip(void *memory, const operand *x, int64_t row, int64_t block, int64_t blocks) {
    strip *to = memory;
    for (int r = 0; r < STRIP_ROWS; r++) {
        int present = row + r < x->rows;
        const uint8_t *from = present ? x->data + (row + r) * x->pitch + block * 8 : NULL;
        for (int64_t b = 0; b < blocks; b++) {
            to->scales[r][b] = present ? scale_at(x, row + r, block + b) : 0.0f;
            for (int k = 0; k < 16; k++)
                to->values[r][b][k] = present ? e2m1_doubled[from[b * 8 + k / 2] >> k % 2 * 4 & 15] : 0;
        }
    }
}

static void tile(float *sums, const void *strip_memory, const void *panels, int panel_count, int64_t blocks,
                 int first) {
    const strip *s = strip_memory;
    for (int i = 0; i < panel_count; i++) {
        const panel *q = (const panel *)panels + i;
        for (int r = 0; r < STRIP_ROWS; r++) {
            float *row_sums = sums + r * SUMS_PITCH + i * LANES, sum[LANES];
            for (int lane = 0; lane < LANES; lane++) sum[lane] = first ? 0.0f : row_sums[lane];
            for (int64_t b = 0; b < blocks; b++) {
                int16_t dot[LANES] = {0};
                for (int k = 0; k < 16; k++)
                    for (int lane = 0; lane < LANES; lane++)
                        dot[lane] = (int16_t)(dot[lane] + s->values[r][b][k] * q->values[b][k][lane]);
                for (int lane = 0; lane < LANES; lane++)
                    sum[lane] += (float)dot[lane] * (q->scales[b][lane] * s->scales[r][b]);
            }
            for (int lane = 0; lane < LANES; lane++) row_sums[lane] = sum[lane];
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
    for (int64_t k = 0; k < blocks * 16; k++) values[k] = e2m1_doubled[from[k / 2] >> k % 2 * 4 & 15];
}

static void dots_row(float *sums, const operand *x, int64_t row, const void *vectors, int count, int64_t blocks) {
    const uint8_t *from = x->data + row * x->pitch;
    for (int i = 0; i < count; i++) sums[i] = 0.0f;
    for (int64_t b = 0; b < blocks; b++) {
        int16_t values[16];
        for (int k = 0; k < 16; k++) values[k] = e2m1_doubled[from[b * 8 + k / 2] >> k % 2 * 4 & 15];
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

const cpu_kernel portable_kernel = {
    .lanes = LANES,
    .strip_rows = STRIP_ROWS,
    .panel_bytes = sizeof(panel),
    .strip_bytes = sizeof(strip),
    .pack_panel = pack_panel,
    .decode_strip = decode_strip,
    .tile = tile,
    .max_vectors = 4,
    .vector_bytes = vector_bytes,
    .pack_vector = pack_vector,
    .dots = dots,
    .epilogue = epilogue,
};
