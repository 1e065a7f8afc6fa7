/* silu and gelu_tanh of kernels/common/ against fp64: at most 4 ulp off, and |x| / 3 more below -1; at most 5 ulp off,
 * and 4 |t| more for a negative argument t of the sigmoid. All numbers of fp16 and bf16 are tried; all floats with 100
 * or more for SHAPES, which takes four minutes, otherwise one in 1009.
 *
 * test_exponential [SEED [SHAPES]] */
#include <stdio.h>
#include <stdlib.h>

#include "common/gating.h"
#include "cpu/epilogue.h"

typedef struct function {
    const char *name;
    float (*call)(float x);
    double (*argument)(double x); /* of the sigmoid, which is multiplied by x */
    double least, most;           /* below: the value at least; above: x itself, to the bit */
    double (*allowed)(double x, double t);
    long wrong;
    double worst;
} function;

static float silu_of(float x) {
    return silu(x);
}
static double silu_argument(double x) {
    return x;
}
static double silu_allowed(double x, double t) {
    (void)t;
    return 4 + (x < -1 ? -x / 3 : 0);
}

static float gelu_of(float x) {
    return gated(NVFP4_GELU_TANH, x, 1.0f, gating_of(INFINITY, 1.702f, 0));
}
static double gelu_argument(double x) {
    return 1.5957691216057307 * (x + 0.044715 * x * x * x); /* 2 sqrt(2 / pi) */
}
static double gelu_allowed(double x, double t) {
    (void)x;
    return 5 + (t < 0 ? -4 * t : 0);
}

static void try_one(function *f, float x) {
    const float y = f->call(x);
    if (isnan(x)) {
        f->wrong += !isnan(y);
    } else if (x <= f->least || x >= f->most) {
        f->wrong += y != (x < 0 ? f->call((float)f->least) : x);
    } else {
        const double t = f->argument(x), exact = x / (1 + exp(-t)), unit = x == 0 ? 1 : ldexp(1, ilogb(exact) - 23);
        const double smallest = 0x1p-149;
        const double here = fabs(y - exact) / (unit < smallest ? smallest : unit) / f->allowed(x, t);
        f->worst = here > f->worst ? here : f->worst;
    }
}

int main(int argc, char **argv) {
    function functions[] = {
        {"silu", silu_of, silu_argument, -86, 87, silu_allowed, 0, 0},
        {"gelu_tanh", gelu_of, gelu_argument, -9.94f, 10, gelu_allowed, 0, 0},
    };
    const uint32_t step = argc > 2 && atoi(argv[2]) >= 100 ? 1 : 1009;
    int failed = 0;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        function *f = &functions[i];
        for (uint32_t code = 0; code < 65536; code++) {
            try_one(f, fp16_decode((uint16_t)code));
            try_one(f, bf16_decode((uint16_t)code));
        }
        for (uint64_t bits = argc > 1 ? strtoull(argv[1], NULL, 0) % step : 0; bits <= 0xFFFFFFFF; bits += step)
            try_one(f, __uint_as_float((uint32_t)bits));
        printf("%s: %ld wrong values, %.3f of the allowed error\n", f->name, f->wrong, f->worst);
        failed |= f->wrong > 0 || !(f->worst <= 1);
    }
    return failed;
}
