/* Programmatic dependent launch (PTX ISA 9.7.13.13) in kernels for every GPU: their entries in a kernel_set have
 * `pdl`, which the driver heeds only where their PTX is that of sm_90 or later. */
#ifndef NVFP4_KERNELS_COMMON_DEPENDENT_CUH
#define NVFP4_KERNELS_COMMON_DEPENDENT_CUH

#include "kernels/common/cluster.cuh"

/* Waits until the prerequisite grids have completed and their writes are visible, then lets the dependent grid start.
 * Each thread calls it first, even one that has nothing to do: if a whole grid returned without waiting, the next one
 * would run beside the grids that this one should have waited for. */
__device__ __forceinline__ void begin_dependent_grid() {
#if __CUDA_ARCH__ >= 900
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
#endif
}

#endif
