// Copies without a tensor map (PTX ISA 9.7.9.25, 9.7.14.5): cp.async with its zero fill, and ldmatrix, by one warp. With
// sm_90 stmatrix, and bulk copies: global to shared, shared to global, shared to shared of another CTA, with reduction.
#include "golden.cuh"

// Lane i copies at most 16 bytes to row i of a table of 16-byte rows that holds 0xee; sizes[i] is the source size.
extern "C" __global__ void cp_async_sizes(const u8 *in, const u32 *sizes, uint4 *out) {
    __shared__ uint4 table[5][32];
    u32 lane = threadIdx.x, size = sizes[lane];
    for (int k = 0; k < 5; k++) table[k][lane] = make_uint4(0xeeeeeeee, 0xeeeeeeee, 0xeeeeeeee, 0xeeeeeeee);
    const u8 *source = in + 16 * lane;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(&table[0][lane]) + 4 * (lane % 4)),
                 "l"(source + 4), "r"(size < 4 ? size : 4));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(&table[1][lane])), "l"(source + 8),
                 "r"(size < 8 ? size : 8));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(&table[2][lane])), "l"(source),
                 "r"(size));
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(&table[3][lane])),
                 "l"(source));
    asm volatile("{ .reg .pred p; setp.lt.u32 p, %2, 5; cp.async.cg.shared.global [%0], [%1], 16, p; }" ::"r"(
                     shared_address(&table[4][lane])),
                 "l"(source), "r"(size));
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    uint4 first = table[2][lane];
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
    for (int k = 0; k < 5; k++) out[32 * k + lane] = table[k][lane];
    out[160 + lane] = first;
}

// 512 bytes of shared memory; lane i gives row `rows[i]` of 32 rows of 16 bytes as its address
extern "C" __global__ void ldmatrix_forms(const uint4 *in, const u32 *rows, u32 *out) {
    __shared__ uint4 table[32];
    u32 lane = threadIdx.x, r[4];
    table[lane] = in[lane];
    __syncwarp();
    u32 address = shared_address(&table[rows[lane] % 32]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(address) : "memory");
    out[lane] = r[0];
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(address) : "memory");
    out[32 + lane] = r[0];
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(address)
                 : "memory");
    out[64 + lane] = r[0], out[96 + lane] = r[1];
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(address)
                 : "memory");
    out[128 + lane] = r[0], out[160 + lane] = r[1];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
    for (int j = 0; j < 4; j++) out[192 + 32 * j + lane] = r[j];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
    for (int j = 0; j < 4; j++) out[320 + 32 * j + lane] = r[j];
}

#if __CUDA_ARCH__ >= 900
extern "C" __global__ void stmatrix_forms(const u32 *in, const u32 *rows, uint4 *out) {
    __shared__ uint4 table[32];
    u32 lane = threadIdx.x, r[4];
    for (int j = 0; j < 4; j++) r[j] = in[32 * j + lane];
    u32 address = shared_address(&table[rows[lane] % 32]);
#define FORM(index, text, ...)                                                                                         \
    table[lane] = make_uint4(0xeeeeeeee, 0xeeeeeeee, 0xeeeeeeee, 0xeeeeeeee);                                          \
    __syncwarp();                                                                                                      \
    asm volatile("stmatrix.sync.aligned.m8n8." text ";" ::"r"(address), __VA_ARGS__ : "memory");                       \
    __syncwarp();                                                                                                      \
    out[32 * index + lane] = table[lane];                                                                              \
    __syncwarp();
    FORM(0, "x1.shared.b16 [%0], {%1}", "r"(r[0]))
    FORM(1, "x1.trans.shared.b16 [%0], {%1}", "r"(r[0]))
    FORM(2, "x2.shared.b16 [%0], {%1, %2}", "r"(r[0]), "r"(r[1]))
    FORM(3, "x2.trans.shared.b16 [%0], {%1, %2}", "r"(r[0]), "r"(r[1]))
    FORM(4, "x4.shared.b16 [%0], {%1, %2, %3, %4}", "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]))
    FORM(5, "x4.trans.shared.b16 [%0], {%1, %2, %3, %4}", "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]))
}

// one thread copies `bytes` in two pieces, then all threads look; the last word tells whether the phase completed
extern "C" __global__ void bulk_load(const u8 *in, u32 *out, int bytes, int first) {
    extern __shared__ __align__(1024) u8 area[];
    __shared__ u64 bar;
    u32 t = threadIdx.x;
    for (int i = t; i < 4096 / 4; i += blockDim.x) ((u32 *)area)[i] = 0xeeeeeeee;
    if (t == 0) {
        barrier_init(shared_address(&bar), 1);
        fence_init();
    }
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    if (t == 0) {
        expect_and_arrive(shared_address(&bar), bytes);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(area) + 16),
                     "l"(in + 32), "r"(first), "r"(shared_address(&bar))
                     : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(area) + 16 + first),
                     "l"(in), "r"(bytes - first), "r"(shared_address(&bar))
                     : "memory");
    }
    u32 done = wait_parity(shared_address(&bar), 0);
    for (int i = t; i < 4096 / 4; i += blockDim.x) out[i] = ((u32 *)area)[i];
    if (t == 0) out[1024] = done, out[1025] = balanced(shared_address(&bar), 0);
}

