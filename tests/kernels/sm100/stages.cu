/* Kernels that run csrc/kernels/sm100/gemm.cu step by step, with that file's own functions and the wrappers of
 * csrc/kernels/common, and write to global memory what a step leaves in shared or tensor memory.
 * tests/kernels/sm100/test_sm100_stages.py launches and checks them; docs/proof.md gives the order for a new machine.
 *
 *   A  loads into shared memory          B  tensor memory allocation      C  scales in tensor memory
 *   D  mainloop up to the accumulator    E  epilogue
 *
 * Stage A needs no tensor core; except for the loads of a pair it compiles for sm_90 too. */
#include "kernels/sm100/config.h"

/* The kernel's functions without its entries. */
#pragma push_macro("SM100_GEMM_CONFIGS")
#undef SM100_GEMM_CONFIGS
#define SM100_GEMM_CONFIGS(X)
#include "kernels/sm100/gemm.cu"
#pragma pop_macro("SM100_GEMM_CONFIGS")
#undef KERNEL

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 1000
#define HAS_TENSOR_MEMORY 1
#else
#define HAS_TENSOR_MEMORY 0
#endif

extern __shared__ __align__(1024) uint8_t memory[];

enum : uint32_t { NEVER_WRITTEN = 0xA5A5A5A5, CTA_BYTES = 65536 /* of shared memory, before the barriers */ };

/* A known pattern in shared memory before the step, visible to both proxies. */
__device__ void fill_shared(uint32_t base, int bytes) {
    for (int at = threadIdx.x * 4; at < bytes; at += blockDim.x * 4) st_shared(base + at, NEVER_WRITTEN);
    fence_proxy_async();
}

__device__ void dump_shared(uint32_t *to, uint32_t base, int bytes) {
    for (int at = threadIdx.x * 4; at < bytes; at += blockDim.x * 4) to[at / 4] = ld_shared(base + at);
}

/* ---- A: loads into shared memory -----------------------------------------------------------------------------------
 * Loads the box at (x, y + rank * step, z) of a rank 3 map to offset `at` and expects `bytes`; any other count leaves
 * the phase incomplete and hangs. Both CTAs of a pair complete bytes on the leader's barrier. */
template <int CTA_GROUP, bool SCALES>
__device__ __forceinline__ void stage_a_box(const tensor_map &map, int x, int y, int z, int step, int at, int bytes,
                                            uint32_t *image, int image_bytes) {
    uint32_t base = shared_address(memory), barrier = base + CTA_BYTES, rank = CTA_GROUP == 2 ? cluster_ctarank() : 0;
    fill_shared(base, image_bytes);
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (CTA_GROUP == 2) barrier_cluster_arrive(), barrier_cluster_wait();
    if (threadIdx.x == 0) {
        uint32_t leader = CTA_GROUP == 2 ? mapa(barrier, 0) : barrier;
        if (rank == 0) mbarrier_arrive_expect_tx(barrier, bytes * CTA_GROUP);
        if constexpr (SCALES)
            tma_load_4d_2sm(base + at, &map, 0, x, y + rank * step, z, leader, 0x14F0000000000000);
        else
            tma_load_3d<CTA_GROUP>(base + at, &map, x, y + rank * step, z, leader, 0x14F0000000000000);
    }
    if (rank == 0) mbarrier_wait(barrier, 0);
    if (CTA_GROUP == 2) barrier_cluster_arrive(), barrier_cluster_wait();
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

/* Contiguous scale atoms, as a single CTA loads them. */
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

/* A stage as the cp.async producer writes it: values of mma_a and mma_b, scales of both. */
template <class C>
__device__ __forceinline__ void stage_a_cp_async(const gemm_problem &p, const sm100_schedule &s, int x, int y, int l,
                                                 int k_stage, uint32_t *image) {
    cta_context<C> cta(p, s, shared_address(memory));
    fill_shared(cta.base, C::STAGE_BYTES);
    __syncthreads();
    if (C::CP_ASYNC && threadIdx.x / 32 >= CP_ASYNC_WARP) {
        cp_async_producer<C> producer(p, s, cta);
        producer.scales(cta.base + C::MMA_SFA_OFFSET, s.mma_a, x + producer.thread, l, k_stage);
        if (producer.thread < C::MMA_TILE_N)
            producer.scales(cta.base + C::MMA_SFB_OFFSET, s.mma_b, y + producer.thread, l, k_stage);
        producer.template values<SM100_CTA_ROWS>(cta.base, s.mma_a, x, l, k_stage);
        producer.template values<C::MMA_TILE_N>(cta.base + C::MMA_B_OFFSET, s.mma_b, y, l, k_stage);
        cp_async_commit_group();
        cp_async_wait_group<0>();
    }
    __syncthreads();
    dump_shared(image, cta.base, C::STAGE_BYTES);
}

#define STAGE_A_CP_ASYNC(id, ...)                                                                                      \
    extern "C" __global__ void __launch_bounds__(SM100_THREADS(0, 1), 1)                                               \
        stage_a_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm100_schedule s, int x, int y,   \
                     int l, int k_stage, uint32_t *image) {                                                            \
        stage_a_cp_async<config<__VA_ARGS__>>(p, s, x, y, l, k_stage, image);                                          \
    }
