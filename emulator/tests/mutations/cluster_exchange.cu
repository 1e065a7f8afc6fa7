// sm_90a: four CTAs. Each sends its quarter of a vector to all by a multicast copy, computes a share of everybody's
// sums and sends it by st.async; the receiver adds the shares and a neighbour's sum, which it reads in the neighbour's
// shared memory. Several rounds; a neighbour says by a remote arrival that it has taken the sum.
#include "device.cuh"

#define MUTATIONS(X)                                                                                                   \
    X(none)                                                                                                            \
    X(no_cluster_sync_at_start)                                                                                        \
    X(cluster_arrive_without_wait_at_start)                                                                            \
    X(exit_before_neighbour_has_read)                                                                                  \
    X(mask_without_last_cta)                                                                                           \
    X(mask_with_absent_cta)                                                                                            \
    X(expects_own_quarter_only)                                                                                        \
    X(expects_shares_of_itself)                                                                                        \
    X(shares_without_mapa)                                                                                             \
    X(share_signals_other_cta)                                                                                         \
    X(no_wait_for_quarters)                                                                                            \
    X(no_wait_for_shares)                                                                                              \
    X(shares_parity_stuck)                                                                                             \
    X(no_cluster_sync_before_reading)                                                                                  \
    X(sum_overwritten_early)                                                                                           \
    X(taken_parity_flipped)                                                                                            \
    X(taken_count_of_one_warp)                                                                                         \
    X(taken_at_own_barrier)                                                                                            \
    X(cluster_arrival_of_one_warp_less)                                                                                \
    X(quarter_size_no_multiple_of_16)                                                                                  \
    X(quarter_off_by_one_element)                                                                                      \
    X(neighbour_beyond_cluster)

enum class mutation { MUTATIONS(MUTATION_NAME) };

enum { CTAS = 4, THREADS = 64, QUARTER = 64, LENGTH = CTAS * QUARTER, TAPS = 4, ROUNDS = 3 };
enum { AT_INBOX = LENGTH * 4, AT_SUM = AT_INBOX + CTAS * THREADS * 4, AT_BARRIERS = AT_SUM + THREADS * 4 };

static __device__ __forceinline__ void multicast(u32 to, const void *from, u32 bytes, u32 bar, u16 mask) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar), "h"(mask)
                 : "memory");
}
static __device__ __forceinline__ void store_async(u32 to, int value, u32 bar) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(value),
                 "r"(bar)
                 : "memory");
}
static __device__ __forceinline__ int load_cluster(u32 from) {
    int value;
    asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
    return value;
}

template <mutation active> static __device__ __forceinline__ void run(const int *x, const int *weights, int *y) {
    const u32 t = threadIdx.x, rank = cluster_rank(), base = shared_address(smem);
    const u32 quarters = base + AT_BARRIERS, shares = quarters + 8, taken = quarters + 16;
    const int *const vector = (const int *)smem, *const inbox = (const int *)(smem + AT_INBOX);
    int *const sum = (int *)(smem + AT_SUM);
    if (t == 0) {
        barrier_init(quarters, 1);
        barrier_init(shares, 1);
        barrier_init(taken, IS(taken_count_of_one_warp) ? 32 : THREADS);
        fence_barrier_init();
    }
    if (!IS(no_cluster_sync_at_start)) cluster_arrive();
    if (IS(cluster_arrive_without_wait_at_start)) __syncthreads();
    if (!IS(no_cluster_sync_at_start) && !IS(cluster_arrive_without_wait_at_start)) cluster_wait();
#pragma unroll 1
    for (int round = 0; round < ROUNDS; round++) {
        const u32 parity = round & 1;
        if (t == 0) {
            const u32 bytes = QUARTER * 4 - (IS(quarter_size_no_multiple_of_16) ? 8 : 0);
            const u16 mask = IS(mask_without_last_cta) ? 7 : IS(mask_with_absent_cta) ? 31 : 15;
            arrive_expect(quarters, IS(expects_own_quarter_only) ? QUARTER * 4 : LENGTH * 4);
            arrive_expect(shares, (IS(expects_shares_of_itself) ? CTAS : CTAS - 1) * THREADS * 4);
            multicast(base + rank * QUARTER * 4,
                      x + round * LENGTH + rank * QUARTER + (IS(quarter_off_by_one_element) ? 1 : 0), bytes, quarters,
                      mask);
        }
        if (!IS(no_wait_for_quarters)) wait_cluster(quarters, parity);
        for (int d = 0; d < CTAS; d++) {
            int share = 0;
            for (int i = 0; i < TAPS; i++)
                share += weights[(rank * CTAS + d) * TAPS + i] * vector[(rank * QUARTER + t * 3 + i) % LENGTH];
            if (d == rank) {
                if (round && !IS(sum_overwritten_early)) wait_cluster(taken, parity ^ 1 ^ IS(taken_parity_flipped));
                sum[t] = share;
                continue;
            }
            const u32 to = base + AT_INBOX + (rank * THREADS + t) * 4;
            store_async(IS(shares_without_mapa) ? to : map_to(to, d), share,
                        IS(shares_without_mapa) ? shares : map_to(shares, IS(share_signals_other_cta) ? rank : d));
        }
        if (!IS(no_wait_for_shares)) wait_cluster(shares, IS(shares_parity_stuck) ? 0 : parity);
        int mine = sum[t];
        for (int r = 0; r < CTAS; r++)
            if (r != rank) mine += inbox[r * THREADS + t];
        sum[t] = mine;
        if (!IS(no_cluster_sync_before_reading)) {
            if (!IS(cluster_arrival_of_one_warp_less) || t < 32) cluster_arrive();
            cluster_wait();
        }
        const u32 neighbour = IS(neighbour_beyond_cluster) ? rank + 1 : (rank + 1) % CTAS;
        const int theirs = load_cluster(map_to(base + AT_SUM + t * 4, neighbour));
        y[(round * CTAS + rank) * THREADS + t] = mine + 3 * theirs;
        if (IS(taken_at_own_barrier))
            arrive(taken);
        else
            arrive_remote(map_to(taken, neighbour));
    }
    if (!IS(exit_before_neighbour_has_read)) wait_cluster(taken, (ROUNDS - 1) & 1);
}

#define ENTRY(name)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const int *x, const int *weights, int *y) {             \
        run<mutation::name>(x, weights, y);                                                                            \
    }
MUTATIONS(ENTRY)
