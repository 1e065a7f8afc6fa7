/* The table of the families: every kernel that can run a product. */
#include "plan/gemm_family.h"

extern const gemm_family cpu_family, sm80_family, sm90_family, sm100_family;

const gemm_family *const gemm_families[GEMM_FAMILIES] = {
    [NVFP4_BACKEND_CPU] = &cpu_family,
    [NVFP4_BACKEND_SM80] = &sm80_family,
    [NVFP4_BACKEND_SM90] = &sm90_family,
    [NVFP4_BACKEND_SM100] = &sm100_family,
};
