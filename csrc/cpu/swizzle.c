/* Linear scales to the tensor core's 128x4 layout and back. */
#include "cpu/cpu.h"
#include "cpu/operand.h"

#include <string.h>

static int64_t swizzled_batch(const swizzle_problem *p) {
    return (p->rows + 127) / 128 * ((p->columns + 3) / 4) * 512;
}

static int64_t swizzled_offset(const swizzle_problem *p, int64_t row, int64_t column) {
    return scale_offset(SCALES_128X4, (p->columns + 3) / 4 * 512, row, column);
}

void cpu_swizzle(const swizzle_problem *p) {
    for (int64_t batch = 0; batch < p->l; batch++) {
        const uint8_t *linear = p->linear + batch * p->linear_batch;
        uint8_t *swizzled = p->swizzled + batch * swizzled_batch(p);
        memset(swizzled, 0, (size_t)swizzled_batch(p));
        for (int64_t row = 0; row < p->rows; row++)
            for (int64_t column = 0; column < p->columns; column++)
                swizzled[swizzled_offset(p, row, column)] = linear[row * p->linear_pitch + column];
    }
}

void cpu_unswizzle(const swizzle_problem *p) {
    for (int64_t batch = 0; batch < p->l; batch++) {
        uint8_t *linear = p->linear + batch * p->linear_batch;
        const uint8_t *swizzled = p->swizzled + batch * swizzled_batch(p);
        for (int64_t row = 0; row < p->rows; row++)
            for (int64_t column = 0; column < p->columns; column++)
                linear[row * p->linear_pitch + column] = swizzled[swizzled_offset(p, row, column)];
    }
}
