/* The staged proof of the B200 kernel: each kernel here runs one step of csrc/sm100_gemm.cu by itself, with that file's
 * own functions and the wrappers of csrc/device, and writes to global memory what the step left in shared or tensor
 * memory. tests/test_sm100_stages.py launches them and says what each stage proves; docs/kernels.md says in which order
 * to run them on a new machine.
 *
 * Stage A needs no tensor core and compiles for sm_90 too, but for the copies of a pair. */
#include "sm100_configs.h"

/* The functions of the kernel without its entries. */
#pragma push_macro("SM100_GEMM_CONFIGS")
#undef SM100_GEMM_CONFIGS
#define SM100_GEMM_CONFIGS(X)
#include "sm100_gemm.cu"
#pragma pop_macro("SM100_GEMM_CONFIGS")
#undef KERNEL

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 1000
#define HAS_TENSOR_MEMORY 1
#else
#define HAS_TENSOR_MEMORY 0
#endif

extern __shared__ __align__(1024) uint8_t memory[];

enum : uint32_t { NEVER_WRITTEN = 0xA5A5A5A5, CTA_BYTES = 65536 /* of shared memory, before the barriers */ };

/* Shared memory as it was before the step, for both proxies. */
__device__ void fill_shared(uint32_t base, int bytes) {
    for (int at = threadIdx.x * 4; at < bytes; at += blockDim.x * 4) st_shared(base + at, NEVER_WRITTEN);
    fence_proxy_async();
}

__device__ void dump_shared(uint32_t *to, uint32_t base, int bytes) {
    for (int at = threadIdx.x * 4; at < bytes; at += blockDim.x * 4) to[at / 4] = ld_shared(base + at);
}

/* ---- A: copies into shared memory ----------------------------------------------------------------------------------
 * The box at (x, y + rank * step, z) of a map of rank 3 lands at `at`, and exactly `bytes` are counted: fewer or more
 * leave the barrier's phase open for ever. A pair's CTAs both count at the leader's barrier. */
template <int GROUP, bool SCALES>
__device__ __forceinline__ void stage_a_box(const tensor_map &map, int x, int y, int z, int step, int at, int bytes,
                                            uint32_t *image, int image_bytes) {
    uint32_t base = shared_address(memory), barrier = base + CTA_BYTES, rank = GROUP == 2 ? cluster_ctarank() : 0;
    fill_shared(base, image_bytes);
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (GROUP == 2) barrier_cluster_arrive(), barrier_cluster_wait();
    if (threadIdx.x == 0) {
        uint32_t leader = GROUP == 2 ? mapa(barrier, 0) : barrier;
        if (rank == 0) mbarrier_arrive_expect_tx(barrier, bytes * GROUP);
        if constexpr (SCALES)
            tma_load_4d_2sm(base + at, &map, 0, x, y + rank * step, z, leader, 0x14F0000000000000);
        else
            tma_load_3d<GROUP>(base + at, &map, x, y + rank * step, z, leader, 0x14F0000000000000);
    }
    if (rank == 0) mbarrier_wait(barrier, 0);
    if (GROUP == 2) barrier_cluster_arrive(), barrier_cluster_wait();
    dump_shared(image + rank * (image_bytes / 4), base, image_bytes);
}

extern "C" __global__ void stage_a_values(const __grid_constant__ tensor_map map, int x, int y, int z, int step, int at,
                                          int bytes, uint32_t *image, int image_bytes) {
    stage_a_box<1, false>(map, x, y, z, step, at, bytes, image, image_bytes);
}
#if HAS_TENSOR_MEMORY
extern "C" __global__ void stage_a_values_pair(const __grid_constant__ tensor_map map, int x, int y, int z, int step,
                                               int at, int bytes, uint32_t *image, int image_bytes) {
    stage_a_box<2, false>(map, x, y, z, step, at, bytes, image, image_bytes);
}
extern "C" __global__ void stage_a_scales_pair(const __grid_constant__ tensor_map map, int x, int y, int z, int step,
                                               int at, int bytes, uint32_t *image, int image_bytes) {
    stage_a_box<2, true>(map, x, y, z, step, at, bytes, image, image_bytes);
}
#endif

