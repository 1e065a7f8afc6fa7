/* Operands and outputs of the CPU backend's tests: memory that ends at a page which cannot be read, NaN as padding, and
 * bytes around an output that show stray writes. */
#ifndef NVFP4_TESTS_CPU_OPERANDS_H
#define NVFP4_TESTS_CPU_OPERANDS_H

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cpu/cpu.h"
#include "cpu/gemm.h"
#include "draw.h"

/* Memory whose end is followed by a page that faults, filled with one byte. */
typedef struct guarded {
    char *map, *data;
    size_t map_bytes, bytes;
} guarded;

static guarded guarded_new(int64_t bytes, int fill) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = ((size_t)bytes + page - 1) / page * page;
    guarded g = {.map_bytes = body + page, .bytes = (size_t)bytes};
    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.map == MAP_FAILED || mprotect(g.map + body, page, PROT_NONE)) abort();
    g.data = g.map + body - (size_t)bytes;
    memset(g.data, fill, (size_t)bytes);
    return g;
}
static void guarded_free(guarded g) {
    munmap(g.map, g.map_bytes);
}

/* One side of a product with its memory: `scales` picks the scale bytes. */
typedef struct side {
    guarded data, scale;
    int64_t pitch, batch, scale_pitch, scale_batch;
    int32_t type; /* VALUES_E2M1, NVFP4_FP16 or NVFP4_BF16 */
} side;

typedef uint8_t draw_scale(void);
static uint8_t any_scale(void) {
    return (uint8_t)(below(127) | below(2) << 7);
} /* finite; bit 7 must not matter */
static uint8_t ordinary_scale(void) {
    return (uint8_t)(0x30 + below(16));
}
static uint8_t integer_scale(void) {
    return (uint8_t)(below(2) ? 0x40 : 0x48);
} /* 2 or 4: products are integers */

/* Bytes from the first to the last of l batches of rows. */
static int64_t extent(int64_t l, int64_t batch, int64_t rows, int64_t pitch, int64_t width) {
    return l && rows && width ? (l - 1) * batch + (rows - 1) * pitch + width : 0;
}

static side side_new(int64_t l, int64_t rows, int64_t k, int layout, int64_t extra, int one_batch, draw_scale *scales) {
    int64_t columns = k / 16, whole_blocks = (rows + 127) / 128;
    side s = {.pitch = extra ? round_up(k / 2, 16) + extra : k / 2};
    int64_t batches = one_batch ? 1 : l, scale_bytes;
    s.batch = rows * s.pitch;
    if (layout == NVFP4_LINEAR) {
        s.scale_pitch = columns + (extra ? 5 : 0);
        s.scale_batch = rows * s.scale_pitch;
        scale_bytes = extent(batches, s.scale_batch, rows, s.scale_pitch, columns);
    } else {
        s.scale_pitch = (columns + 3) / 4 * 512;
        s.scale_batch = whole_blocks * s.scale_pitch;
        scale_bytes = batches * s.scale_batch;
    }
    s.data = guarded_new(extent(batches, s.batch, rows, s.pitch, k / 2), 0xFF);
    s.scale = guarded_new(scale_bytes, 0x7F);
    for (int64_t b = 0; b < batches; b++)
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t i = 0; i < k / 2; i++) s.data.data[b * s.batch + r * s.pitch + i] = (char)draw();
            for (int64_t c = 0; c < columns; c++)
                s.scale.data[b * s.scale_batch + scale_offset(layout, s.scale_pitch, r, c)] = (char)scales();
        }
    if (one_batch) s.batch = s.scale_batch = 0;
    return s;
}
static void side_free(side s) {
    guarded_free(s.data);
    if (s.type == VALUES_E2M1) guarded_free(s.scale);
}

