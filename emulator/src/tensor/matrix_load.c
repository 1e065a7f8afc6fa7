/* Matrices between shared memory and the registers of a warp (PTX ISA 9.7.14.5.15 ldmatrix, .16 stmatrix, .17
 * movmatrix).
 *
 * A row of a matrix is 16 bytes of shared memory at the address that one lane gives: lanes 0-7 for the first matrix
 * of 8 rows, 8-15 for the second, and so on; a matrix of 16 rows takes 16 lanes. With t = lane / 4 and i = lane % 4,
 * a lane's register holds
 *   m8n8 b16            row t, elements 2i and 2i+1
 *   m8n8 b16 .trans     rows 2i and 2i+1 of column t
 *   m8n16 b8            row t, bytes 4i .. 4i+3
 *   m16n16 b8 .trans    register k: rows 4i .. 4i+3 of column t + 8k
 *   m16n8 b8 .trans     (stored; 8 rows in memory) rows 2i, 2i+1 of column t, then of column t + 8
 * Elements of 4 and 6 bits are packed at the beginning of their 16 bytes, and become the low bits of bytes. */
#include "memory/memory.h"

enum { SHAPE_M8N8, SHAPE_M8N16, SHAPE_M16N16, SHAPE_M16N8, ROW = 16 };

typedef struct matrix_move {
    int wide, shape, transposed;
    uint32_t element_bits; /* in memory: 8 where nothing is unpacked */
    uint32_t rows;         /* addresses */
    uint32_t count;        /* registers */
    uint32_t slot[4];
} matrix_move;

static const char *const shapes[] = {"m8n8", "m8n16", "m16n16", "m16n8", NULL};

/* ---- loads ---- */

static void unpack(uint8_t row[ROW], uint32_t bits) {
    unsigned __int128 packed;
    memcpy(&packed, row, sizeof packed);
    for (int i = 0; i < ROW; i++, packed >>= bits) row[i] = (uint8_t)packed & (uint8_t)((1u << bits) - 1);
}

static uint32_t row_lanes(const matrix_move *m) {
    return m->rows == WARP_LANES ? ALL_LANES : (1u << m->rows) - 1;
}

static void check_window(warp *w, const instr *in, uint32_t lane, uint64_t address) {
    if (in->space == SPACE_NONE && (address & WINDOW_MASK) != SHARED_WINDOW)
        fault(w, in, (int)lane, "0x%llx is no address of shared memory", (unsigned long long)address);
}

static void read_rows(warp *w, const instr *in, const matrix_move *m, uint8_t rows[WARP_LANES][ROW]) {
    uint64_t address[WARP_LANES];
    reach r;
    lane_addresses(w, in, m->wide, address);
    if (reach_of(w, in->space, address, row_lanes(m), ROW, ROW, &r) && r.kind == MEMORY_SHARED) {
        for (uint32_t i = 0; i < m->rows; i++) memcpy(rows[i], r.base + (address[i] - r.first), ROW);
        w->cta->traffic[TRAFFIC_SHARED_READ] += (uint64_t)m->rows * ROW;
    } else {
        for (uint32_t i = 0; i < m->rows; i++) {
            check_window(w, in, i, address[i]);
            memcpy(rows[i], thread_read(w, in, (int)i, in->space, address[i], ROW, ROW), ROW);
        }
    }
    if (m->element_bits < 8)
        for (uint32_t i = 0; i < m->rows; i++) unpack(rows[i], m->element_bits);
}

static run_result run_ldmatrix(warp *w, const instr *in, uint32_t lanes) {
    const matrix_move *m = in->extra;
    uint8_t rows[WARP_LANES][ROW];
    if (!converge_aligned(w, in, lanes)) return RUN_PARK;
    read_rows(w, in, m, rows);
    for (uint32_t k = 0; k < m->count; k++) {
        if (m->slot[k] == NO_SLOT) continue;
        uint8_t *d = (uint8_t *)r32(w, m->slot[k]);
        if (m->shape == SHAPE_M16N16) {
            const uint8_t (*matrix)[ROW] = (const uint8_t (*)[ROW])rows + k / 2 * 16;
            for (uint32_t lane = 0; lane < WARP_LANES; lane++)
                for (uint32_t e = 0; e < 4; e++) d[4 * lane + e] = matrix[4 * (lane % 4) + e][lane / 4 + 8 * (k % 2)];
        } else if (m->transposed) {
            for (uint32_t lane = 0; lane < WARP_LANES; lane++)
                for (uint32_t e = 0; e < 2; e++)
                    memcpy(d + 4 * lane + 2 * e, &rows[8 * k + 2 * (lane % 4) + e][2 * (lane / 4)], 2);
        } else
            memcpy(d, rows[8 * k], WARP_LANES * sizeof(uint32_t)); /* the rows one behind the other */
    }
    return RUN_NEXT;
}

/* ---- stores ---- */

static void write_rows(warp *w, const instr *in, const matrix_move *m, uint8_t rows[WARP_LANES][ROW]) {
    uint64_t address[WARP_LANES];
    reach r;
    lane_addresses(w, in, m->wide, address);
    if (reach_of(w, in->space, address, row_lanes(m), ROW, ROW, &r) && r.kind == MEMORY_SHARED &&
        !writes_are_noted(w, MEMORY_SHARED)) {
        for (uint32_t i = 0; i < m->rows; i++) memcpy(r.base + (address[i] - r.first), rows[i], ROW);
        w->cta->traffic[TRAFFIC_SHARED_WRITE] += (uint64_t)m->rows * ROW;
        machine_progress(machine_of(w));
        return;
    }
    for (uint32_t i = 0; i < m->rows; i++) {
        check_window(w, in, i, address[i]);
        thread_write(w, in, (int)i, in->space, address[i], rows[i], ROW, ROW);
    }
}