/* Scale atoms that lie one behind the other, as one CTA copies them. */
extern "C" __global__ void stage_a_bulk(const uint8_t *from, int at, int bytes, uint32_t *image, int image_bytes) {
    uint32_t base = shared_address(memory), barrier = base + CTA_BYTES;
    fill_shared(base, image_bytes);
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(barrier, bytes);
        cp_async_bulk(base + at, from, bytes, barrier, 0x14F0000000000000);
    }
    mbarrier_wait(barrier, 0);
    dump_shared(image, base, image_bytes);
}

/* A stage as the gather warps write it: x values, y values, scales of both. */
template <class C>
__device__ __forceinline__ void stage_a_gather(const gemm_problem &p, const sm100_schedule &s, int x, int y, int l,
                                               int k_stage, uint32_t *image) {
    share<C> w(p, s, shared_address(memory));
    fill_shared(w.base, C::STAGE_BYTES);
    __syncthreads();
    if (C::GATHER && threadIdx.x / 32 >= GATHER_WARP) {
        gatherer<C> gather(p, s, w);
        gather.scales(w.base + C::SFX_AT, s.x, x + gather.thread, l, k_stage);
        if (gather.thread < C::TILE_Y) gather.scales(w.base + C::SFY_AT, s.y, y + gather.thread, l, k_stage);
        gather.template values<SM100_CTA_ROWS>(w.base, s.x, x, l, k_stage);
        gather.template values<C::TILE_Y>(w.base + C::Y_AT, s.y, y, l, k_stage);
        cp_async_commit_group();
        cp_async_wait_group<0>();
    }
    __syncthreads();
    dump_shared(image, w.base, C::STAGE_BYTES);
}

#define STAGE_A_GATHER(id, ...)                                                                                        \
    extern "C" __global__ void __launch_bounds__(SM100_THREADS(1), 1)                                                  \
        stage_a_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm100_schedule s, int x, int y,   \
                     int l, int k_stage, uint32_t *image) {                                                            \
        stage_a_gather<config<__VA_ARGS__>>(p, s, x, y, l, k_stage, image);                                            \
    }
SM100_GEMM_CONFIGS(STAGE_A_GATHER)

#if HAS_TENSOR_MEMORY

/* ---- what B to E share ------------------------------------------------------------------------------------------ */

/* 8 columns of the warp's quarter of the lanes; the kernel itself never stores to tensor memory. */
__device__ void tensor_store(uint32_t address, const uint32_t (&v)[8]) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};" ::"r"(address),
                 "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]), "r"(v[4]), "r"(v[5]), "r"(v[6]), "r"(v[7])
                 : "memory");
}
__device__ void tensor_store_wait() {
    asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}

/* The address of the warp's quarter of the lanes. */
__device__ uint32_t own_lanes(uint32_t tmem) {
    return tmem + (threadIdx.x / 32 % 4 << 21);
}

/* Columns first to last - 1 to image[lane][column]; warps 0-3. */
__device__ void dump_tensor(uint32_t *image, int pitch, uint32_t tmem, int first, int last) {
    for (int column = first; column < last; column += 8) {
        float v[8];
        tcgen05_ld(v, own_lanes(tmem) + column);
        tcgen05_wait_ld(v);
        for (int i = 0; i < 8; i++) image[threadIdx.x * pitch + column + i] = __float_as_uint(v[i]);
    }
}

/* Allocation as gemm() has it, by MMA_WARP; the address goes to shared memory at `slot`. Then every thread has it. */
template <int GROUP, int COLUMNS> __device__ uint32_t allocate(uint32_t slot, bool clustered) {
    __syncwarp();
    if (clustered) barrier_cluster_arrive(), barrier_cluster_wait();
    if (threadIdx.x / 32 == MMA_WARP) {
        tcgen05_alloc<GROUP, COLUMNS>(slot);
        tcgen05_relinquish_alloc_permit<GROUP>();
    }
    tcgen05_fence_before_thread_sync();
    __syncthreads();
    tcgen05_fence_after_thread_sync();
    return ld_shared(slot);
}

