// A tensor copy and a wgmma that agree on a swizzle: TMA loads A and B to any 128-byte boundary, which the
// descriptors name: bases that are not aligned to the swizzle's pattern.
#include "wgmma.cuh"

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
