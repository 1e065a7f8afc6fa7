/* The quotients of kernels/quantize/quotient.h against IEEE division: the same side of every tie of e2m1 and e4m3, and
 * the same x / 6. Whether that holds depends on the significands alone. All 2^23 of a divisor are tried with 100 or
 * more for SHAPES, which takes 4 s, otherwise one in 1009.
 *
 * test_quotient [SEED [SHAPES]] */
#include "kernels/quantize/quotient.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int compare(float x, float y) {
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    enum { SIGNIFICANDS = 1 << 23, ONE = 0x3F800000, NEAR = 6 };
    uint32_t step = argc > 2 && atoi(argv[2]) >= 100 ? 1 : 1009;
    uint32_t start = argc > 1 ? (uint32_t)strtoull(argv[1], NULL, 0) % step : 0;
    long wrong = 0, differ = 0;
    for (uint32_t i = start; i < SIGNIFICANDS; i += step) {
        /* The last ones too: there 1 / divisor is nearest to a tie itself. */
        const uint32_t both[2] = {i, SIGNIFICANDS - 1 - i / step % 4096};
        for (int b = 0; b < 2; b++) {
            float divisor = __uint_as_float(ONE | both[b]);
            reciprocal r = reciprocal_of(divisor);
            for (uint32_t tie = 16; tie < 32; tie++) { /* 1.0000 to 1.1111 in binary */
                float edge = (float)tie / 16;
                uint32_t middle = __float_as_uint(edge * divisor);
                for (uint32_t x = middle - NEAR; x <= middle + NEAR; x++) {
                    float exact = __uint_as_float(x) / divisor, fast = quotient(__uint_as_float(x), r);
                    wrong += compare(exact, edge) != compare(fast, edge);
                    differ += exact != fast;
                }
            }
        }
    }
    reciprocal sixth = reciprocal_of(6.0f);
    for (uint32_t x = start; x < SIGNIFICANDS; x += step)
        wrong += quotient(__uint_as_float(ONE | x), sixth) != __uint_as_float(ONE | x) / 6.0f;
    if (sixth.high != 0x1.555556p-3f || sixth.low != -0x1.555556p-28f) wrong++; /* as written in kernels.cu */
    printf("%ld wrong codes, %ld quotients differ\n", wrong, differ);
    return wrong > 0;
}
