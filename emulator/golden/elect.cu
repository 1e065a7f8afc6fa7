// elect.sync: which lane of the mask leads (PTX ISA 9.7.13.17). Each row is one mask of the input; lanes outside the
// mask write all ones, lanes inside the leader's number and, in bit 31, whether they lead.
#include "golden.cuh"

extern "C" __global__ void elect_masks(const u32 *masks, u32 *out, int count) {
    u32 lane = threadIdx.x;
    for (int i = 0; i < count; i++) {
        u32 mask = masks[i], r = 0xffffffff;
        if (mask >> lane & 1)
            asm volatile("{ .reg .pred p; elect.sync %0|p, %1; @p or.b32 %0, %0, 0x80000000; }" : "=r"(r) : "r"(mask));
        __syncwarp();
        out[32 * i + lane] = r;
    }
}

// the mask as an immediate, after part of the warp has left
extern "C" __global__ void elect_after_exit(u32 *out) {
    u32 lane = threadIdx.x, r;
    if (lane < 7) return;
    asm volatile("{ .reg .pred p; elect.sync %0|p, 0xffffff80; @p or.b32 %0, %0, 0x80000000; }" : "=r"(r));
    out[lane] = r;
}
