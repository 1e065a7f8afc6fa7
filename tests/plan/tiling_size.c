/* A tiling that is MORE bytes larger than a candidate has room for: compiles where MORE is 0. */
#include "plan/launch_plan.h"
typedef struct IS_TILING tiling {
    unsigned char bytes[PLAN_TILING_BYTES + MORE];
} tiling;
tiling *of(gemm_candidate *candidate);
tiling *of(gemm_candidate *candidate) {
    return TILING(tiling, candidate);
}
