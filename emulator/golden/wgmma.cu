// One wgmma chain, for every type, shape and source of A (PTX ISA 9.7.15). A warpgroup puts `words` 16-byte words of
// the input in shared memory, starts from sums that depend on thread and register, and runs `steps` instructions whose
// descriptors advance by step_a and step_b (in units of 16 bytes). The descriptors come from the host without their
// start address; the kernel adds that of its shared memory. What memory means to the descriptors is thus all in the
// case. With A from registers, four words of every thread and step follow the image in the input.
#include "golden.cuh"

// The register lists that wgmma's accumulators need in inline PTX: LIST_n names operands 0 to n - 1, REGS_n binds them.
#define LIST_2  "%0, %1"
#define LIST_4  "%0, %1, %2, %3"
#define LIST_8  "%0, %1, %2, %3, %4, %5, %6, %7"
#define LIST_12 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11"
#define LIST_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define LIST_32                                                                                                        \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "                  \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LIST_64                                                                                                        \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "                  \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "                  \
    "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "                  \
    "%59, %60, %61, %62, %63"
#define LIST_128                                                                                                       \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "                  \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "                  \
    "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "                  \
    "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, "                  \
    "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, "                  \
    "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, "                    \
    "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define REGS_2(c)        c(d[0]), c(d[1])
#define REGS_4_AT(c, i)  c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define REGS_16_AT(c, i) REGS_4_AT(c, i), REGS_4_AT(c, i + 4), REGS_4_AT(c, i + 8), REGS_4_AT(c, i + 12)
#define REGS_4(c)        REGS_4_AT(c, 0)
#define REGS_8(c)        REGS_4_AT(c, 0), REGS_4_AT(c, 4)
#define REGS_12(c)       REGS_8(c), REGS_4_AT(c, 8)
#define REGS_16(c)       REGS_16_AT(c, 0)
#define REGS_32(c)       REGS_16_AT(c, 0), REGS_16_AT(c, 16)
#define REGS_64(c)       REGS_32(c), REGS_16_AT(c, 32), REGS_16_AT(c, 48)
#define REGS_128(c)      REGS_64(c), REGS_16_AT(c, 64), REGS_16_AT(c, 80), REGS_16_AT(c, 96), REGS_16_AT(c, 112)

#define STRING_(x) #x
#define STRING(x)  STRING_(x)
#define BIND(x)    "+r"(x)

// the first sums: small integers in the type of D
static __device__ __forceinline__ u32 start_f32(u32 t, int j) {
    return __float_as_uint((float)((int)((t * 3 + j) % 11) - 5));
}
static __device__ __forceinline__ u32 start_s32(u32 t, int j) {
    return (t * 3 + j) % 11 - 5;
}
static __device__ __forceinline__ u32 start_f16(u32 t, int j) {
    const u32 halves[4] = {0x0000, 0x3c00, 0xc000, 0x4200}; // 0, 1, -2, 3
    return halves[(t + j) & 3] << 16 | halves[(t * 3 + j) >> 2 & 3];
}

#define WGMMA_BEGIN                                                                                                    \
    extern __shared__ __align__(1024) u8 area[];                                                                       \
    u32 t = threadIdx.x;                                                                                               \
    for (int i = t; i < words; i += blockDim.x) ((uint4 *)area)[i] = in[i];                                            \
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");                                                       \
    __syncthreads();                                                                                                   \
    u64 base = (shared_address(area) & 0x3ffff) >> 4;

// Fence, instruction, commit and wait stand in one piece of text, so that nothing touches the registers in between.
#define WGMMA_TEXT(instruction)                                                                                        \
    "wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned." instruction                                              \
    "; wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; }"