SM100_GEMM_CONFIGS(STAGE_A_CP_ASYNC)

#if HAS_TENSOR_MEMORY

/* ---- functions that B to E share ------------------------------------------------------------------- */

/* Stores 8 columns of the warp's lane quarter; the kernel itself has no tcgen05.st. */
__device__ void tensor_store(uint32_t address, const uint32_t (&v)[8]) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};" ::"r"(address),
                 "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]), "r"(v[4]), "r"(v[5]), "r"(v[6]), "r"(v[7])
                 : "memory");
}
__device__ void tensor_store_wait() {
    asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}

/* The address of the warp's lane quarter. */
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

/* Allocates as allocate_tensor_memory() does; `to` is the shared memory word for the address, which every thread
 * returns. */
template <int CTA_GROUP, int COLUMNS> __device__ uint32_t allocate(uint32_t to, bool clustered) {
    __syncwarp();
    if (clustered) barrier_cluster_arrive(), barrier_cluster_wait();
    if (threadIdx.x / 32 == MMA_WARP) {
        tcgen05_alloc<CTA_GROUP, COLUMNS>(to);
        tcgen05_relinquish_alloc_permit<CTA_GROUP>();
    }
    tcgen05_fence_before_thread_sync();
    __syncthreads();
    tcgen05_fence_after_thread_sync();
    return ld_shared(to);
}

template <int CTA_GROUP, int COLUMNS> __device__ void deallocate(uint32_t tmem, bool clustered) {
    tcgen05_fence_before_thread_sync();
    __syncthreads();
    if (clustered) barrier_cluster_arrive(), barrier_cluster_wait();
    tcgen05_fence_after_thread_sync();
    if (threadIdx.x / 32 == MMA_WARP) tcgen05_dealloc<CTA_GROUP, COLUMNS>(tmem);
}

/* ---- B: tensor memory allocation by several CTAs of an SM ----------------------------------------------------------
 * A CTA allocates, calls launch_dependents (EARLY: before the allocation, the order that can deadlock), waits for the
 * previous grids, writes its number to every cell and counts the cells that then hold another number. */
struct holding {
    uint32_t sm, address, asked, got, gone, foreign; /* asked, got, gone: tickets in order of time */
};

template <int CTA_GROUP, int COLUMNS, bool EARLY>
__device__ __forceinline__ void stage_b(uint32_t *tickets, holding *holdings, int first) {
    uint32_t address = shared_address(memory), number = first + blockIdx.x;
    holding &mine = holdings[number];
    if (EARLY) griddepcontrol_launch_dependents();
    if (threadIdx.x == MMA_WARP * 32) mine.asked = atomicAdd(tickets, 1);
    uint32_t tmem = allocate<CTA_GROUP, COLUMNS>(address, CTA_GROUP == 2);
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
    deallocate<CTA_GROUP, COLUMNS>(tmem, CTA_GROUP == 2);
}

#define STAGE_B(name, CTA_GROUP, COLUMNS, EARLY)                                                                       \
    extern "C" __global__ void __launch_bounds__(SM100_THREADS(0, 0), 1)                                               \
        stage_b_##name(uint32_t *tickets, holding *holdings, int first) {                                              \
        stage_b<CTA_GROUP, COLUMNS, EARLY>(tickets, holdings, first);                                                  \
    }
STAGE_B(256, 1, 256, false)
STAGE_B(512, 1, 512, false)
STAGE_B(256_pair, 2, 256, false)
STAGE_B(512_pair, 2, 512, false)
STAGE_B(256_early, 1, 256, true)
STAGE_B(512_early, 1, 512, true)

/* ---- C: scales in tensor memory -------------------------------------------------------------------------------------
 * Copies four scale atoms of mma_a and 4 * MMA_SFB_ATOMS of mma_b, in a stage's layout, to the columns that mainloop()
 * uses; all 64 columns are read back. In a pair each CTA has its own atoms and the leader issues the cp. */
