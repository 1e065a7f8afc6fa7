/* The table of the backends: every kernel that can run a product. */
#include "plan/gemm_backend.h"

#define NVFP4_BACKEND(ID, name, ...) extern const gemm_backend name##_backend;
#include "backends.def"

const gemm_backend *const gemm_backends[GEMM_BACKENDS] = {
#define NVFP4_BACKEND(ID, name, ...) [NVFP4_BACKEND_##ID] = &name##_backend,
#include "backends.def"
};
