/* From a tile's accumulators to the output: the sum over split-K, and the epilogue.
 *
 *   split-K   The CTAs of a cluster have a part of K each, and the warps of a tile are divided among them: CTA r keeps
 *             the warps [r * WARPS / split_k, (r + 1) * WARPS / split_k) and gets their sums from the same warps of
 *             the others by st.async, [sender, without the receiver][warp][mma][lane] 16 bytes, in place of the stages.
 *             It adds in the order of K, its own part in its place: the order does not depend on the tile.
 *   epilogue  A warp brings 16 x 16 sums at a time from mma fragments into rows of the output, in a staging buffer of
 *             its own, and stores 4 columns a lane. */
#ifndef NVFP4_SM120_STORE_CUH
#define NVFP4_SM120_STORE_CUH

#include "kernels/common/cluster.cuh"
#include "kernels/common/epilogue.cuh"
#include "kernels/sm120/tile.cuh"

template <class C> struct split_sum {
    static constexpr int TILE_BYTES = C::MMAS_M * C::MMAS_N * 512; /* of a warp */
    cta_memory<C> cta;
    int split_k, split_idx;

    __device__ __forceinline__ split_sum(const cta_memory<C> &cta, int split_k, int split_idx)
        : cta(cta), split_k(split_k), split_idx(split_idx) {}

    /* Warps that a CTA keeps, and the CTA that keeps the sums of this one. split_k is a power of two. */
    __device__ __forceinline__ int kept() const { return C::WARPS >> (__ffs(split_k) - 1); }
    __device__ __forceinline__ int keeper() const { return threadIdx.x / 32 * split_k / C::WARPS; }
    __device__ __forceinline__ bool keeps() const { return keeper() == split_idx; }

    /* The offset of a sender's sums of this warp and lane. */
    __device__ __forceinline__ uint32_t from(int sender) const {
        const int place = sender < keeper() ? sender : sender - 1;
        return (place * kept() + (threadIdx.x / 32 & (kept() - 1))) * TILE_BYTES + threadIdx.x % 32 * 16;
    }

    /* One thread, before the cluster barrier. */
    __device__ __forceinline__ void expect() const {
        mbarrier_arrive_expect_tx(cta.partials_full(), (split_k - 1) * kept() * TILE_BYTES);
    }

    __device__ __forceinline__ void send(const accumulators<C> &acc) const {
        const uint32_t to = mapa(cta.base + from(split_idx), keeper()), full = mapa(cta.partials_full(), keeper());
#pragma unroll
        for (int i = 0; i < C::MMAS_M; i++)
#pragma unroll
            for (int j = 0; j < C::MMAS_N; j++) {
                const float (&v)[4] = acc[i][j];
                st_async(to + (i * C::MMAS_N + j) * 512, full, v[0], v[1], v[2], v[3]);
            }
    }

    __device__ __forceinline__ void add(accumulators<C> &acc) const {
        mbarrier_wait_cluster(cta.partials_full(), 0);
#pragma unroll
        for (int i = 0; i < C::MMAS_M; i++)
#pragma unroll
            for (int j = 0; j < C::MMAS_N; j++) {
                float sum[4] = {};
#pragma unroll 1
                for (int part = 0; part < split_k; part++) {
                    float v[4] = {acc[i][j][0], acc[i][j][1], acc[i][j][2], acc[i][j][3]};
                    if (part != split_idx) ld_shared_v4_f32(cta.base + from(part) + (i * C::MMAS_N + j) * 512, v);
#pragma unroll
                    for (int r = 0; r < 4; r++) sum[r] += v[r];
                }
#pragma unroll
                for (int r = 0; r < 4; r++) acc[i][j][r] = sum[r];
            }
    }
};

/* A warp's epilogue staging buffer: 16 x COLUMNS sums, fp32, in rows of the output, whose chunks of 4 are XORed with
 * the row so that neither side has bank conflicts. */