template <int CTA_GROUP, int MMA_SFB_ATOMS>
__device__ __forceinline__ void stage_c(const uint8_t *atoms, uint32_t *image, int first_column) {
    constexpr int BYTES = SM100_MMA_SFA_BYTES * (1 + MMA_SFB_ATOMS), COLUMNS = 64;
    uint32_t base = shared_address(memory), barrier = base + CTA_BYTES, done = barrier + 8, address = barrier + 16;
    uint32_t rank = CTA_GROUP == 2 ? cluster_ctarank() : 0;
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init(done, 1);
        fence_mbarrier_init();
    }
    uint32_t tmem = allocate<CTA_GROUP, 128>(address, CTA_GROUP == 2), scales = tmem + first_column;
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
    if (CTA_GROUP == 2) barrier_cluster_arrive(), barrier_cluster_wait();
    tcgen05_fence_after_thread_sync();
    if (threadIdx.x / 32 == MMA_WARP && rank == 0 && elect_one()) {
        for (int i = 0; i < SM100_STAGE_ATOMS; i++) {
            tcgen05_cp_atom<CTA_GROUP>(scales + 4 * i, smem_descriptor_atom(base + i * SM100_ATOM_BYTES));
            for (int j = 0; j < MMA_SFB_ATOMS; j++)
                tcgen05_cp_atom<CTA_GROUP>(
                    scales + 4 * SM100_STAGE_ATOMS + 4 * (i * MMA_SFB_ATOMS + j),
                    smem_descriptor_atom(base + (1 + j) * SM100_MMA_SFA_BYTES + i * SM100_ATOM_BYTES));
        }
        tcgen05_commit<CTA_GROUP>(done, 3);
    }
    __syncwarp();
    mbarrier_wait(done, 0);
    tcgen05_fence_after_thread_sync();
    if (threadIdx.x < 128) dump_tensor(image + rank * 128 * COLUMNS, COLUMNS, tmem, 0, COLUMNS);
    deallocate<CTA_GROUP, 128>(tmem, CTA_GROUP == 2);
}

#define STAGE_C(CTA_GROUP, MMA_SFB_ATOMS)                                                                              \
    extern "C" __global__ void __launch_bounds__(SM100_THREADS(0, 0), 1)                                               \
        stage_c_##CTA_GROUP##_##MMA_SFB_ATOMS(const uint8_t *atoms, uint32_t *image, int first_column) {               \
        stage_c<CTA_GROUP, MMA_SFB_ATOMS>(atoms, image, first_column);                                                 \
    }
STAGE_C(1, 1)
STAGE_C(1, 2)
STAGE_C(2, 1)
STAGE_C(2, 2)

/* ---- D: mainloop ----------------------------------------------------------------------------------------------------
 * The kernel up to its epilogue, one tile a CTA or pair; the accumulator to image[CTA][lane][column]. K = 64 is one
 * tcgen05.mma. */
template <class C>
__device__ __forceinline__ void stage_d(const gemm_problem &p, const sm100_schedule &s, uint32_t *image) {
    cta_context<C> cta(p, s, shared_address(memory));
    int warp = threadIdx.x / 32;
    tile_scheduler<C> scheduler(s, cta);
    prologue(s, cta, scheduler.coord);
    uint32_t tmem = 0;
    if (warp == MMA_WARP) tmem = allocate_tensor_memory(cta);
    if (warp == PRODUCER_WARP) {
        if (elect_one()) tma_producer<C>{s, cta, scheduler, SM100_CONSTANT_NONE}.run();
    } else if (warp == MMA_WARP) {
        if (cta.rank == 0 && elect_one()) mainloop(cta, scheduler, tmem);
    } else if (C::CP_ASYNC && warp >= CP_ASYNC_WARP) {
        if constexpr (C::CP_ASYNC) cp_async_producer<C>(p, s, cta).run(scheduler);
    } else if (warp >= EPILOGUE_WARPS) {
        tensor_memory(cta); /* the second group of the epilogue */
    } else {
        tmem = tensor_memory(cta);
        mbarrier_wait(cta.acc_full(0), 0);
        tcgen05_fence_after_thread_sync();
        dump_tensor(image + blockIdx.x * SM100_CTA_ROWS * C::MMA_TILE_N, C::MMA_TILE_N, tmem, 0, C::MMA_TILE_N);
    }
    __syncwarp();
    deallocate<C::CTA_GROUP, C::COLUMNS>(tmem, C::CTA_GROUP == 2);
}

/* ---- E: the epilogue ------------------------------------------------------------------------------------------------
 * epilogue() on accumulators that four more warps write: each cell is a weighted sum of tile, row of mma_a in the tile
 * and column, times 1 + of_split_idx * split_idx. */