template <int GROUP, int COLUMNS> __device__ void deallocate(uint32_t tmem, bool clustered) {
    tcgen05_fence_before_thread_sync();
    __syncthreads();
    if (clustered) barrier_cluster_arrive(), barrier_cluster_wait();
    tcgen05_fence_after_thread_sync();
    if (threadIdx.x / 32 == MMA_WARP) tcgen05_dealloc<GROUP, COLUMNS>(tmem);
}

/* ---- B: tensor memory that several CTAs of an SM want --------------------------------------------------------------
 * A CTA takes its columns, lets the next grid start (or did so before: EARLY, the order that can deadlock), waits for
 * the grids before, writes its number to every cell, and counts the cells that hold another one afterwards. */
struct holding {
    uint32_t sm, address, asked, got, gone, foreign; /* asked, got, gone: tickets, in the order of time */
};

template <int GROUP, int COLUMNS, bool EARLY>
__device__ __forceinline__ void stage_b(uint32_t *tickets, holding *holdings, int first) {
    uint32_t slot = shared_address(memory), number = first + blockIdx.x;
    holding &mine = holdings[number];
    if (EARLY) griddepcontrol_launch_dependents();
    if (threadIdx.x == MMA_WARP * 32) mine.asked = atomicAdd(tickets, 1);
    uint32_t tmem = allocate<GROUP, COLUMNS>(slot, GROUP == 2);
    if (threadIdx.x == 0) {
        asm volatile("mov.u32 %0, %%smid;" : "=r"(mine.sm));
        mine.address = tmem;
        mine.got = atomicAdd(tickets, 1);
    }
    griddepcontrol_wait();
    if (!EARLY) griddepcontrol_launch_dependents();
    if (threadIdx.x < 128) {
        uint32_t v[8], foreign = 0;
        for (int i = 0; i < 8; i++) v[i] = number;
        for (int column = 0; column < COLUMNS; column += 8) tensor_store(own_lanes(tmem) + column, v);
        tensor_store_wait();
        for (int column = 0; column < COLUMNS; column += 8) {
            float read[8];
            tcgen05_ld(read, own_lanes(tmem) + column);
            tcgen05_wait_ld(read);
            for (int i = 0; i < 8; i++) foreign += __float_as_uint(read[i]) != number;
        }
        atomicAdd(&mine.foreign, foreign);
    }
    __syncthreads();
    if (threadIdx.x == 0) mine.gone = atomicAdd(tickets, 1);
    deallocate<GROUP, COLUMNS>(tmem, GROUP == 2);
}

#define STAGE_B(name, GROUP, COLUMNS, EARLY)                                                                           \
    extern "C" __global__ void __launch_bounds__(SM100_THREADS(0), 1)                                                  \
        stage_b_##name(uint32_t *tickets, holding *holdings, int first) {                                              \
        stage_b<GROUP, COLUMNS, EARLY>(tickets, holdings, first);                                                      \
    }
STAGE_B(256, 1, 256, false)
STAGE_B(512, 1, 512, false)
STAGE_B(256_pair, 2, 256, false)
STAGE_B(512_pair, 2, 512, false)
STAGE_B(256_early, 1, 256, true)
STAGE_B(512_early, 1, 512, true)

/* ---- C: scales in tensor memory -------------------------------------------------------------------------------------
 * Four atoms of x and 4 * ATOMS_Y of y, [j][i] as a stage has them, through shared memory into the columns that
 * multiply() gives them; all 64 columns are read back. In a pair each CTA has atoms of its own and the leader copies.
 */
