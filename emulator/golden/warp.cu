// Warp collectives and CTA barriers: shfl, vote, match, redux, activemask, elect, bar.red, special registers
// (PTX ISA 9.7.9.6, 9.7.13.1 to 9.7.13.14, 10). One warp unless a kernel says otherwise.
#include "golden.cuh"

extern "C" __global__ void shuffle_ops(const u32 *in, u32 *out, int n) {
    INPUTS
    OP(".reg .pred p; shfl.sync.up.b32 %0|p, %1, %2, 0, -1; @!p xor.b32 %0, %0, 0xffff0000")
    OP(".reg .pred p; shfl.sync.up.b32 %0|p, %1, 3, 0, -1; @!p xor.b32 %0, %0, 0xffff0000")
    OP(".reg .pred p; shfl.sync.up.b32 %0|p, %1, %2, 0x1800, -1; @!p xor.b32 %0, %0, 0xffff0000")
    OP(".reg .pred p; shfl.sync.up.b32 %0|p, %1, 2, 0x1c02, -1; @!p xor.b32 %0, %0, 0xffff0000")
    OP(".reg .pred p; shfl.sync.down.b32 %0|p, %1, %2, 0x1f, -1; @!p xor.b32 %0, %0, 0xffff0000")
    OP(".reg .pred p; shfl.sync.down.b32 %0|p, %1, 5, 0x1f, -1; @!p xor.b32 %0, %0, 0xffff0000")
    OP(".reg .pred p; shfl.sync.down.b32 %0|p, %1, %2, 0x181f, -1; @!p xor.b32 %0, %0, 0xffff0000")
    OP(".reg .pred p; shfl.sync.down.b32 %0|p, %1, 1, 0x1006, -1; @!p xor.b32 %0, %0, 0xffff0000")
    OP(".reg .pred p; shfl.sync.bfly.b32 %0|p, %1, %2, 0x1f, -1; @!p xor.b32 %0, %0, 0xffff0000")
    OP(".reg .pred p; shfl.sync.bfly.b32 %0|p, %1, 16, 0x1f, -1; @!p xor.b32 %0, %0, 0xffff0000")
    OP(".reg .pred p; shfl.sync.bfly.b32 %0|p, %1, %2, 0x1c1f, -1; @!p xor.b32 %0, %0, 0xffff0000")
    OP(".reg .pred p; shfl.sync.bfly.b32 %0|p, %1, 7, 0x140b, -1; @!p xor.b32 %0, %0, 0xffff0000")
    OP(".reg .pred p; shfl.sync.idx.b32 %0|p, %1, %2, 0x1f, -1; @!p xor.b32 %0, %0, 0xffff0000")
    OP(".reg .pred p; shfl.sync.idx.b32 %0|p, %1, %2, 0x181f, -1; @!p xor.b32 %0, %0, 0xffff0000")
    OP(".reg .pred p; shfl.sync.idx.b32 %0|p, %1, %2, 0x0c, -1; @!p xor.b32 %0, %0, 0xffff0000")
    OP(".reg .pred p; shfl.sync.idx.b32 %0|p, %1, %2, %3, -1; @!p xor.b32 %0, %0, 0xffff0000")
    OP(".reg .pred p; shfl.sync.bfly.b32 %0|p, %1, %2, %3, -1; @!p xor.b32 %0, %0, 0xffff0000")
}

// two halves of the warp shuffle apart, each with its own mask, and take different ways to it
extern "C" __global__ void shuffle_partial(const u32 *in, u32 *out) {
    u32 lane = threadIdx.x, x = in[lane], r;
    if (lane & 1)
        asm volatile("shfl.sync.bfly.b32 %0, %1, 6, 0x1f, 0xaaaaaaaa;" : "=r"(r) : "r"(x));
    else
        asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0x55555555;" : "=r"(r) : "r"(x), "r"((lane * 6) & 30));
    out[lane] = r;
    if (lane >= 20) asm volatile("shfl.sync.down.b32 %0, %1, 4, 0x1f, 0xfff00000;" : "=r"(r) : "r"(x));
    out[32 + lane] = r;
}

extern "C" __global__ void vote_ops(const u32 *in, u32 *out, int n) {
    INPUTS
    OP(".reg .pred p, q; setp.lt.s32 q, %1, 0; vote.sync.ballot.b32 %0, q, -1")
    OP(".reg .pred p, q; setp.lt.s32 q, %1, 0; vote.sync.ballot.b32 %0, !q, -1")
    OP(".reg .pred p, q; setp.lt.s32 q, %1, 0; vote.sync.any.pred p, q, -1; selp.u32 %0, 1, 0, p")
    OP(".reg .pred p, q; setp.lt.s32 q, %1, 0; vote.sync.all.pred p, q, -1; selp.u32 %0, 1, 0, p")
    OP(".reg .pred p, q; setp.lt.s32 q, %1, 0; vote.sync.uni.pred p, q, -1; selp.u32 %0, 1, 0, p")
    OP(".reg .pred p, q; setp.ne.u32 q, %1, 77; vote.sync.all.pred p, q, -1; selp.u32 %0, 1, 0, p")
    OP(".reg .pred p, q; setp.eq.u32 q, %1, 77; vote.sync.uni.pred p, q, -1; selp.u32 %0, 1, 0, p")
    OP(".reg .b32 t; and.b32 t, %2, 7; match.any.sync.b32 %0, t, -1")
    OP(".reg .b32 t; .reg .b64 q; and.b32 t, %2, 3; mov.b64 q, {5, t}; match.any.sync.b64 %0, q, -1")
    OP(".reg .pred p; .reg .b32 t; and.b32 t, %2, 0; match.all.sync.b32 %0|p, t, -1; @p xor.b32 %0, %0, 0xff")
    OP(".reg .pred p; .reg .b32 t; and.b32 t, %2, 1; match.all.sync.b32 %0|p, t, -1; @p xor.b32 %0, %0, 0xff")
    OP("activemask.b32 %0")
    OP("redux.sync.add.s32 %0, %1, -1")
    OP("redux.sync.add.u32 %0, %1, -1")
    OP("redux.sync.min.s32 %0, %1, -1")
    OP("redux.sync.min.u32 %0, %1, -1")
    OP("redux.sync.max.s32 %0, %1, -1")
    OP("redux.sync.max.u32 %0, %1, -1")
    OP("redux.sync.and.b32 %0, %1, -1")
    OP("redux.sync.or.b32 %0, %1, -1")
    OP("redux.sync.xor.b32 %0, %1, -1")
}

