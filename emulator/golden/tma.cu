// Bulk tensor copies: loads of one to five dimensions, stores, reductions, multicast, prefetch (PTX ISA 9.7.9.27).
// Cases vary the tensor map, the coordinates, the place in shared memory and the bytes expected.
#include "golden.cuh"

struct Coordinates {
    int c[5];
};

#define LOAD      "cp.async.bulk.tensor."
#define LOAD_TAIL ".shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "

static __device__ __forceinline__ void load(int rank, u32 to, const TensorMap *map, const Coordinates &at, u32 bar) {
    u64 m = (u64)map;
    const int *c = at.c;
    if (rank == 1)
        asm volatile(LOAD "1d" LOAD_TAIL "{%3}], [%2];" ::"r"(to), "l"(m), "r"(bar), "r"(c[0]) : "memory");
    else if (rank == 2)
        asm volatile(LOAD "2d" LOAD_TAIL "{%3, %4}], [%2];" ::"r"(to), "l"(m), "r"(bar), "r"(c[0]), "r"(c[1])
                     : "memory");
    else if (rank == 3)
        asm volatile(LOAD "3d" LOAD_TAIL "{%3, %4, %5}], [%2];" ::"r"(to), "l"(m), "r"(bar), "r"(c[0]), "r"(c[1]),
                     "r"(c[2])
                     : "memory");
    else if (rank == 4)
        asm volatile(LOAD "4d" LOAD_TAIL "{%3, %4, %5, %6}], [%2];" ::"r"(to), "l"(m), "r"(bar), "r"(c[0]), "r"(c[1]),
                     "r"(c[2]), "r"(c[3])
                     : "memory");
    else
        asm volatile(LOAD "5d" LOAD_TAIL "{%3, %4, %5, %6, %7}], [%2];" ::"r"(to), "l"(m), "r"(bar), "r"(c[0]),
                     "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4])
                     : "memory");
}

// One load of `bytes` to `offset` in `size` bytes of 0xee. Behind the image: whether the phase completed with that many
// bytes expected, and whether no bytes came on top.
extern "C" __global__ void tma_load(const __grid_constant__ TensorMap map, const __grid_constant__ Coordinates at,
                                    u32 *out, int rank, int offset, int bytes, int size) {
    extern __shared__ __align__(1024) u8 area[];
    __shared__ u64 bar;
    u32 t = threadIdx.x, b = shared_address(&bar);
    for (int i = t; i < size / 4; i += blockDim.x) ((u32 *)area)[i] = 0xeeeeeeee;
    if (t == 0) {
        asm volatile("prefetch.tensormap [%0];" ::"l"((u64)&map) : "memory");
        barrier_init(b, 1);
        fence_init();
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (t == 0) {
        expect_and_arrive(b, bytes);
        load(rank, shared_address(area) + offset, &map, at, b);
    }
    u32 done = wait_parity(b, 0);
    for (int i = t; i < size / 4; i += blockDim.x) out[i] = ((u32 *)area)[i];
    if (t == 0) out[size / 4] = done, out[size / 4 + 1] = done ? balanced(b, 0) : 0;
    __syncthreads();
}

// The tensor holds what the host put there; the image in shared memory comes from `in`.
extern "C" __global__ void tma_store(const __grid_constant__ TensorMap map, const __grid_constant__ Coordinates at,
                                     const u32 *in, int rank, int offset, int size) {
    extern __shared__ __align__(1024) u8 area[];
    u32 t = threadIdx.x;
    for (int i = t; i < size / 4; i += blockDim.x) ((u32 *)area)[i] = in[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (t) return;
    u32 from = shared_address(area) + offset;
    u64 m = (u64)&map;
    const int *c = at.c;
#define STORE_TAIL ".global.shared::cta.tile.bulk_group [%1, "
    if (rank == 1)
        asm volatile(LOAD "1d" STORE_TAIL "{%2}], [%0];" ::"r"(from), "l"(m), "r"(c[0]) : "memory");
    else if (rank == 2)
        asm volatile(LOAD "2d" STORE_TAIL "{%2, %3}], [%0];" ::"r"(from), "l"(m), "r"(c[0]), "r"(c[1]) : "memory");
    else if (rank == 3)
        asm volatile(LOAD "3d" STORE_TAIL "{%2, %3, %4}], [%0];" ::"r"(from), "l"(m), "r"(c[0]), "r"(c[1]), "r"(c[2])
                     : "memory");
    else if (rank == 4)
        asm volatile(LOAD "4d" STORE_TAIL "{%2, %3, %4, %5}], [%0];" ::"r"(from), "l"(m), "r"(c[0]), "r"(c[1]),
                     "r"(c[2]), "r"(c[3])
                     : "memory");
    else
        asm volatile(LOAD "5d" STORE_TAIL "{%2, %3, %4, %5, %6}], [%0];" ::"r"(from), "l"(m), "r"(c[0]), "r"(c[1]),
                     "r"(c[2]), "r"(c[3]), "r"(c[4])
                     : "memory");
    asm volatile("cp.async.bulk.commit_group;");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#define REDUCTION(operation)                                                                                           \
    extern "C" __global__ void tma_reduce_##operation(                                                                 \
        const __grid_constant__ TensorMap map, const __grid_constant__ Coordinates at, const u32 *in, int size) {      \
        extern __shared__ __align__(1024) u8 area[];                                                                   \
        u32 t = threadIdx.x;                                                                                           \
        for (int i = t; i < size / 4; i += blockDim.x) ((u32 *)area)[i] = in[i];                                       \
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");                                                   \
        __syncthreads();                                                                                               \
        if (t) return;                                                                                                 \
        asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta." #operation                                   \
                     ".tile.bulk_group [%1, {%2, %3}], [%0];" ::"r"(shared_address(area)),                             \
                     "l"((u64) & map), "r"(at.c[0]), "r"(at.c[1])                                                      \
                     : "memory");                                                                                      \
        asm volatile("cp.async.bulk.commit_group;");                                                                   \
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");                                                 \
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");                                                      \
    }
