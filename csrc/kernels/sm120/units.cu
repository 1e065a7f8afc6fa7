/* The kernels of units/gemm.cuh for compute capability 12. */
#include "kernels/sm120/units_config.h"
#include "kernels/units/gemm.cuh"

#define FITS(id, a_units, a, stages, a_stages)                                                                         \
    static_assert(UNITS_STAGES_BYTES(a_units, a, stages, a_stages) + UNITS_SUMS_BYTES(a_units) <= 99 * 1024,           \
                  "what sm_120 gives a CTA has room for the sums of a pair");
SM120_UNITS_CONFIGS(FITS)

SM120_UNITS_CONFIGS(KERNEL)
