/* The rows of a tile of a product of groups: where each lies in A, and the factor of its results. */
#ifndef NVFP4_SM80_GROUPED_ROWS_CUH
#define NVFP4_SM80_GROUPED_ROWS_CUH

#include "kernels/common/batch_epilogue.cuh"
#include "kernels/common/group_tile.cuh"
#include "kernels/sm80/grouped_config.h"

/* In shared memory: addresses, NULL for an index outside of A, whose row is then not loaded; and factors, NaN for it.
 */
template <int TILE_M> struct tile_rows {
    const uint8_t **addresses;
    float *factors;

    __device__ __forceinline__ explicit tile_rows(uint8_t *shared)
        : addresses((const uint8_t **)shared), factors((float *)(shared + TILE_M * 8)) {
        static_assert(SM80_GROUPED_ROW_BYTES >= 8 + 4, "as the host reserves it");
    }

    /* Called by all threads of the CTA, of which there are TILE_M at least; ends with a barrier. */
    __device__ __forceinline__ void find(const grouped_problem &p, const group_tile &tile) const {
        if ((int)threadIdx.x < min(TILE_M, tile.rows)) {
            const int64_t i = (int64_t)tile.row + threadIdx.x, row = p.rows ? p.rows[i] : i;
            const bool exists = row >= 0 && row < p.a_rows;
            addresses[threadIdx.x] = exists ? p.g.a + row * p.g.a_pitch : NULL;
            factors[threadIdx.x] = !exists ? __int_as_float(0x7FFFFFFF) : p.row_scale ? p.row_scale[i] : 1.0f;
        }
        __syncthreads();
    }
};

#endif
