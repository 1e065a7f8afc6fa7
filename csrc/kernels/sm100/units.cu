/* The kernels of units/gemm.cuh for compute capability 10. */
#include "kernels/sm100/units_config.h"
#include "kernels/units/gemm.cuh"

SM100_UNITS_CONFIGS(KERNEL)