static run_result run_stmatrix(warp *w, const instr *in, uint32_t lanes) {
    const matrix_move *m = in->extra;
    uint8_t rows[WARP_LANES][ROW];
    if (!converge_aligned(w, in, lanes)) return RUN_PARK;
    for (uint32_t k = 0; k < m->count; k++) {
        const uint8_t *s = (const uint8_t *)r32(w, m->slot[k]);
        uint8_t (*matrix)[ROW] = rows + 8 * k;
        if (m->shape == SHAPE_M16N8) {
            for (uint32_t lane = 0; lane < WARP_LANES; lane++)
                for (uint32_t e = 0; e < 4; e++)
                    matrix[2 * (lane % 4) + e % 2][lane / 4 + 8 * (e / 2)] = s[4 * lane + e];
        } else if (m->transposed) {
            for (uint32_t lane = 0; lane < WARP_LANES; lane++)
                for (uint32_t e = 0; e < 2; e++)
                    memcpy(&matrix[2 * (lane % 4) + e][2 * (lane / 4)], s + 4 * lane + 2 * e, 2);
        } else
            memcpy(matrix, s, WARP_LANES * sizeof(uint32_t));
    }
    write_rows(w, in, m, rows);
    return RUN_NEXT;
}

/* ---- movmatrix ---- */

static run_result run_movmatrix(warp *w, const instr *in, uint32_t lanes) {
    uint16_t from[8][8], to[8][8];
    if (!converge_aligned(w, in, lanes)) return RUN_PARK;
    if (in->d == NO_SLOT) return RUN_NEXT;
    memcpy(from, r32(w, in->s[0]), sizeof from);
    for (int row = 0; row < 8; row++)
        for (int column = 0; column < 8; column++) to[row][column] = from[column][row];
    memcpy(r32(w, in->d), to, sizeof to);
    return RUN_NEXT;
}

/* ---- decoding ---- */

static void take_registers(decoder *d, matrix_move *m, int index, int loads) {
    const operand *o = operand_at(d, index);
    int length = o->kind == OPERAND_VECTOR ? o->count : 1;
    if ((uint32_t)length != m->count) reject(d, "operand %d must have %u registers", index + 1, m->count);
    for (uint32_t i = 0; i < m->count; i++) {
        const operand *element = o->kind == OPERAND_VECTOR ? &o->items[i] : o;
        m->slot[i] = loads ? destination_of(d, element, TYPE_B32) : source_of(d, element, TYPE_B32);
    }
}

static matrix_move *take_form(decoder *d, int address) {
    static const char *const counts[] = {"x1", "x2", "x4", NULL};
    matrix_move *m = decode_alloc(d, sizeof *m);
    int bits;
    need(d, "sync");
    need(d, "aligned");
    m->shape = take_one_of(d, shapes);
    if (m->shape < 0) reject(d, "the shape is missing");
    int count = take_one_of(d, counts);
    if (count < 0) reject(d, "the number of matrices is missing");
    m->count = 1u << count;
    m->rows = 8 * m->count;
    m->transposed = take(d, "trans");
    m->element_bits = 8;
    d->in->space = take_space(d);
    if (d->in->space != SPACE_NONE && d->in->space != SPACE_SHARED) reject(d, "the matrix must be in .shared::cta");
    d->in->s[0] = source_address(d, address, &d->in->offset, &bits);
    m->wide = bits == 64;
    d->in->extra = m;
    return m;
}

static int decode_ldmatrix(decoder *d) {
    static const char *const packed[] = {"b4x16_p64", "b6x16_p32", NULL};
    matrix_move *m = take_form(d, 1);
    if (m->shape == SHAPE_M16N8) reject(d, "ldmatrix has no shape .m16n8");
    if (m->shape == SHAPE_M8N8)
        need(d, "b16");
    else if (take(d, "b8x16")) {
        int format = take_one_of(d, packed);
        if (format < 0) reject(d, "the format of the source is missing");
        m->element_bits = format ? 6 : 4;
    } else if (m->shape == SHAPE_M16N16)
        need(d, "b8");
    else
        reject(d, ".m8n16 needs .b8x16 and the format of the source");
    if (m->shape == SHAPE_M16N16) {
        if (!m->transposed || m->count > 2) reject(d, ".m16n16 needs .trans, and .x1 or .x2");
        m->count *= 2;
        m->rows *= 2;
    } else if (m->shape == SHAPE_M8N16 && m->transposed)
        reject(d, ".m8n16 has no .trans");
    take_registers(d, m, 0, 1);
    d->in->run = run_ldmatrix;
    return 1;
}

static int decode_stmatrix(decoder *d) {
    matrix_move *m = take_form(d, 0);
    if (m->shape != SHAPE_M8N8 && m->shape != SHAPE_M16N8) reject(d, "stmatrix has no shape .%s", shapes[m->shape]);
    need(d, m->shape == SHAPE_M8N8 ? "b16" : "b8");
    if (m->shape == SHAPE_M16N8 && !m->transposed) reject(d, ".m16n8 needs .trans");
    take_registers(d, m, 1, 0);
    d->in->run = run_stmatrix;
    return 1;
}

static int decode_movmatrix(decoder *d) {
    need(d, "sync");
    need(d, "aligned");
    need(d, "m8n8");
    need(d, "trans");
    need(d, "b16");
    d->in->d = destination(d, 0, TYPE_B32);
    d->in->s[0] = source(d, 1, TYPE_B32);
    d->in->run = run_movmatrix;
    return 1;
}

const opcode_entry matrix_opcodes[] = {
    {"ldmatrix", decode_ldmatrix},
    {"stmatrix", decode_stmatrix},
    {"movmatrix", decode_movmatrix},
    {0},
};