template <int GROUP, int ATOMS_Y>
__device__ __forceinline__ void stage_c(const uint8_t *atoms, uint32_t *image, int first_column) {
    constexpr int BYTES = SM100_SFX_BYTES * (1 + ATOMS_Y), COLUMNS = 64;
    uint32_t base = shared_address(memory), barrier = base + CTA_BYTES, done = barrier + 8, slot = barrier + 16;
    uint32_t rank = GROUP == 2 ? cluster_ctarank() : 0;
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init(done, 1);
        fence_mbarrier_init();
    }
    uint32_t tmem = allocate<GROUP, 128>(slot, GROUP == 2), scales = tmem + first_column;
    if (threadIdx.x < 128) {
        uint32_t v[8];
        for (int i = 0; i < 8; i++) v[i] = NEVER_WRITTEN;
        for (int column = 0; column < COLUMNS; column += 8) tensor_store(own_lanes(tmem) + column, v);
        tensor_store_wait();
    }
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(barrier, BYTES);
        cp_async_bulk(base, atoms + rank * BYTES, BYTES, barrier, 0x14F0000000000000);
        mbarrier_wait(barrier, 0);
    }
    tcgen05_fence_before_thread_sync();
    __syncthreads();
    if (GROUP == 2) barrier_cluster_arrive(), barrier_cluster_wait();
    tcgen05_fence_after_thread_sync();
    if (threadIdx.x / 32 == MMA_WARP && rank == 0 && elect_one()) {
        for (int i = 0; i < SM100_STAGE_ATOMS; i++) {
            tcgen05_cp_atom<GROUP>(scales + 4 * i, smem_descriptor_atom(base + i * SM100_ATOM_BYTES));
            for (int j = 0; j < ATOMS_Y; j++)
                tcgen05_cp_atom<GROUP>(scales + 4 * SM100_STAGE_ATOMS + 4 * (i * ATOMS_Y + j),
                                       smem_descriptor_atom(base + (1 + j) * SM100_SFX_BYTES + i * SM100_ATOM_BYTES));
        }
        tcgen05_commit<GROUP>(done, 3);
    }
    __syncwarp();
    mbarrier_wait(done, 0);
    tcgen05_fence_after_thread_sync();
    if (threadIdx.x < 128) dump_tensor(image + rank * 128 * COLUMNS, COLUMNS, tmem, 0, COLUMNS);
    deallocate<GROUP, 128>(tmem, GROUP == 2);
}

#define STAGE_C(GROUP, ATOMS_Y)                                                                                        \
    extern "C" __global__ void __launch_bounds__(SM100_THREADS(0), 1)                                                  \
        stage_c_##GROUP##_##ATOMS_Y(const uint8_t *atoms, uint32_t *image, int first_column) {                         \
        stage_c<GROUP, ATOMS_Y>(atoms, image, first_column);                                                           \
    }
STAGE_C(1, 1)
STAGE_C(1, 2)
STAGE_C(2, 1)
STAGE_C(2, 2)

/* ---- D: products ----------------------------------------------------------------------------------------------------
 * The kernel up to its epilogue, a tile a unit; the accumulator as it is, [CTA][lane][column]. With K = 64 that is one
 * tcgen05.mma. */
template <class C>
__device__ __forceinline__ void stage_d(const gemm_problem &p, const sm100_schedule &s, uint32_t *image) {
    share<C> w(p, s, shared_address(memory));
    int warp = threadIdx.x / 32;
    tile_walk<C> walk(s, w);
    uint32_t tmem = prepare(s, w, walk.place);
    if (warp == PRODUCER_WARP) {
        if (elect_one()) produce(s, w, walk);
    } else if (warp == MMA_WARP) {
        if (w.rank == 0 && elect_one()) multiply(w, walk, tmem);
    } else if (warp >= GATHER_WARP) {
        if constexpr (C::GATHER) gatherer<C>(p, s, w).run(walk);
    } else {
        mbarrier_wait(w.acc_full(0), 0);
        tcgen05_fence_after_thread_sync();
        dump_tensor(image + blockIdx.x * SM100_CTA_ROWS * C::TILE_Y, C::TILE_Y, tmem, 0, C::TILE_Y);
    }
    __syncwarp();
    deallocate<C::GROUP, C::COLUMNS>(tmem, C::GROUP == 2);
}

