/* The kernels of units/grouped.cuh for compute capability 12. */
#include "kernels/sm120/grouped_units_config.h"
#include "kernels/units/grouped.cuh"

#define FITS(id, a_units, bf16, ...)                                                                                   \
    static_assert(GROUPED_UNITS_SHARED_BYTES(a_units, __VA_ARGS__) <= 99 * 1024, "what sm_120 gives a CTA");
SM120_GROUPED_UNITS_CONFIGS(FITS)

SM120_GROUPED_UNITS_CONFIGS(KERNEL)
