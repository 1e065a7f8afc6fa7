// cp.async with its zero fill, and ldmatrix (PTX ISA 9.7.9.25.3, 9.7.14.5.15). One warp.
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
