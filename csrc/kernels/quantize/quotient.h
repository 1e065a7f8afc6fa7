/* x / divisor in two operations, for host and device code:
 *
 *   high = 1 / divisor             to nearest
 *   low  = 1 / divisor - high      towards zero
 *   x / divisor = fma(x, high, x * low)
 *
 * The result may be a neighbour of the IEEE quotient. But it is below, equal to or above a number of up to 5
 * significant bits exactly when that one is, which includes every tie between neighbours of e2m1 and of e4m3: rounded
 * to these types both are the same. tests/core/test_quotient.c shows it for all significands of a divisor and each x
 * near a tie, and that x / 6 is the IEEE quotient. Nothing may overflow or be subnormal, except where the quotient is
 * far below a tie. */
#ifndef NVFP4_QUANTIZE_QUOTIENT_H
#define NVFP4_QUANTIZE_QUOTIENT_H

#include "common/fp32.h"

typedef struct reciprocal {
    float high, low;
} reciprocal;

HOST_DEVICE reciprocal reciprocal_of(float divisor) {
    reciprocal r;
    r.high = __frcp_rn(divisor);
    r.low = __fmul_rz(r.high, __fmaf_rn(-divisor, r.high, 1.0f));
    return r;
}

HOST_DEVICE float quotient(float x, reciprocal r) {
    return __fmaf_rn(x, r.high, __fmul_rn(x, r.low));
}

#endif
