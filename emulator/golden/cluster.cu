// Thread block clusters: addresses, distributed shared memory, remote barriers, st.async and red.async, bulk copies
// between CTAs (PTX ISA 9.7.9.22 to 9.7.9.24, 9.7.13.4, 9.7.13.15).
#include "golden.cuh"

// What an address looks like from each CTA. Per CTA 32 words; generic addresses as their difference from the CTA's own.
extern "C" __global__ void cluster_addresses(u32 *out) {
    extern __shared__ __align__(1024) u8 area[];
    __shared__ u32 fixed;
    if (threadIdx.x) return;
    u32 *row = out + 32 * blockIdx.x, rank = cluster_rank(), own = shared_address(area), v, ranks;
    u64 generic, own_generic = (u64)area;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(ranks));
    row[0] = rank, row[1] = own, row[2] = shared_address(&fixed);
    for (u32 r = 0; r < 4; r++) {
        u32 to = r < ranks ? r : 0;
        u32 mapped = map_to(own + 4, to);
        row[4 + r] = mapped;
        asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(v) : "r"(mapped));
        row[8 + r] = v;
        asm volatile("mapa.u64 %0, %1, %2;" : "=l"(generic) : "l"(own_generic + 4), "r"(to));
        row[12 + r] = (u32)(generic - own_generic);
        asm volatile("{ .reg .b64 a, b; cvt.u64.u32 a, %1; cvta.shared::cluster.u64 b, a; cvt.u32.u64 %0, b; }"
                     : "=r"(v)
                     : "r"(mapped));
        row[16 + r] = v - (u32)own_generic;
        asm volatile("{ .reg .pred p, q; .reg .b32 s; isspacep.shared::cta p, %1; isspacep.shared::cluster q, %1; "
                     "selp.u32 %0, 1, 0, p; selp.u32 s, 2, 0, q; or.b32 %0, %0, s; }"
                     : "=r"(v)
                     : "l"(generic));
        row[20 + r] = v;
        asm volatile("getctarank.u64 %0, %1;" : "=r"(v) : "l"(generic));
        row[24 + r] = v;
    }
    asm volatile("{ .reg .b64 a, b; cvt.u64.u32 a, %1; cvta.shared::cta.u64 b, a; cvt.u32.u64 %0, b; }"
                 : "=r"(v)
                 : "r"(own));
    row[28] = v - (u32)own_generic;
    row[29] = own & 1023;
}

// the windows' places, which differ from driver to driver; only for the record
extern "C" __global__ void address_windows(u64 *out) {
    __shared__ u32 fixed;
    u32 local[4];
    local[threadIdx.x & 3] = 1;
    u64 *row = out + 4 * blockIdx.x;
    if (threadIdx.x) return;
    row[0] = (u64)&fixed, row[1] = shared_address(&fixed), row[2] = (u64)&local[0];
    asm volatile("cvta.to.local.u64 %0, %1;" : "=l"(row[3]) : "l"((u64)&local[0]));
}

extern "C" __global__ void cluster_registers(u32 *out) {
    u32 cta = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x, v;
    if (threadIdx.x) return;
    u32 *row = out + 20 * cta;
#define SPECIAL(index, name)                                                                                           \
    asm volatile("mov.u32 %0, %%" name ";" : "=r"(v));                                                                 \
    row[index] = v;
    SPECIAL(0, "cluster_ctaid.x")
    SPECIAL(1, "cluster_ctaid.y")
    SPECIAL(2, "cluster_ctaid.z")
    SPECIAL(3, "cluster_nctaid.x")
    SPECIAL(4, "cluster_nctaid.y")
    SPECIAL(5, "cluster_nctaid.z")
    SPECIAL(6, "cluster_ctarank")
    SPECIAL(7, "cluster_nctarank")
    SPECIAL(8, "clusterid.x")
    SPECIAL(9, "clusterid.y")
    SPECIAL(10, "clusterid.z")
    SPECIAL(11, "nclusterid.x")
    SPECIAL(12, "nclusterid.y")
    SPECIAL(13, "nclusterid.z")
    SPECIAL(14, "ctaid.x")
    SPECIAL(15, "ctaid.y")
    SPECIAL(16, "ctaid.z")
    asm volatile("{ .reg .pred p; mov.pred p, %%is_explicit_cluster; selp.u32 %0, 1, 0, p; }" : "=r"(v));
    row[17] = v;
    row[18] = row[19] = 0;
}

