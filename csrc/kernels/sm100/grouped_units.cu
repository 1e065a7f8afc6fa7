/* The kernels of units/grouped.cuh for compute capability 10. */
#include "kernels/sm100/grouped_units_config.h"
#include "kernels/units/grouped.cuh"

SM100_GROUPED_UNITS_CONFIGS(KERNEL)