// collectives on both sides of a branch, each with the mask of its side
extern "C" __global__ void vote_partial(const u32 *in, u32 *out) {
    u32 lane = threadIdx.x, x = in[lane], a, b, c;
    if (lane % 3 == 0) {
        asm volatile("{ .reg .pred q; setp.lt.s32 q, %1, 0; vote.sync.ballot.b32 %0, q, 0x49249249; }"
                     : "=r"(a)
                     : "r"(x));
        asm volatile("match.any.sync.b32 %0, %1, 0x49249249;" : "=r"(b) : "r"(x & 1));
        asm volatile("redux.sync.add.s32 %0, %1, 0x49249249;" : "=r"(c) : "r"(x));
    } else {
        asm volatile("{ .reg .pred q; setp.lt.s32 q, %1, 0; vote.sync.ballot.b32 %0, q, 0xb6db6db6; }"
                     : "=r"(a)
                     : "r"(x));
        asm volatile("match.any.sync.b32 %0, %1, 0xb6db6db6;" : "=r"(b) : "r"(x & 3));
        asm volatile("redux.sync.max.u32 %0, %1, 0xb6db6db6;" : "=r"(c) : "r"(x));
    }
    out[lane] = a, out[32 + lane] = b, out[64 + lane] = c;
}

// blocks of 96 threads: the barrier's reductions, named barriers with part of the block, arrive and sync
extern "C" __global__ void cta_barrier_ops(const u32 *in, u32 *out) {
    __shared__ u32 box[96];
    u32 t = threadIdx.x, x = in[t], a, b, c, d = 0;
    asm volatile("{ .reg .pred q; setp.lt.s32 q, %1, 0; barrier.cta.red.popc.aligned.u32 %0, 0, q; }"
                 : "=r"(a)
                 : "r"(x)
                 : "memory");
    asm volatile("{ .reg .pred p, q; setp.lt.s32 q, %1, 0; bar.red.and.pred p, 1, q; selp.u32 %0, 1, 0, p; }"
                 : "=r"(b)
                 : "r"(x)
                 : "memory");
    asm volatile("{ .reg .pred p, q; setp.lt.s32 q, %1, 0; bar.red.or.pred p, 2, 96, q; selp.u32 %0, 1, 0, p; }"
                 : "=r"(c)
                 : "r"(x)
                 : "memory");
    if (t < 64) {
        box[t] = x;
        asm volatile("bar.sync 3, 64;" ::: "memory");
        d = box[63 - t];
    }
    if (t >= 64)
        asm volatile("{ .reg .pred q; setp.ne.u32 q, %1, 0; barrier.cta.red.popc.u32 %0, 5, 32, q; }"
                     : "=r"(d)
                     : "r"(x & 1)
                     : "memory");
    asm volatile("bar.sync 0;" ::: "memory");
    u32 e = 0;
    if (t < 32) {
        box[t] = ~x;
        asm volatile("bar.arrive 4, 96;" ::: "memory");
    } else {
        asm volatile("bar.sync 4, 96;" ::: "memory");
        e = box[t % 32];
    }
    out[t] = a, out[96 + t] = b, out[192 + t] = c, out[288 + t] = d, out[384 + t] = e;
}

// a grid and a block of three dimensions
extern "C" __global__ void special_registers(u32 *out) {
    u32 cta = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    u32 t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    u32 *row = out + (u64)(cta * blockDim.x * blockDim.y * blockDim.z + t) * 24;
    u32 v;
#define SPECIAL(index, name)                                                                                           \
    asm volatile("mov.u32 %0, %%" name ";" : "=r"(v));                                                                 \
    row[index] = v;
    SPECIAL(0, "tid.x")
    SPECIAL(1, "tid.y")
    SPECIAL(2, "tid.z")
    SPECIAL(3, "ntid.x")
    SPECIAL(4, "ntid.y")
    SPECIAL(5, "ntid.z")
    SPECIAL(6, "ctaid.x")
    SPECIAL(7, "ctaid.y")
    SPECIAL(8, "ctaid.z")
    SPECIAL(9, "nctaid.x")
    SPECIAL(10, "nctaid.y")
    SPECIAL(11, "nctaid.z")
    SPECIAL(12, "laneid")
    SPECIAL(13, "lanemask_eq")
    SPECIAL(14, "lanemask_le")
    SPECIAL(15, "lanemask_lt")
    SPECIAL(16, "lanemask_ge")
    SPECIAL(17, "lanemask_gt")
    SPECIAL(18, "dynamic_smem_size")
    SPECIAL(19, "total_smem_size")
    row[20] = row[21] = row[22] = row[23] = 0;
}

#if __CUDA_ARCH__ >= 900
// elect.sync: which lane of the mask leads (PTX ISA 9.7.13.17). Each row is one mask of the input; lanes outside the
// mask write all ones, lanes inside the leader's number and, in bit 31, whether they lead.
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
#endif