// A and B from shared memory. regs: 32-bit registers of D; i0, i1, i2: the numbers of the three operands after them
#define WGMMA_SS(name, regs, i0, i1, i2, start, text, tail)                                                                \
    extern "C" __global__ void __launch_bounds__(128)                                                                      \
        name(const uint4 *in, u32 *out, int words, u64 desc_a, u64 desc_b, int step_a, int step_b, int steps,              \
             int scale_d) {                                                                                                \
        WGMMA_BEGIN                                                                                                        \
        u32 d[regs];                                                                                                       \
        for (int j = 0; j < regs; j++) d[j] = start(t, j);                                                                 \
        desc_a += base, desc_b += base;                                                                                    \
        _Pragma("unroll 1") for (int k = 0; k < steps; k++, desc_a += step_a, desc_b += step_b, scale_d = 1) asm volatile( \
            "{ .reg .pred p; setp.ne.b32 p, %" STRING(i2) ", 0; " WGMMA_TEXT(text " {" LIST_##regs "}, %" STRING(          \
                i0) ", %" STRING(i1) ", p" tail) : REGS_##regs(BIND) : "l"(desc_a),                                        \
            "l"(desc_b), "r"(scale_d) : "memory");                                                                         \
        for (int j = 0; j < regs; j++) out[t * regs + j] = d[j];                                                           \
    }

// A from registers
#define WGMMA_RS(name, regs, i0, i1, i2, i3, i4, i5, start, text, tail)                                                \
    extern "C" __global__ void __launch_bounds__(128)                                                                  \
        name(const uint4 *in, u32 *out, int words, u64 desc_b, int step_b, int steps, int scale_d) {                   \
        WGMMA_BEGIN                                                                                                    \
        u32 d[regs];                                                                                                   \
        for (int j = 0; j < regs; j++) d[j] = start(t, j);                                                             \
        desc_b += base;                                                                                                \
        _Pragma("unroll 1") for (int k = 0; k < steps; k++, desc_b += step_b, scale_d = 1) {                           \
            uint4 a = in[words + 128 * k + t];                                                                         \
            asm volatile(                                                                                              \
                "{ .reg .pred p; setp.ne.b32 p, %" STRING(i5) ", 0; " WGMMA_TEXT(text " {" LIST_##regs "}, {%" STRING( \
                    i0) ", %" STRING(i1) ", %" STRING(i2) ", %" STRING(i3) "}, %" STRING(i4) ", p" tail)               \
                : REGS_##regs(BIND)                                                                                    \
                : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(desc_b), "r"(scale_d)                                    \
                : "memory");                                                                                           \
        }                                                                                                              \
        for (int j = 0; j < regs; j++) out[t * regs + j] = d[j];                                                       \
    }