REDUCTION(add)
REDUCTION(min)
REDUCTION(max)
REDUCTION(inc)
REDUCTION(dec)
REDUCTION(and)
REDUCTION(or)
REDUCTION(xor)

// Each CTA of a cluster loads its own slice of `rows` rows and sends it to the CTAs of masks[rank]. A CTA waits for the
// bytes of all slices that are sent to it. `size` bytes of image and one word for the phase per CTA.
extern "C" __global__ void tma_multicast(const __grid_constant__ TensorMap map, const u32 *masks, u32 *out, int slice,
                                         int rows, int size) {
    extern __shared__ __align__(1024) u8 area[];
    __shared__ u64 bar;
    u32 t = threadIdx.x, b = shared_address(&bar), rank = cluster_rank(), ranks, incoming = 0;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(ranks));
    for (int i = t; i < size / 4; i += blockDim.x) ((u32 *)area)[i] = 0xeeeeeeee;
    for (u32 r = 0; r < ranks; r++) incoming += masks[r] >> rank & 1 ? slice : 0;
    if (t == 0) {
        barrier_init(b, 1);
        fence_init();
        expect_and_arrive(b, incoming);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    cluster_sync();
    if (t == 0)
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
            "[%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(area) + rank * slice),
            "l"((u64)&map), "r"(0), "r"((int)rank * rows), "r"(b), "h"((u16)masks[rank])
            : "memory");
    u32 done = wait_parity(b, 0);
    u32 *row = out + (size / 4 + 4) * rank;
    for (int i = t; i < size / 4; i += blockDim.x) row[i] = ((u32 *)area)[i];
    if (t < 4) row[size / 4 + t] = t == 0 ? done : 0;
    if (t == 0) row[size / 4 + 1] = balanced(b, 0);
    cluster_sync();
}

// rank 1 loads into rank 0's memory and signals rank 0's barrier: destination and barrier by shared::cluster address
extern "C" __global__ void tma_load_remote(const __grid_constant__ TensorMap map, u32 *out, int bytes, int size) {
    extern __shared__ __align__(1024) u8 area[];
    __shared__ u64 bar;
    u32 t = threadIdx.x, b = shared_address(&bar), rank = cluster_rank();
    for (int i = t; i < size / 4; i += blockDim.x) ((u32 *)area)[i] = 0xeeeeeeee;
    if (t == 0) {
        barrier_init(b, 1);
        fence_init();
        if (rank == 0) expect_and_arrive(b, bytes);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    cluster_sync();
    if (t == 0 && rank == 1) {
        Coordinates at = {{0, 0, 0, 0, 0}};
        load(2, map_to(shared_address(area), 0), &map, at, map_to(b, 0));
    }
    u32 done = rank == 0 ? wait_parity(b, 0) : 2;
    u32 *row = out + (size / 4 + 4) * rank;
    for (int i = t; i < size / 4; i += blockDim.x) row[i] = ((u32 *)area)[i];
    if (t < 4) row[size / 4 + t] = done;
    cluster_sync();
}

// nothing to see but that nothing happens: prefetch of a tensor, then of a part outside of it
extern "C" __global__ void tma_prefetch(const __grid_constant__ TensorMap map, u32 *out) {
    asm volatile("prefetch.tensormap [%0];" ::"l"((u64)&map) : "memory");
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"((u64)&map), "r"(0), "r"(0)
                 : "memory");
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"((u64)&map), "r"(-8), "r"(1000)
                 : "memory");
    out[threadIdx.x] = threadIdx.x;
}