template <class C> struct staging_block {
    static constexpr int COLUMNS = SM120_BLOCK_COLUMNS(C::MMA_TILE_N, C::WARPS_N), MMAS = COLUMNS / 8;
    static constexpr int PER_ROW = C::MMAS_N / MMAS; /* blocks of 16 rows of mma_a */
    uint32_t base;                                   /* shared address of this warp's */
    bool swap_ab;                                    /* 1: 16 columns of COLUMNS rows of the output; else 16 rows */

    __device__ __forceinline__ staging_block(const cta_memory<C> &cta, bool swap_ab)
        : base(cta.base + C::STAGING_OFFSET + threadIdx.x / 32 * 16 * COLUMNS * 4), swap_ab(swap_ab) {}

    __device__ __forceinline__ int chunks() const { return (swap_ab ? 16 : COLUMNS) / 4; } /* in a row */
    __device__ __forceinline__ int rows() const { return swap_ab ? COLUMNS : 16; }
    __device__ __forceinline__ uint32_t at(int row, int column) const {
        const int chunk = (column / 4 ^ (swap_ab ? row / 2 : row)) % chunks();
        return base + (row * chunks() + chunk) * 16 + column % 4 * 4;
    }

    /* mma tiles [first, first + MMAS) of a row of them. */
    __device__ __forceinline__ void write(const float (&sums)[C::MMAS_N][4], int first) const {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int j = 0; j < MMAS; j++)
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const int row = g + r / 2 * 8, column = j * 8 + 2 * t + r % 2;
                st_shared(swap_ab ? at(column, row) : at(row, column), __float_as_uint(sums[first + j][r]));
            }
    }

    /* Memory that the results of a lane's rows depend on. It is loaded before a block is staged: the lane would wait
     * for it behind. */
    template <class OUTPUT> struct loaded_rows {
        typename OUTPUT::loaded row[COLUMNS / 8];
    };

    template <class OUTPUT>
    __device__ __forceinline__ void load(const OUTPUT &output, int64_t mma_m, int64_t mma_n,
                                         loaded_rows<OUTPUT> &loaded) const {
        const int lane = threadIdx.x % 32;
        const int64_t m = swap_ab ? mma_n : mma_m, n = (swap_ab ? mma_m : mma_n) + lane % chunks() * 4;
#pragma unroll
        for (int i = 0; i < COLUMNS / 8; i++) {
            const int64_t row = m + lane / chunks() + i * (32 / chunks());
            if (n < output.columns() && row < output.rows()) output.load(row, n, loaded.row[i]);
        }
    }

    /* The epilogue of the block whose first row of mma_a and mma_b these are. */
    template <class OUTPUT>
    __device__ __forceinline__ void store(const OUTPUT &output, int64_t mma_m, int64_t mma_n,
                                          loaded_rows<OUTPUT> &loaded) const {
        const int lane = threadIdx.x % 32, column = lane % chunks() * 4;
        const int64_t m = swap_ab ? mma_n : mma_m, n = (swap_ab ? mma_m : mma_n) + column;
        if (n >= output.columns()) return;
        const four_column_epilogue columns = output.epilogue(n);
#pragma unroll 1
        for (int row = lane / chunks(); row < rows() && m + row < output.rows(); row += 32 / chunks()) {
            float sums[4];
            ld_shared_v4_f32(at(row, column), sums);
            output.store(columns, m + row, sums, loaded.row[0]);
#pragma unroll
            for (int i = 1; i < COLUMNS / 8; i++) loaded.row[i - 1] = loaded.row[i];
        }
    }
};

/* The output of a product, as store_warp writes it: its size, what four columns need, and four results of a row. */
struct batch_output {
    const gemm_problem &p;
    int64_t l;
    struct loaded {};

    __device__ __forceinline__ int64_t rows() const { return p.m; }
    __device__ __forceinline__ int64_t columns() const { return p.n; }
    __device__ __forceinline__ four_column_epilogue epilogue(int64_t n) const { return four_column_epilogue(p, n); }
    __device__ __forceinline__ void load(int64_t, int64_t, loaded &) const {}
    __device__ __forceinline__ void store(const four_column_epilogue &columns, int64_t m, const float (&sums)[4],
                                          const loaded &) const {
        columns.store(p, l, m, sums);
    }
};

/* Stores a warp's sums of the tile with these first rows of mma_a and mma_b. The loops over blocks have one copy of the
 * epilogue, which is much larger than the choice of the block's accumulators. */
template <class C, class OUTPUT>
__device__ __forceinline__ void store_warp(const OUTPUT &output, const cta_memory<C> &cta, bool swap_ab,
                                           int32_t tile_mma_m, int32_t tile_mma_n, const accumulators<C> &acc) {
    using block = staging_block<C>;
    const block staged(cta, swap_ab);
    const int warp = threadIdx.x / 32;
    const int64_t mma_m = (int64_t)tile_mma_m + warp / C::WARPS_N * C::WARP_M;
    const int64_t mma_n = (int64_t)tile_mma_n + warp % C::WARPS_N * C::WARP_N;
#pragma unroll 1
    for (int i = 0; i < C::MMAS_M; i++)
#pragma unroll 1
        for (int j = 0; j < block::PER_ROW; j++) {
            typename block::template loaded_rows<OUTPUT> loaded;
            staged.load(output, mma_m + i * 16, mma_n + j * block::COLUMNS, loaded);
#pragma unroll
            for (int of_i = 0; of_i < C::MMAS_M; of_i++)
                if (i == of_i)
#pragma unroll
                    for (int of_j = 0; of_j < block::PER_ROW; of_j++)
                        if (j == of_j) staged.write(acc[of_i], of_j * block::MMAS);
            __syncwarp();
            staged.store(output, mma_m + i * 16, mma_n + j * block::COLUMNS, loaded);
            __syncwarp();
        }
}

#endif