// wgmma of f16 and bf16 with f32 and f16 sums, A and B K-major or MN-major. The name says: type of A and B, n, type of
// D, ss or rs, then the major of A and of B (k or m), then what is special.
WGMMA_SS(wgmma_f16_n8_f32_ss_kk, 4, 4, 5, 6, start_f32, "m64n8k16.f32.f16.f16", ", 1, 1, 0, 0")
WGMMA_SS(wgmma_f16_n16_f32_ss_kk, 8, 8, 9, 10, start_f32, "m64n16k16.f32.f16.f16", ", 1, 1, 0, 0")
WGMMA_SS(wgmma_f16_n24_f32_ss_kk, 12, 12, 13, 14, start_f32, "m64n24k16.f32.f16.f16", ", 1, 1, 0, 0")
WGMMA_SS(wgmma_f16_n64_f32_ss_kk, 32, 32, 33, 34, start_f32, "m64n64k16.f32.f16.f16", ", 1, 1, 0, 0")
WGMMA_SS(wgmma_f16_n128_f32_ss_kk, 64, 64, 65, 66, start_f32, "m64n128k16.f32.f16.f16", ", 1, 1, 0, 0")
WGMMA_SS(wgmma_f16_n256_f32_ss_kk, 128, 128, 129, 130, start_f32, "m64n256k16.f32.f16.f16", ", 1, 1, 0, 0")
WGMMA_SS(wgmma_f16_n64_f32_ss_mk, 32, 32, 33, 34, start_f32, "m64n64k16.f32.f16.f16", ", 1, 1, 1, 0")
WGMMA_SS(wgmma_f16_n64_f32_ss_km, 32, 32, 33, 34, start_f32, "m64n64k16.f32.f16.f16", ", 1, 1, 0, 1")
WGMMA_SS(wgmma_f16_n128_f32_ss_km, 64, 64, 65, 66, start_f32, "m64n128k16.f32.f16.f16", ", 1, 1, 0, 1")
WGMMA_SS(wgmma_f16_n64_f32_ss_mm, 32, 32, 33, 34, start_f32, "m64n64k16.f32.f16.f16", ", 1, 1, 1, 1")
WGMMA_SS(wgmma_f16_n16_f32_ss_mm, 8, 8, 9, 10, start_f32, "m64n16k16.f32.f16.f16", ", 1, 1, 1, 1")
WGMMA_SS(wgmma_f16_n16_f32_ss_kk_negate_a, 8, 8, 9, 10, start_f32, "m64n16k16.f32.f16.f16", ", -1, 1, 0, 0")
WGMMA_SS(wgmma_f16_n16_f32_ss_kk_negate_b, 8, 8, 9, 10, start_f32, "m64n16k16.f32.f16.f16", ", 1, -1, 0, 0")
WGMMA_SS(wgmma_f16_n16_f32_ss_kk_negate_both, 8, 8, 9, 10, start_f32, "m64n16k16.f32.f16.f16", ", -1, -1, 0, 0")
WGMMA_SS(wgmma_f16_n8_f16_ss_kk, 2, 2, 3, 4, start_f16, "m64n8k16.f16.f16.f16", ", 1, 1, 0, 0")
WGMMA_SS(wgmma_f16_n64_f16_ss_kk, 16, 16, 17, 18, start_f16, "m64n64k16.f16.f16.f16", ", 1, 1, 0, 0")
WGMMA_SS(wgmma_f16_n64_f16_ss_mm, 16, 16, 17, 18, start_f16, "m64n64k16.f16.f16.f16", ", 1, 1, 1, 1")
WGMMA_SS(wgmma_bf16_n16_f32_ss_kk, 8, 8, 9, 10, start_f32, "m64n16k16.f32.bf16.bf16", ", 1, 1, 0, 0")
WGMMA_SS(wgmma_bf16_n64_f32_ss_kk, 32, 32, 33, 34, start_f32, "m64n64k16.f32.bf16.bf16", ", 1, 1, 0, 0")
WGMMA_SS(wgmma_bf16_n64_f32_ss_mm, 32, 32, 33, 34, start_f32, "m64n64k16.f32.bf16.bf16", ", 1, 1, 1, 1")
WGMMA_RS(wgmma_f16_n8_f32_rs_k, 4, 4, 5, 6, 7, 8, 9, start_f32, "m64n8k16.f32.f16.f16", ", 1, 1, 0")
WGMMA_RS(wgmma_f16_n64_f32_rs_k, 32, 32, 33, 34, 35, 36, 37, start_f32, "m64n64k16.f32.f16.f16", ", 1, 1, 0")
WGMMA_RS(wgmma_f16_n64_f32_rs_m, 32, 32, 33, 34, 35, 36, 37, start_f32, "m64n64k16.f32.f16.f16", ", 1, 1, 1")
WGMMA_RS(wgmma_f16_n16_f32_rs_k_negate_a, 8, 8, 9, 10, 11, 12, 13, start_f32, "m64n16k16.f32.f16.f16", ", -1, 1, 0")
WGMMA_RS(wgmma_f16_n64_f16_rs_k, 16, 16, 17, 18, 19, 20, 21, start_f16, "m64n64k16.f16.f16.f16", ", 1, 1, 0")
WGMMA_RS(wgmma_bf16_n64_f32_rs_k, 32, 32, 33, 34, 35, 36, 37, start_f32, "m64n64k16.f32.bf16.bf16", ", 1, 1, 0")