// loads, stores and atomics on the shared memory of the next CTA, by shared::cluster and by generic addresses
extern "C" __global__ void cluster_memory(const u32 *in, u32 *out) {
    __shared__ u32 box[4][64];
    __shared__ u64 wide[64];
    u32 t = threadIdx.x, rank = cluster_rank(), ranks, x = in[64 * rank + t], v, w;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(ranks));
    u32 next = (rank + 1) % ranks;
    box[0][t] = x, box[1][t] = 0, box[2][t] = 100 + rank, box[3][t] = 0, wide[t] = 0;
    cluster_sync();
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(map_to(shared_address(&box[0][63 - t]), next)));
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(map_to(shared_address(&box[1][t]), next)), "r"(x ^ 0xff)
                 : "memory");
    asm volatile("atom.shared::cluster.add.u32 %0, [%1], %2;"
                 : "=r"(w)
                 : "r"(map_to(shared_address(&box[2][t]), next)), "r"(x & 0xff)
                 : "memory");
    for (u32 r = 0; r < ranks; r++)
        asm volatile("red.shared::cluster.add.u32 [%0], %1;" ::"r"(map_to(shared_address(&box[3][0]), r)),
                     "r"(x & 0xfff)
                     : "memory");
    u64 generic;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(generic) : "l"((u64)&wide[t]), "r"(next));
    *(volatile u64 *)generic = (u64)x * 0x100000001ull + rank;
    cluster_sync();
    u32 *row = out + 64 * 7 * rank;
    row[t] = v, row[64 + t] = box[1][t], row[128 + t] = w, row[192 + t] = box[2][t], row[256 + t] = box[3][t];
    row[320 + t] = (u32)wide[t], row[384 + t] = (u32)(wide[t] >> 32);
    cluster_sync();
}

// every CTA stores into its neighbour with st.async and the neighbour waits for the bytes
extern "C" __global__ void cluster_st_async(const u32 *in, u32 *out) {
    __shared__ __align__(16) u32 box[512];
    __shared__ u64 bar;
    u32 t = threadIdx.x, rank = cluster_rank(), ranks;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(ranks));
    u32 next = (rank + 1) % ranks, b = shared_address(&bar);
    const u32 *x = in + 128 * rank + 4 * t;
    for (u32 i = t; i < 512; i += 32) box[i] = 0xeeeeeeee;
    if (t == 0) {
        barrier_init(b, 1);
        fence_init();
        expect_and_arrive(b, 32 * (4 + 8 + 8 + 16));
    }
    cluster_sync();
    u32 to = map_to(shared_address(box), next), signal = map_to(b, next);
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to + 4 * t),
                 "r"(x[0]), "r"(signal)
                 : "memory");
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(to + 256 + 8 * t),
                 "l"((u64)x[1] << 32 | x[0]), "r"(signal)
                 : "memory");
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to + 512 + 8 * t),
        "r"(x[2]), "r"(x[3]), "r"(signal)
        : "memory");
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                     to + 1024 + 16 * t),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(signal)
                 : "memory");
    u32 done = wait_parity(b, 0);
    u32 *row = out + 528 * rank;
    for (u32 i = t; i < 512; i += 32) row[i] = box[i];
    if (t < 16) row[512 + t] = t == 0 ? done : t == 1 ? balanced(b, 0) : 0;
    cluster_sync();
}

// red.async of 32 threads on cells of the neighbour; order does not matter
extern "C" __global__ void cluster_red_async(const u32 *in, u32 *out) {
    __shared__ u32 cell[10];
    __shared__ u64 wide, bar;
    u32 t = threadIdx.x, rank = cluster_rank(), ranks;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(ranks));
    u32 next = (rank + 1) % ranks, b = shared_address(&bar), x = in[32 * rank + t];
    if (t < 10) cell[t] = t == 6 ? 0xffffffff : t == 2 ? 0x7fffffff : t == 4 ? 0xffffffff : t;
    if (t == 0) {
        wide = 1;
        barrier_init(b, 1);
        fence_init();
        expect_and_arrive(b, 32 * (9 * 4 + 8));
    }
    cluster_sync();
    u32 to = map_to(shared_address(cell), next), signal = map_to(b, next);
#define REDUCE(index, text, value)                                                                                     \
    asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes." text                        \
                 " [%0], %1, [%2];" ::"r"(to + 4 * index),                                                             \
                 "r"(value), "r"(signal)                                                                               \
                 : "memory");
    REDUCE(0, "add.u32", x)
    REDUCE(1, "add.s32", x)
    REDUCE(2, "min.s32", x)
    REDUCE(3, "max.s32", x)
    REDUCE(4, "min.u32", x)
    REDUCE(5, "max.u32", x)
    REDUCE(6, "and.b32", x | 0x0f0f0f0f)
    REDUCE(7, "or.b32", x & 0x11111111)
    REDUCE(8, "xor.b32", x)
    asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u64 [%0], %1, [%2];" ::"r"(
                     map_to(shared_address(&wide), next)),
                 "l"((u64)x << 16), "r"(signal)
                 : "memory");
    u32 done = wait_parity(b, 0);
    __syncthreads();
    u32 *row = out + 16 * rank;
    if (t < 10) row[t] = cell[t];
    if (t == 10)
        row[10] = (u32)wide, row[11] = (u32)(wide >> 32), row[12] = done + 2 * balanced(b, 0),
        row[13] = row[14] = row[15] = 0;
    cluster_sync();
}

