/* The kernels of units/gemm.cuh for Hopper. */
#include "kernels/sm90/units_config.h"
#include "kernels/units/gemm.cuh"

SM90_UNITS_CONFIGS(KERNEL)
