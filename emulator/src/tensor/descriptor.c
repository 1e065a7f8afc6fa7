/* Shared-memory matrix descriptors: fields, checks, and the walk (PTX ISA 9.7.16.3, 9.7.16.4.1 and 9.7.15.5).
 *
 * The walk in units of 16 bytes, T = elements of a unit, w = units of a swizzled row (2, 4 or 8):
 *     K-major   row r, unit u along K:  start + (r % 8) * w * 16 + (r / 8) * SBO + u * 16
 *               without swizzle:        start + (r % 8) * 16 + (r / 8) * SBO + u * LBO
 *     MN-major  unit v along M or N, k: start + (v % w) * 16 + (v / w) * LBO + (k % 8) * w * 16 + (k / 8) * SBO
 *               without swizzle:        start + v * SBO + (k % 8) * 16 + (k / 8) * LBO
 *               atoms of 32 bytes:      groups of 4 k, not of 8
 * The swizzle then acts on the absolute address: that is why a program may advance K by adding to the start field. */
#include "tensor/descriptor.h"

static uint32_t field14(uint64_t bits, int shift) {
    return (uint32_t)(bits >> shift & 0x3fff) << 4;
}

/* Faults unless bits [low, high] of the descriptor hold `value`. */
static void require(warp *w, const instr *in, const matrix_descriptor *d, int low, int high, uint64_t value) {
    uint64_t is = d->bits >> low & ((1ull << (high - low + 1)) - 1);
    if (is != value)
        fault(w, in, -1, "%s 0x%016llx has %llu in bits %d-%d, which must be %llu", d->name,
              (unsigned long long)d->bits, (unsigned long long)is, low, high, (unsigned long long)value);
}

static matrix_descriptor common(warp *w, const instr *in, uint64_t bits, const char *name) {
    matrix_descriptor d = {.bits = bits,
                           .name = name,
                           .start = field14(bits, 0),
                           .leading = field14(bits, 16),
                           .stride = field14(bits, 32),
                           .base_offset = (uint32_t)(bits >> 49 & 7)};
    require(w, in, &d, 14, 15, 0);
    require(w, in, &d, 30, 31, 0);
    return d;
}

matrix_descriptor tcgen05_descriptor(warp *w, const instr *in, uint64_t bits, const char *name) {
    matrix_descriptor d = common(w, in, bits, name);
    require(w, in, &d, 46, 48, 1);
    if (d.base_offset)
        fault(
            w, in, -1,
            "%s 0x%016llx has base offset %u (bits 49-51), and what tcgen05 does with another than 0 is not "
            "documented (wgmma's rule is known from hardware, and need not hold here): start the matrix at a boundary "
            "of its swizzle pattern",
            name, (unsigned long long)bits, d.base_offset);
    if (bits >> 52 & 1)
        fault(w, in, -1, "%s 0x%016llx asks for an absolute leading dimension (bit 52), which only sm_103a has", name,
              (unsigned long long)bits);
    require(w, in, &d, 53, 60, 0);
    switch (bits >> 61) {
    case 0:
        d.swizzle = MATRIX_PLAIN;
        break;
    case 1:
        d.swizzle = MATRIX_SW128_32;
        break;
    case 2:
        d.swizzle = MATRIX_SW128;
        break;
    case 4:
        d.swizzle = MATRIX_SW64;
        break;
    case 6:
        d.swizzle = MATRIX_SW32;
        break;
    default:
        fault(w, in, -1, "%s 0x%016llx has layout %d (bits 61-63), which is none of 0, 1, 2, 4, 6", name,
              (unsigned long long)bits, (int)(bits >> 61));
    }
    return d;
}

matrix_descriptor wgmma_descriptor(warp *w, const instr *in, uint64_t bits, const char *name) {
    static const matrix_swizzle layouts[] = {MATRIX_PLAIN, MATRIX_SW128, MATRIX_SW64, MATRIX_SW32};
    matrix_descriptor d = common(w, in, bits, name);
    require(w, in, &d, 46, 48, 0);
    require(w, in, &d, 52, 61, 0);
    d.swizzle = layouts[bits >> 62];
    d.any_row = 1;
    return d;
}

/* 16-byte units of a swizzled row; 1: no swizzle. */
static uint32_t units(matrix_swizzle swizzle) {
    switch (swizzle) {
    case MATRIX_SW32:
        return 2;
    case MATRIX_SW64:
        return 4;
    case MATRIX_SW128:
    case MATRIX_SW128_32:
        return 8;
    case MATRIX_PLAIN:
        break;
    }
    return 1;
}