extern "C" __global__ void bulk_store(const u32 *in, u8 *out, int bytes) {
    extern __shared__ __align__(1024) u8 area[];
    u32 t = threadIdx.x;
    for (int i = t; i < bytes / 4; i += blockDim.x) ((u32 *)area)[i] = in[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (t == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out + 48),
                     "r"(shared_address(area)), "r"(bytes)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;");
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out + 2048),
                     "r"(shared_address(area) + 64), "r"(16)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;");
        asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(in), "r"(64));
    }
}

// `out` holds the other operand already; each kind works on its own 512 bytes
extern "C" __global__ void bulk_reduce(const u32 *in, u8 *out) {
    extern __shared__ __align__(1024) u8 area[];
    u32 t = threadIdx.x;
    for (int i = t; i < 16 * 512 / 4; i += blockDim.x) ((u32 *)area)[i] = in[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
#define REDUCE(index, text)                                                                                            \
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group." text                                            \
                 " [%0], [%1], 512;" ::"l"(out + 512 * index),                                                         \
                 "r"(shared_address(area) + 512 * index)                                                               \
                 : "memory");
    if (t == 0) {
        REDUCE(0, "add.u32")
        REDUCE(1, "add.s32")
        REDUCE(2, "add.u64")
        REDUCE(3, "min.s32")
        REDUCE(4, "max.u32")
        REDUCE(5, "min.u64")
        REDUCE(6, "max.s64")
        REDUCE(7, "and.b32")
        REDUCE(8, "or.b64")
        REDUCE(9, "xor.b32")
        REDUCE(10, "inc.u32")
        REDUCE(11, "dec.u32")
        REDUCE(12, "add.f32")
        REDUCE(13, "add.noftz.f16")
        REDUCE(14, "add.noftz.bf16")
        REDUCE(15, "max.f16")
        asm volatile("cp.async.bulk.commit_group;");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

// cp.async whose completion an mbarrier counts: noinc takes one of the expected arrivals, the plain form adds one first
extern "C" __global__ void cp_async_mbarrier(const u32 *in, u32 *out) {
    __shared__ __align__(16) u32 table[64];
    __shared__ u64 bars[2];
    u32 t = threadIdx.x;
    if (t == 0) {
        barrier_init(shared_address(&bars[0]), 32);
        barrier_init(shared_address(&bars[1]), 32);
    }
    __syncthreads();
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(table + t)), "l"(in + t) : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(&bars[0])) : "memory");
    u32 first = wait_parity(shared_address(&bars[0]), 0);
    u32 a = table[(t + 1) % 32];
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(table + 32 + t)), "l"(in + 32 + t)
                 : "memory");
    asm volatile("cp.async.mbarrier.arrive.shared.b64 [%0];" ::"r"(shared_address(&bars[1])) : "memory");
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0]; }" ::"r"(shared_address(&bars[1]))
                 : "memory");
    u32 second = wait_parity(shared_address(&bars[1]), 0);
    out[t] = a, out[32 + t] = table[32 + (t + 1) % 32], out[64 + t] = first, out[96 + t] = second;
}
#endif
