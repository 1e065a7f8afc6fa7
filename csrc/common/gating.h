/* Gated activations in fp32 by defined operations, for host and device code, so that both give the same bits.
 *
 *   SILU       silu(min(gate, limit)) * clamp(up, -limit, limit)      silu by exponential.h
 *   GELU_TANH  gelu_tanh(gate) * up
 *   RELU2      max(gate, 0)^2
 *   SWIGLU     g * sigmoid(alpha * g) * (clamp(up, -limit, limit) + 1), g = min(gate, limit)
 *
 * gelu_tanh(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) is x * sigmoid(t), since 1 + tanh(t / 2) is
 * 2 sigmoid(t):
 *
 *   t = x * (A + B x^2)                   A = 2 sqrt(2 / pi), B = 0.044715 A, one fma, products rounded
 *   gelu_tanh(x) = x * sigmoid(t)         x = -9.94 for less, where t = -85.9
 *
 * t has a relative error of 4 * 2^-24 at most: half an ulp each of A or B, of x^2, of the fma and of the product.
 * gelu_tanh therefore is at most 5 ulp off for x > 0, and 5 + 4 |t| ulp down to -9.94
 * (tests/core/test_exponential.c). Below -9.94 it is gelu_tanh(-9.94) = -4.7e-37.
 *
 * swiglu takes -86 / alpha for a gate below that, so that the sigmoid's argument stays where exponential.h defines it.
 * A NaN passes every clamp. */
#ifndef NVFP4_COMMON_GATING_H
#define NVFP4_COMMON_GATING_H

#include "common/activations.h"
#include "common/exponential.h"

/* The numbers of a gated activation. */
typedef struct gating {
    float limit;    /* INFINITY: none */
    float up_limit; /* the same for up; INFINITY where up is absent and 1 stands for it */
    float alpha;
    float min_gate; /* of swiglu: -86 / alpha */
} gating;

HOST_DEVICE gating gating_of(float limit, float alpha, int has_up) {
    gating g;
    g.limit = limit;
    g.up_limit = has_up ? limit : INFINITY;
    g.alpha = alpha;
    g.min_gate = __fdiv_rn(-86.0f, alpha);
    return g;
}

HOST_DEVICE float at_most(float x, float limit) {
    return x > limit ? limit : x;
}

HOST_DEVICE float at_least(float x, float limit) {
    return x < limit ? limit : x;
}

HOST_DEVICE float gelu_tanh_argument(float c) {
    return __fmul_rn(c, __fmaf_rn(0x1.2444f2p-4f, __fmul_rn(c, c), 0x1.988454p0f));
}

HOST_DEVICE float limited_gate(int activation, float gate, gating g) {
    if (activation == NVFP4_GELU_TANH) return at_least(gate, -9.94f);
    if (activation == NVFP4_RELU2) return at_least(gate, 0.0f);
    return at_least(at_most(gate, g.limit), activation == NVFP4_SWIGLU ? g.min_gate : -86.0f);
}

HOST_DEVICE float sigmoid_argument(int activation, float c, gating g) {
    if (activation == NVFP4_GELU_TANH) return gelu_tanh_argument(c);
    return activation == NVFP4_SWIGLU ? __fmul_rn(g.alpha, c) : c;
}

HOST_DEVICE float factor_of_up(int activation, float up, gating g) {
    if (activation == NVFP4_GELU_TANH) return up;
    float limited = at_least(at_most(up, g.up_limit), -g.up_limit);
    return activation == NVFP4_SWIGLU ? __fadd_rn(limited, 1.0f) : limited;
}

/* All activations have one form, so that one copy of the code serves an `activation` that is a variable. RELU2 does not
 * depend on up. */
HOST_DEVICE float gated(int activation, float gate, float up, gating g) {
    int is_relu2 = activation == NVFP4_RELU2;
    float c = limited_gate(activation, gate, g);
    float y = __fmul_rn(c, is_relu2 ? c : sigmoid(sigmoid_argument(activation, c, g)));
    return is_relu2 ? y : __fmul_rn(y, factor_of_up(activation, up, g));
}

#endif
