/* The kernels of units/grouped.cuh for Hopper. */
#include "kernels/sm90/grouped_units_config.h"
#include "kernels/units/grouped.cuh"

SM90_GROUPED_UNITS_CONFIGS(KERNEL)