typedef uint16_t draw_code(int32_t type);
static uint16_t code_of(float value, int32_t type) {
    return type == NVFP4_FP16 ? fp16_encode(value) : bf16_encode(value);
}
/* Halves from -8 to 8. */
static uint16_t integer_code(int32_t type) {
    return code_of((float)below(33) / 2.0f - 8.0f, type);
}
static uint16_t ordinary_code(int32_t type) {
    return code_of((float)(1 + below(1 << 20)) * (below(2) ? 0x1p-20f : -0x1p-20f), type);
}
/* Finite, of any size whose sums stay finite, or subnormal. */
static uint16_t any_code(int32_t type) {
    int64_t size = type == NVFP4_FP16 ? 0x7C00 : 0x7000;
    return (uint16_t)(below(2) << 15 | below(below(4) ? size : 0x80));
}

/* Rows of 16-bit values, with NaN between them. */
static side side_of_16_bit(int64_t l, int64_t rows, int64_t k, int64_t extra, int one_batch, int32_t type,
                           draw_code *codes) {
    side s = {.pitch = k * 2 + extra, .type = type};
    int64_t batches = one_batch ? 1 : l;
    s.batch = rows * s.pitch;
    s.data = guarded_new(extent(batches, s.batch, rows, s.pitch, k * 2), 0xFF);
    for (int64_t b = 0; b < batches; b++)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < k; i++) {
                uint16_t code = codes(type);
                memcpy(s.data.data + b * s.batch + r * s.pitch + i * 2, &code, 2);
            }
    if (one_batch) s.batch = 0;
    return s;
}

static gemm_problem problem_of(int64_t l, int64_t m, int64_t n, int64_t k, int layout, side a, side b) {
    return (gemm_problem){.m = m,
                          .n = n,
                          .k = k,
                          .l = l,
                          .a = (uint8_t *)a.data.data,
                          .b = (uint8_t *)b.data.data,
                          .a_pitch = a.pitch,
                          .b_pitch = b.pitch,
                          .a_batch = a.batch,
                          .b_batch = b.batch,
                          .scale_a = (uint8_t *)a.scale.data,
                          .scale_b = (uint8_t *)b.scale.data,
                          .scale_a_pitch = a.scale_pitch,
                          .scale_b_pitch = b.scale_pitch,
                          .scale_a_batch = a.scale_batch,
                          .scale_b_batch = b.scale_batch,
                          .alpha_value = 1.0f,
                          .scale_layout = layout,
                          .out_type = NVFP4_FP32,
                          .bias_type = NVFP4_FP32,
                          .a_type = a.type};
}

/* An output with room around its rows. */
enum { POISON = 0xAB, MARGIN = 64 };
typedef struct output {
    guarded memory;
    int64_t pitch, rows, row_bytes;
} output;

static output output_new(gemm_problem *p) {
    output o = {.rows = p->l * p->m, .row_bytes = p->n * type_size(p->out_type)};
    o.pitch = round_up(o.row_bytes, 4) + MARGIN;
    o.memory = guarded_new(MARGIN + o.rows * o.pitch, POISON);
    p->out = o.memory.data + MARGIN;
    p->out_pitch = o.pitch;
    p->out_batch = p->m * o.pitch;
    return o;
}
static int margins_intact(const output *o) {
    const uint8_t *bytes = (uint8_t *)o->memory.data;
    int intact = 1;
    for (int64_t i = 0; i < MARGIN; i++) intact &= bytes[i] == POISON;
    for (int64_t r = 0; r < o->rows; r++)
        for (int64_t i = o->row_bytes; i < o->pitch; i++) intact &= bytes[MARGIN + r * o->pitch + i] == POISON;
    return intact;
}

static void run_into(gemm_problem p, const output *o, cpu_isa isa, int threads, const guarded *c) {
    memset(o->memory.data, POISON, o->memory.bytes);
    if (p.c == p.out && c) memcpy(p.out, c->data, c->bytes);
    if (cpu_gemm(&p, isa, threads, 0) != NVFP4_OK) abort();
}

#endif
