// Shared by every kernel of this folder: short type names, shared addresses, mbarrier helpers and the macros
// that turn one line of PTX into one row of the output.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct __align__(64) TensorMap {
    u8 bytes[128];
};

static __device__ __forceinline__ u32 shared_address(const void *p) {
    return (u32)__cvta_generic_to_shared(p);
}

// Rows of results: row k, column i is what operation k gave for input i. The runner counts and names the rows by
// reading the OP lines of the kernel in the source, so one OP line is one row.
#define OP(text)                                                                                                       \
    {                                                                                                                  \
        u32 r;                                                                                                         \
        asm volatile("{ " text "; }" : "=r"(r) : "r"(x), "r"(y), "r"(z));                                              \
        out[(k++) * n + i] = r;                                                                                        \
    }
// with a predicate p as the result
#define OP_PRED(text)                                                                                                  \
    {                                                                                                                  \
        u32 r;                                                                                                         \
        asm volatile("{ .reg .pred p, q; " text "; selp.u32 %0, 1, 0, p; }" : "=r"(r) : "r"(x), "r"(y), "r"(z));       \
        out[(k++) * n + i] = r;                                                                                        \
    }
// with 16-bit registers a, b, c (the low halves of x, y, z) and d, the result
#define OP_16(text)                                                                                                    \
    {                                                                                                                  \
        u32 r;                                                                                                         \
        asm volatile("{ .reg .b16 a, b, c, d; cvt.u16.u32 a, %1; cvt.u16.u32 b, %2; cvt.u16.u32 c, %3; " text          \
                     "; cvt.u32.u16 %0, d; }"                                                                          \
                     : "=r"(r)                                                                                         \
                     : "r"(x), "r"(y), "r"(z));                                                                        \
        out[(k++) * n + i] = r;                                                                                        \
    }
// the same with a predicate p as the result
#define OP_16_PRED(text)                                                                                               \
    {                                                                                                                  \
        u32 r;                                                                                                         \
        asm volatile(                                                                                                  \
            "{ .reg .b16 a, b, c; .reg .pred p, q; cvt.u16.u32 a, %1; cvt.u16.u32 b, %2; cvt.u16.u32 c, %3; " text     \
            "; selp.u32 %0, 1, 0, p; }"                                                                                \
            : "=r"(r)                                                                                                  \
            : "r"(x), "r"(y), "r"(z));                                                                                 \
        out[(k++) * n + i] = r;                                                                                        \
    }
// f32 in, f32 out
#define OP_F32(text)                                                                                                   \
    {                                                                                                                  \
        float r;                                                                                                       \
        asm volatile("{ " text "; }" : "=f"(r) : "f"(fx), "f"(fy), "f"(fz));                                           \
        out[(k++) * n + i] = __float_as_uint(r);                                                                       \
    }
// f32 in, a predicate p or 32 bits out
#define OP_F32_PRED(text)                                                                                              \
    {                                                                                                                  \
        u32 r;                                                                                                         \
        asm volatile("{ .reg .pred p, q; " text "; selp.u32 %0, 1, 0, p; }" : "=r"(r) : "f"(fx), "f"(fy), "f"(fz));    \
        out[(k++) * n + i] = r;                                                                                        \
    }
#define OP_F32_BITS(text)                                                                                              \
    {                                                                                                                  \
        u32 r;                                                                                                         \
        asm volatile("{ .reg .b16 h; " text "; }" : "=r"(r) : "f"(fx), "f"(fy), "f"(fz));                              \
        out[(k++) * n + i] = r;                                                                                        \
    }
// 64 bits in and out
#define OP_64(text)                                                                                                    \
    {                                                                                                                  \
        u64 r;                                                                                                         \
        asm volatile("{ .reg .pred p; .reg .b32 s, t; " text "; }" : "=l"(r) : "l"(x), "l"(y), "l"(z));                \
        out[(k++) * n + i] = r;                                                                                        \
    }
#define OP_64_PRED(text)                                                                                               \
    {                                                                                                                  \
        u64 r;                                                                                                         \
        asm volatile("{ .reg .pred p; " text "; selp.u64 %0, 1, 0, p; }" : "=l"(r) : "l"(x), "l"(y), "l"(z));          \
        out[(k++) * n + i] = r;                                                                                        \
    }
// f64 in and out
#define OP_F64(text)                                                                                                   \
    {                                                                                                                  \
        double r;                                                                                                      \
        asm volatile("{ .reg .pred p; .reg .b32 s; .reg .f32 f, g; .reg .b64 q; " text "; }"                           \
                     : "=d"(r)                                                                                         \
                     : "d"(fx), "d"(fy), "d"(fz));                                                                     \
        out[(k++) * n + i] = (u64)__double_as_longlong(r);                                                             \
    }

#define INPUTS                                                                                                         \
    int i = threadIdx.x + blockIdx.x * blockDim.x, k = 0;                                                              \
    auto x = in[i], y = in[n + i], z = in[2 * n + i];                                                                  \
    (void)x, (void)y, (void)z;

// mbarriers
static __device__ __forceinline__ void barrier_init(u32 bar, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
static __device__ __forceinline__ void fence_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
}
static __device__ __forceinline__ void expect_and_arrive(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
static __device__ __forceinline__ u32 test_parity(u32 bar, u32 parity) {
    u32 done;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done;
}
// Waits with an end, so that a phase that never completes is a result and not a hang.
static __device__ __forceinline__ u32 wait_parity(u32 bar, u32 parity) {
    for (int poll = 0; poll < 1 << 18; poll++)
        if (test_parity(bar, parity)) return 1;
    return 0;
}
// Whether the phase of `parity`, which has completed with one arrival, took exactly the bytes that it expected. Bytes
// in excess would count against the next phase: after a while, one more arrival completes that only if there are none.
static __device__ __forceinline__ u32 balanced(u32 bar, u32 parity) {
    for (int poll = 0; poll < 2000; poll++) test_parity(bar, parity);
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0]; }" ::"r"(bar) : "memory");
    return test_parity(bar, parity ^ 1);
}
static __device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
static __device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
static __device__ __forceinline__ u32 map_to(u32 address, u32 rank) {
    u32 mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}
