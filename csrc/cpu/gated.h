/* Gated activations of many values, by common/gating.h. A file that includes this has turned off the flags
 * of floating-point exceptions before all includes, which nothing reads: only then does gcc make selections of an
 * activation's clamps, and vectorize its loop. */
#ifndef NVFP4_CPU_GATED_H
#define NVFP4_CPU_GATED_H

#include "common/gating.h"
#include "cpu/epilogue.h"

static inline __attribute__((always_inline)) void gate_by(const int activation, float *gate, const float *up, gating g,
                                                          int64_t count) {
    for (int64_t i = 0; i < count; i++) gate[i] = gated(activation, gate[i], up[i], g);
}

/* gate[i] = gated(activation, gate[i], up[i], g). silu has a limit in few models: without, 6 % of a quantizer's time.
 */
static inline __attribute__((always_inline)) void gate_values(int activation, float *gate, const float *up, gating g,
                                                              int64_t count) {
    if (activation == NVFP4_GELU_TANH)
        gate_by(NVFP4_GELU_TANH, gate, up, g, count);
    else if (activation == NVFP4_RELU2)
        gate_by(NVFP4_RELU2, gate, up, g, count);
    else if (activation == NVFP4_SWIGLU)
        gate_by(NVFP4_SWIGLU, gate, up, g, count);
    else if (g.limit < INFINITY)
        gate_by(NVFP4_SILU, gate, up, g, count);
    else
        gate_by(NVFP4_SILU, gate, up, (gating){.limit = INFINITY, .up_limit = INFINITY}, count);
}

#endif