static uint32_t k_major_address(const matrix_descriptor *d, uint32_t row, uint32_t unit) {
    uint32_t pitch = 16 * units(d->swizzle);
    uint32_t step = d->swizzle == MATRIX_PLAIN ? d->leading : 16;
    return matrix_swizzled(d, d->start + row % 8 * pitch + row / 8 * d->stride + unit * step);
}

static uint32_t mn_major_address(const matrix_descriptor *d, uint32_t unit, uint32_t k) {
    if (d->swizzle == MATRIX_PLAIN) return d->start + unit * d->stride + k % 8 * 16 + k / 8 * d->leading;
    uint32_t w = units(d->swizzle), group = d->swizzle == MATRIX_SW128_32 ? 4 : 8;
    return matrix_swizzled(d, d->start + unit % w * 16 + unit / w * d->leading + k % group * w * 16 +
                                  k / group * d->stride);
}

static void check_unit(warp *w, const instr *in, const cta *c, const matrix_view *v, uint32_t address, uint32_t row,
                       uint32_t k_byte) {
    if (address >= SHARED_BASE && address + 16 <= c->shared_bytes) return;
    const matrix_descriptor *d = &v->descriptor;
    fault(w, in, -1,
          "%s 0x%016llx (start 0x%x, LBO %u, SBO %u): row %u, K byte %u lies at shared address 0x%x, outside the CTA's "
          "[0x%x, 0x%x)",
          d->name, (unsigned long long)d->bits, d->start, d->leading, d->stride, row, k_byte, address, SHARED_BASE,
          c->shared_bytes);
}

void check_matrix(warp *w, const instr *in, const cta *c, const matrix_view *v) {
    const matrix_descriptor *d = &v->descriptor;
    uint32_t pitch = 16 * units(d->swizzle);
    uint32_t period = d->swizzle == MATRIX_SW128_32 ? 512 : 8 * pitch;
    if (d->swizzle != MATRIX_PLAIN && !d->any_row && d->start % period >= pitch)
        fault(w, in, -1,
              "%s 0x%016llx: the matrix begins at shared address 0x%x, in the middle of the swizzle's pattern of %u "
              "bytes, and the base offset is 0; what tcgen05 reads then is not documented",
              d->name, (unsigned long long)d->bits, d->start, period);
    if (v->mn_major && (d->swizzle == MATRIX_SW128_32) != (v->element_bytes == 4))
        fault(w, in, -1,
              "%s 0x%016llx: MN-major operands of 32-bit elements, and only they, need layout 1 (128-byte "
              "swizzle with 32-byte atoms)",
              d->name, (unsigned long long)d->bits);
    if (!v->mn_major) {
        for (uint32_t row = 0; row < v->rows; row++)
            for (uint32_t unit = 0; unit < v->k_bytes / 16; unit++)
                check_unit(w, in, c, v, k_major_address(d, row, unit), row, unit * 16);
        return;
    }
    uint32_t per_unit = 16 / v->element_bytes, ks = v->k_bytes / v->element_bytes;
    for (uint32_t unit = 0; unit * per_unit < v->rows; unit++)
        for (uint32_t k = 0; k < ks; k++)
            check_unit(w, in, c, v, mn_major_address(d, unit, k), unit * per_unit, k * v->element_bytes);
}

void gather_matrix(const cta *c, const matrix_view *v, uint32_t first, uint32_t count, uint8_t *out) {
    const matrix_descriptor *d = &v->descriptor;
    const uint8_t *shared = c->async_view ? c->async_view : c->shared;
    if (!v->mn_major) {
        for (uint32_t row = first; row < first + count; row++)
            for (uint32_t unit = 0; unit < v->k_bytes / 16; unit++, out += 16)
                memcpy(out, shared + k_major_address(d, row, unit), 16);
        return;
    }
    uint32_t size = v->element_bytes, per_unit = 16 / size, ks = v->k_bytes / size;
    for (uint32_t unit = first / per_unit; unit * per_unit < first + count; unit++)
        for (uint32_t k = 0; k < ks; k++) {
            const uint8_t *from = shared + mn_major_address(d, unit, k);
            for (uint32_t i = 0; i < per_unit; i++) {
                uint32_t row = unit * per_unit + i;
                if (row >= first && row < first + count)
                    memcpy(out + (size_t)(row - first) * v->k_bytes + k * size, from + i * size, size);
            }
        }
}
