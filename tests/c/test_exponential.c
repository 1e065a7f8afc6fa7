/* silu of kernels/common/exponential.h against fp64: at most 4 ulp off, and |x| / 3 more below -1. All floats are
 * tried with 100 or more for SHAPES, which takes two minutes, otherwise one in 1009.
 *
 * test_exponential [SEED [SHAPES]] */
#include "kernels/common/exponential.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    uint32_t step = argc > 2 && atoi(argv[2]) >= 100 ? 1 : 1009;
    double worst = 0;
    long wrong = 0;
    for (uint64_t i = argc > 1 ? strtoull(argv[1], NULL, 0) % step : 0; i <= 0xFFFFFFFF; i += step) {
        uint32_t bits = (uint32_t)i;
        float x, y;
        memcpy(&x, &bits, 4);
        y = silu(x);
        if (isnan(x)) {
            wrong += !isnan(y);
        } else if (x <= -86 || x >= 87) {
            wrong += y != (x < 0 ? silu(-86) : x);
        } else {
            double exact = x / (1 + exp(-(double)x)), unit = x == 0 ? 1 : ldexp(1, ilogb(exact) - 23);
            double allowed = 4 + (x < -1 ? -x / 3 : 0), least = 0x1p-149;
            double here = fabs(y - exact) / (unit < least ? least : unit) / allowed;
            worst = here > worst ? here : worst;
        }
    }
    printf("%ld wrong values, %.3f of the allowed error\n", wrong, worst);
    return wrong > 0 || !(worst <= 1);
}