// tf32 and the eight-bit floats, K-major only
WGMMA_SS(wgmma_tf32_n8_f32_ss, 4, 4, 5, 6, start_f32, "m64n8k8.f32.tf32.tf32", ", 1, 1")
WGMMA_SS(wgmma_tf32_n64_f32_ss, 32, 32, 33, 34, start_f32, "m64n64k8.f32.tf32.tf32", ", 1, 1")
WGMMA_RS(wgmma_tf32_n16_f32_rs, 8, 8, 9, 10, 11, 12, 13, start_f32, "m64n16k8.f32.tf32.tf32", ", 1, 1")
WGMMA_SS(wgmma_e4m3_n8_f32_ss, 4, 4, 5, 6, start_f32, "m64n8k32.f32.e4m3.e4m3", ", 1, 1")
WGMMA_SS(wgmma_e4m3_n64_f32_ss, 32, 32, 33, 34, start_f32, "m64n64k32.f32.e4m3.e4m3", ", 1, 1")
WGMMA_SS(wgmma_e4m3_n64_f16_ss, 16, 16, 17, 18, start_f16, "m64n64k32.f16.e4m3.e4m3", ", 1, 1")
WGMMA_SS(wgmma_e5m2_n64_f32_ss, 32, 32, 33, 34, start_f32, "m64n64k32.f32.e5m2.e5m2", ", 1, 1")
WGMMA_SS(wgmma_e4m3_e5m2_n16_f32_ss, 8, 8, 9, 10, start_f32, "m64n16k32.f32.e4m3.e5m2", ", 1, -1")
WGMMA_SS(wgmma_e5m2_e4m3_n16_f16_ss, 4, 4, 5, 6, start_f16, "m64n16k32.f16.e5m2.e4m3", ", 1, 1")
WGMMA_RS(wgmma_e4m3_n64_f32_rs, 32, 32, 33, 34, 35, 36, 37, start_f32, "m64n64k32.f32.e4m3.e4m3", ", 1, 1")
WGMMA_RS(wgmma_e5m2_n16_f32_rs, 8, 8, 9, 10, 11, 12, 13, start_f32, "m64n16k32.f32.e5m2.e5m2", ", -1, 1")

// eight-bit integers, K-major only
WGMMA_SS(wgmma_s8_n16_ss, 8, 8, 9, 10, start_s32, "m64n16k32.s32.s8.s8", "")
WGMMA_SS(wgmma_u8_s8_n64_ss, 32, 32, 33, 34, start_s32, "m64n64k32.s32.u8.s8", "")
WGMMA_SS(wgmma_s8_n8_ss_satfinite, 4, 4, 5, 6, start_s32, "m64n8k32.s32.s8.s8.satfinite", "")
WGMMA_RS(wgmma_u8_n16_rs, 8, 8, 9, 10, 11, 12, 13, start_s32, "m64n16k32.s32.u8.u8", "")

// A tensor copy and a wgmma that agree on a swizzle: TMA loads A and B to any 128-byte boundary, which the
// descriptors name: bases that are not aligned to the swizzle's pattern.
extern "C" __global__ void __launch_bounds__(128)
    tma_then_wgmma(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, u32 *out, int at_a,
                   int at_b, u64 desc_a, u64 desc_b, int steps) {
    extern __shared__ __align__(1024) u8 area[];
    __shared__ u64 bar;
    u32 t = threadIdx.x, b = shared_address(&bar);
    for (int i = t; i < 24576 / 4; i += blockDim.x) ((u32 *)area)[i] = 0;
    if (t == 0) {
        barrier_init(b, 1);
        fence_init();
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (t == 0) {
        expect_and_arrive(b, 64 * 128 + 16 * 128);
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
                "r"(shared_address(area) + at_a),
            "l"((u64)&map_a), "r"(0), "r"(0), "r"(b)
            : "memory");
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
                "r"(shared_address(area) + at_b),
            "l"((u64)&map_b), "r"(0), "r"(0), "r"(b)
            : "memory");
    }
    if (!wait_parity(b, 0)) return;
    u32 d[8];
    for (int j = 0; j < 8; j++) d[j] = 0;
    u64 base = (shared_address(area) & 0x3ffff) >> 4;
    desc_a += base + (at_a >> 4), desc_b += base + (at_b >> 4);
    __syncthreads();
    _Pragma("unroll 1") for (int k = 0; k < steps; k++, desc_a += 2, desc_b += 2) asm volatile(
        "{ " WGMMA_TEXT("m64n16k16.f32.f16.f16 {" LIST_8 "}, %8, %9, 1, 1, 1, 0, 0") : REGS_8(BIND) : "l"(desc_a),
        "l"(desc_b) : "memory");
    for (int j = 0; j < 8; j++) out[t * 8 + j] = d[j];
}