// remote arrivals with counts and expectations: rank 0 owns a barrier on which everybody arrives
extern "C" __global__ void cluster_remote_arrive(u32 *out) {
    __shared__ u64 bar;
    u32 t = threadIdx.x, rank = cluster_rank(), b = shared_address(&bar), ranks;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(ranks));
    if (t == 0 && rank == 0) {
        barrier_init(b, 32 * ranks + 3);
        fence_init();
    }
    cluster_sync();
    u32 remote = map_to(b, 0);
    if (t == 5 && rank == 1) {
        asm volatile("mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%0], 64;" ::"r"(remote) : "memory");
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0], 3;" ::"r"(remote) : "memory");
    }
    if (t == 7 && rank == 1)
        asm volatile("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%0], 32;" ::"r"(remote)
                     : "memory");
    else
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
    cluster_sync();
    if (t == 0 && rank == 0) {
        out[0] = test_parity(b, 0);
        asm volatile("mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%0], 96;" ::"r"(remote) : "memory");
        out[1] = wait_parity(b, 0);
        out[2] = test_parity(b, 1);
    }
    cluster_sync();
    // arrive_drop takes one CTA out of the next phase
    if (rank == 1)
        asm volatile("mbarrier.arrive_drop.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
    if (rank != 1)
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
    if (t == 0 && rank == 0)
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0], 3;" ::"r"(remote) : "memory");
    cluster_sync();
    if (t == 0 && rank == 0) out[3] = wait_parity(b, 1), out[4] = test_parity(b, 0);
    if (rank != 1)
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
    cluster_sync();
    if (t == 0 && rank == 0) out[5] = test_parity(b, 0);
    if (t == 0 && rank == 0)
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0], 3;" ::"r"(remote) : "memory");
    if (t == 0 && rank == 0) out[6] = wait_parity(b, 0), out[7] = test_parity(b, 1);
    cluster_sync();
}

// cp.async.bulk from this CTA's shared memory to the neighbour's
extern "C" __global__ void cluster_bulk_copy(const u32 *in, u32 *out) {
    __shared__ __align__(128) u32 source[256];
    __shared__ __align__(128) u32 target[256];
    __shared__ u64 bar;
    u32 t = threadIdx.x, rank = cluster_rank(), ranks, b = shared_address(&bar);
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(ranks));
    u32 next = (rank + 1) % ranks;
    for (u32 i = t; i < 256; i += 32) source[i] = in[256 * rank + i], target[i] = 0xeeeeeeee;
    if (t == 0) {
        barrier_init(b, 1);
        fence_init();
        expect_and_arrive(b, 512 + 48);
    }
    asm volatile("fence.proxy.async;" ::: "memory");
    cluster_sync();
    if (t == 0) {
        asm volatile(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 512, [%2];" ::"r"(
                map_to(shared_address(target) + 64, next)),
            "r"(shared_address(source)), "r"(map_to(b, next))
            : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 48, [%2];" ::"r"(
                map_to(shared_address(target) + 640, next)),
            "r"(shared_address(source) + 16), "r"(map_to(b, next))
            : "memory");
    }
    u32 done = wait_parity(b, 0);
    u32 *row = out + 264 * rank;
    for (u32 i = t; i < 256; i += 32) row[i] = target[i];
    if (t < 8) row[256 + t] = t == 0 ? done : t == 1 ? balanced(b, 0) : 0;
    cluster_sync();
}

// cp.async.bulk from global memory to every CTA of a mask
extern "C" __global__ void cluster_bulk_multicast(const u32 *in, u32 *out, int mask) {
    __shared__ __align__(128) u32 target[256];
    __shared__ u64 bar;
    u32 t = threadIdx.x, rank = cluster_rank(), b = shared_address(&bar);
    for (u32 i = t; i < 256; i += 32) target[i] = 0xeeeeeeee;
    if (t == 0) {
        barrier_init(b, 1);
        fence_init();
        expect_and_arrive(b, mask >> rank & 1 ? 256 : 0);
    }
    asm volatile("fence.proxy.async;" ::: "memory");
    cluster_sync();
    if (t == 0 && rank == 1)
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 256, "
            "[%2], %3;" ::"r"(shared_address(target) + 128),
            "l"(in), "r"(b), "h"((u16)mask)
            : "memory");
    u32 done = wait_parity(b, 0);
    u32 *row = out + 264 * rank;
    for (u32 i = t; i < 256; i += 32) row[i] = target[i];
    if (t < 8) row[256 + t] = t == 0 ? done : t == 1 ? balanced(b, 0) : 0;
    cluster_sync();
}
