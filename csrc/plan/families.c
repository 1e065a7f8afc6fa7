/* The table of the families: every kernel that can run a product. */
#include "plan/gemm_family.h"

#define NVFP4_FAMILY(ID, name, ...) extern const gemm_family name##_family;
#include "families.def"

const gemm_family *const gemm_families[GEMM_FAMILIES] = {
#define NVFP4_FAMILY(ID, name, ...) [NVFP4_BACKEND_##ID] = &name##_family,
#include "families.def"
};