/* ---- E: the epilogue ------------------------------------------------------------------------------------------------
 * finish() on accumulators that warps 6-9 write in place of the products, each cell a sum of tile, lane of the unit (of
 * a pair 0 to 255) and column by the weights given. With split_k the units hold different multiples of it. */
struct pattern {
    float of_tile, of_lane, of_column, of_unit;
};

template <class C> __device__ void write_pattern(const share<C> &w, uint32_t d, const pattern &f, uint32_t tile) {
    int lane = threadIdx.x / 32 % 4 * 32 + threadIdx.x % 32 + (int)w.rank * SM100_CTA_ROWS;
    for (int column = 0; column < C::TILE_Y; column += 8) {
        uint32_t v[8];
        for (int i = 0; i < 8; i++)
            v[i] = __float_as_uint((f.of_tile * tile + f.of_lane * lane + f.of_column * (column + i)) *
                                   (1 + f.of_unit * w.unit));
        tensor_store(own_lanes(d) + column, v);
    }
    tensor_store_wait();
    tcgen05_fence_before_thread_sync();
    __syncwarp();
}

enum { WRITER_WARP = 6 };

template <class C>
__device__ __forceinline__ void stage_e(const gemm_problem &p, const sm100_schedule &s, const pattern &f) {
    share<C> w(p, s, shared_address(memory));
    int warp = threadIdx.x / 32;
    bool clustered = C::GROUP * s.split_k > 1;
    tile_walk<C> walk(s, w);
    uint32_t tmem = prepare(s, w, walk.place);
    if (warp >= WRITER_WARP) {
        ring<C::ACCUMULATORS> acc;
        for (uint32_t tile = w.first; tile < (uint32_t)s.tiles; tile += w.step, acc.advance()) {
            /* The leader's barrier counts for both CTAs of a pair; one thread passes the news on, by barriers of the
             * ring of stages, which is not used. */
            if (w.rank == 0 && warp == WRITER_WARP && elect_one()) {
                mbarrier_wait(w.acc_empty(acc.slot), acc.parity ^ 1);
                for (uint32_t rank = 0; rank < C::GROUP; rank++)
                    mbarrier_arrive_relaxed(mapa(w.empty(acc.slot), w.unit * C::GROUP + rank));
            }
            __syncwarp();
            mbarrier_wait(w.empty(acc.slot), acc.parity);
            tcgen05_fence_after_thread_sync();
            write_pattern(w, tmem + acc.slot * C::TILE_Y, f, tile);
            asm volatile("bar.sync 1, 128;" ::: "memory");
            if (threadIdx.x == WRITER_WARP * 32) mbarrier_arrive(w.acc_full(acc.slot));
        }
    } else if (warp < EPILOGUE_WARPS) {
        finish(p, s, w, walk, tmem, (const float4 *)(memory + (w.parts - w.base)));
    }
    __syncwarp();
    if (s.partials_in_stages && warp >= EPILOGUE_WARPS) barrier_cluster_arrive_relaxed(), barrier_cluster_wait();
    deallocate<C::GROUP, C::COLUMNS>(tmem, clustered);
}

#define STAGE_D_E(id, ...)                                                                                             \
    extern "C" __global__ void __launch_bounds__(config<__VA_ARGS__>::THREADS, 1) stage_d_##id(                        \
        const __grid_constant__ gemm_problem p, const __grid_constant__ sm100_schedule s, uint32_t *image) {           \
        stage_d<config<__VA_ARGS__>>(p, s, image);                                                                     \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(SM100_THREADS(1), 1)                                                  \
        stage_e_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm100_schedule s,                 \
                     const __grid_constant__ pattern f) {                                                              \
        stage_e<config<__VA_ARGS__>>(p, s, f);                                                                         \
    }
SM100_GEMM_CONFIGS(STAGE_D_E)

#endif
