// sm_80: one tile C = A B^T + bias of f16, filled by cp.async through a pipeline of stages, multiplied by mma.sync,
// written through shared memory. A has fewer rows than the tile: the rest is filled with zeros.
#include "device.cuh"

#define MUTATIONS(X)                                                                                                   \
    X(none)                                                                                                            \
    X(no_wait_group)                                                                                                   \
    X(wait_one_group_too_few)                                                                                          \
    X(no_commit_group)                                                                                                 \
    X(no_sync_behind_wait)                                                                                             \
    X(refill_before_sync)                                                                                              \
    X(no_sync_before_staging)                                                                                          \
    X(no_sync_behind_staging)                                                                                          \
    X(sync_under_divergence)                                                                                           \
    X(barrier_for_fewer_threads)                                                                                       \
    X(barrier_for_more_threads)                                                                                        \
    X(bias_one_element_off)                                                                                            \
    X(no_zero_fill)                                                                                                    \
    X(source_off_by_half_a_unit)                                                                                       \
    X(result_row_too_many)

enum class mutation { MUTATIONS(MUTATION_NAME) };

enum { THREADS = 128, ROWS = 64, COLUMNS = 32, DEPTH = 16, STAGES = 4, STEPS = 10, REAL_ROWS = 60 };
enum { A_BYTES = ROWS * DEPTH * 2, STAGE_BYTES = A_BYTES + COLUMNS * DEPTH * 2 };

static __device__ __forceinline__ void copy16(u32 to, const void *from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// Thread t copies half a row of A, and of B if t < 64.
template <mutation active> static __device__ __forceinline__ void fill(const half *a, const half *b, int step) {
    if (step >= STEPS) return;
    const u32 t = threadIdx.x, row = t / 2, unit = t % 2;
    const u32 stage = shared_address(smem) + step % STAGES * STAGE_BYTES, at = t * 16;
    const int k = step * DEPTH + unit * 8, pitch = STEPS * DEPTH;
    const int inside = row < REAL_ROWS || IS(no_zero_fill);
    copy16(stage + at, a + (inside ? row * pitch + k : 0), inside ? 16 : 0);
    if (row < COLUMNS) copy16(stage + A_BYTES + at, b + row * pitch + k + (IS(source_off_by_half_a_unit) ? 4 : 0), 16);
}

static __device__ __forceinline__ void commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

static __device__ __forceinline__ void ldmatrix(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

template <mutation active>
static __device__ __forceinline__ void run(const half *a, const half *b, const float *bias, float *c) {
    const u32 t = threadIdx.x, warp = t / 32, lane = t % 32;
    float d[4][4] = {};
    for (int step = 0; step < STAGES - 1; step++) {
        fill<active>(a, b, step);
        commit();
    }
#pragma unroll 1
    for (int step = 0; step < STEPS; step++) {
        if (IS(refill_before_sync)) fill<active>(a, b, step + STAGES - 1);
        if (IS(wait_one_group_too_few))
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
        else if (!IS(no_wait_group))
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        if (IS(sync_under_divergence)) {
            if (lane < 16) asm volatile("bar.sync 0;" ::: "memory");
        } else if (IS(barrier_for_fewer_threads))
            named_barrier(1, THREADS - 32);
        else if (IS(barrier_for_more_threads))
            named_barrier(1, THREADS + 32);
        else if (!IS(no_sync_behind_wait))
            __syncthreads();
        if (!IS(refill_before_sync)) fill<active>(a, b, step + STAGES - 1);
        if (!IS(no_commit_group)) commit();

        const u32 stage = shared_address(smem) + step % STAGES * STAGE_BYTES;
        u32 ra[4], rb[2][4];
        ldmatrix(ra, stage + (warp * 16 + lane % 16) * 32 + lane / 16 * 16);
        for (int half_of = 0; half_of < 2; half_of++)
            ldmatrix(rb[half_of], stage + A_BYTES + (half_of * 16 + lane / 16 * 8 + lane % 8) * 32 + lane / 8 % 2 * 16);
        for (int n = 0; n < 4; n++)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
                         " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                         : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
                         : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[n / 2][n % 2 * 2]),
                           "r"(rb[n / 2][n % 2 * 2 + 1]));
    }
    // The staged tile overwrites the pipeline's stages.
    if (!IS(no_sync_before_staging)) __syncthreads();
    float *staged = (float *)smem;
    for (int n = 0; n < 4; n++)
        for (int i = 0; i < 4; i++)
            staged[(warp * 16 + lane / 4 + i / 2 * 8) * COLUMNS + n * 8 + lane % 4 * 2 + i % 2] = d[n][i];
    if (!IS(no_sync_behind_staging)) __syncthreads();
    const int rows = REAL_ROWS + (IS(result_row_too_many) ? 1 : 0);
    for (int i = t; i < rows * COLUMNS; i += THREADS)
        c[i] = staged[i] + bias[i % COLUMNS + (IS(bias_one_element_off) ? 1 : 0)];
}

#define ENTRY(name)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        name(const half *a, const half *b, const float *bias, float *c) {                                              \
        run<mutation::name>(a, b, bias, c);                                                                            \
    }
MUTATIONS(ENTRY)