struct pattern {
    float of_tile, of_lane, of_column, of_split_idx;
};

template <class C>
__device__ void write_pattern(const cta_context<C> &cta, uint32_t d, const pattern &f, uint32_t tile) {
    int lane = threadIdx.x / 32 % 4 * 32 + threadIdx.x % 32 + (int)cta.rank * SM100_CTA_ROWS;
    for (int column = 0; column < C::MMA_TILE_N; column += 8) {
        uint32_t v[8];
        for (int i = 0; i < 8; i++)
            v[i] = __float_as_uint((f.of_tile * tile + f.of_lane * lane + f.of_column * (column + i)) *
                                   (1 + f.of_split_idx * cta.split_idx));
        tensor_store(own_lanes(d) + column, v);
    }
    tensor_store_wait();
    tcgen05_fence_before_thread_sync();
    __syncwarp();
}

/* The first of the four. */
template <class C> __host__ __device__ constexpr int writer_warp() {
    return MMA_WARP + 1 + EPILOGUE_WARPS * (C::EPILOGUE_GROUPS - 1);
}
template <class C> __host__ __device__ constexpr int stage_e_threads() {
    return 32 * (writer_warp<C>() + 4);
}

template <class C>
__device__ __forceinline__ void stage_e(const gemm_problem &p, const sm100_schedule &s, const pattern &f) {
    cta_context<C> cta(p, s, shared_address(memory));
    int warp = threadIdx.x / 32;
    bool clustered = C::SPLIT_CTAS * s.split_k > 1;
    constexpr int WRITER_WARP = writer_warp<C>();
    tile_scheduler<C> scheduler(s, cta);
    prologue(s, cta, scheduler.coord);
    uint32_t tmem = 0;
    if (warp == MMA_WARP) tmem = allocate_tensor_memory(cta);
    const bool epilogues = warp < EPILOGUE_WARPS || (warp > MMA_WARP && warp < WRITER_WARP);
    if (epilogues) tmem = tensor_memory(cta);
    tcgen05_fence_before_thread_sync();
    __syncthreads(); /* for the writers */
    tcgen05_fence_after_thread_sync();
    tmem = ld_shared(cta.base + C::TMEM_ADDRESS_OFFSET);
    if (warp >= WRITER_WARP) {
        pipeline_state<C::ACCUMULATORS> acc;
        for (uint32_t tile = cta.first; tile < (uint32_t)s.tiles; tile += cta.step, acc.advance()) {
            /* acc_empty of the leader counts for both CTAs of a pair; one thread forwards it on the empty barriers of
             * the stages, which this kernel does not use otherwise. */
            if (cta.rank == 0 && warp == WRITER_WARP && elect_one()) {
                mbarrier_wait(cta.acc_empty(acc.index), acc.phase ^ 1);
                for (uint32_t i = 0; i < C::SPLIT_CTAS; i++) /* empty counts a commit of each pair */
                    mbarrier_arrive_relaxed(mapa(cta.empty(acc.index), cta.leader() + i % C::CTA_GROUP));
            }
            __syncwarp();
            mbarrier_wait(cta.empty(acc.index), acc.phase);
            tcgen05_fence_after_thread_sync();
            write_pattern(cta, tmem + acc.index * C::MMA_TILE_N, f, tile);
            asm volatile("bar.sync 1, 128;" ::: "memory");
            if (threadIdx.x == WRITER_WARP * 32) mbarrier_arrive(cta.acc_full(acc.index));
        }
    } else if (epilogues) {
        epilogue(p, s, cta, scheduler, tmem, (const float4 *)(memory + (cta.partials - cta.base)));
    }
    __syncwarp();
    if (s.partials_in_stages && warp >= EPILOGUE_WARPS) barrier_cluster_arrive_relaxed(), barrier_cluster_wait();
    deallocate<C::CTA_GROUP, C::COLUMNS>(tmem, clustered);
}

#define STAGE_D_E(id, ...)                                                                                             \
    extern "C" __global__ void __launch_bounds__(config<__VA_ARGS__>::THREADS, 1) stage_d_##id(                        \
        const __grid_constant__ gemm_problem p, const __grid_constant__ sm100_schedule s, uint32_t *image) {           \
        stage_d<config<__VA_ARGS__>>(p, s, image);                                                                     \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(stage_e_threads<config<__VA_ARGS__>>(), 1)                            \
        stage_e_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm100_schedule s,                 \
                     const __grid_constant__ pattern f) {                                                              \
        stage_e<config<__VA_ARGS__>>(p, s, f);                                                                         \
    }
SM100_GEMM_CONFIGS(STAGE_D_E)

#endif
