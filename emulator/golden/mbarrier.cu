// mbarrier within one CTA: counts, phases, states, transactions, drops (PTX ISA 9.7.13.15). One thread unless said
// otherwise; each line of results is one predicate or count.
#include "golden.cuh"

static __device__ __forceinline__ u64 arrive(u32 bar) {
    u64 state;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(bar) : "memory");
    return state;
}
static __device__ __forceinline__ u64 arrive_count(u32 bar, u32 count) {
    u64 state;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], %2;" : "=l"(state) : "r"(bar), "r"(count) : "memory");
    return state;
}
static __device__ __forceinline__ u64 arrive_no_complete(u32 bar, u32 count) {
    u64 state;
    asm volatile("mbarrier.arrive.noComplete.shared::cta.b64 %0, [%1], %2;"
                 : "=l"(state)
                 : "r"(bar), "r"(count)
                 : "memory");
    return state;
}
static __device__ __forceinline__ u64 arrive_drop(u32 bar, u32 count) {
    u64 state;
    asm volatile("mbarrier.arrive_drop.shared::cta.b64 %0, [%1], %2;" : "=l"(state) : "r"(bar), "r"(count) : "memory");
    return state;
}
static __device__ __forceinline__ u64 arrive_expect(u32 bar, u32 bytes) {
    u64 state;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 %0, [%1], %2;"
                 : "=l"(state)
                 : "r"(bar), "r"(bytes)
                 : "memory");
    return state;
}
static __device__ __forceinline__ void expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void complete(u32 bar, u32 bytes) {
    asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
static __device__ __forceinline__ u32 test_state(u32 bar, u64 state) {
    u32 done;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(bar), "l"(state)
                 : "memory");
    return done;
}
static __device__ __forceinline__ u32 pending(u64 state) {
    u32 count;
    asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(count) : "l"(state));
    return count;
}
static __device__ __forceinline__ u32 both(u32 bar) {
    return test_parity(bar, 0) | test_parity(bar, 1) << 1;
}

extern "C" __global__ void mbarrier_phases(u32 *out) {
    __shared__ u64 bar;
    u32 b = shared_address(&bar), k = 0;
    if (threadIdx.x) return;
    barrier_init(b, 3);
    out[k++] = both(b);
    u64 s0 = arrive(b);
    out[k++] = pending(s0), out[k++] = test_state(b, s0), out[k++] = both(b);
    u64 s1 = arrive(b);
    out[k++] = pending(s1), out[k++] = test_state(b, s0), out[k++] = test_state(b, s1);
    u64 s2 = arrive(b);
    out[k++] = pending(s2), out[k++] = test_state(b, s0), out[k++] = test_state(b, s2), out[k++] = both(b);
    u64 s3 = arrive_count(b, 2);
    out[k++] = pending(s3), out[k++] = test_state(b, s3), out[k++] = both(b);
    u64 s4 = arrive(b);
    out[k++] = pending(s4), out[k++] = test_state(b, s3), out[k++] = test_state(b, s4), out[k++] = both(b);
    u64 s5 = arrive_no_complete(b, 2);
    out[k++] = pending(s5), out[k++] = test_state(b, s5), out[k++] = both(b);
    u64 s6 = arrive_drop(b, 1);
    out[k++] = pending(s6), out[k++] = test_state(b, s5), out[k++] = both(b);
    u64 s7 = arrive(b);
    out[k++] = pending(s7), out[k++] = test_state(b, s7), out[k++] = both(b);
    u64 s8 = arrive(b);
    out[k++] = pending(s8), out[k++] = test_state(b, s8), out[k++] = both(b);
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(b) : "memory");
    barrier_init(b, 1);
    out[k++] = both(b);
}

extern "C" __global__ void mbarrier_transactions(u32 *out) {
    __shared__ u64 bar;
    u32 b = shared_address(&bar), k = 0;
    if (threadIdx.x) return;
    barrier_init(b, 1);
    u64 s0 = arrive_expect(b, 100);
    out[k++] = pending(s0), out[k++] = test_state(b, s0), out[k++] = both(b);
    complete(b, 60);
    out[k++] = test_state(b, s0), out[k++] = both(b);
    complete(b, 40);
    out[k++] = test_state(b, s0), out[k++] = both(b);
    // data before it is expected
    complete(b, 4096);
    out[k++] = both(b);
    u64 s1 = arrive_expect(b, 4096);
    out[k++] = test_state(b, s1), out[k++] = both(b);
    // expected in parts, arrival last
    expect(b, 16);
    expect(b, 32);
    complete(b, 48);
    out[k++] = both(b);
    u64 s2 = arrive(b);
    out[k++] = test_state(b, s2), out[k++] = both(b);
    // arrival with nothing to expect
    u64 s3 = arrive_expect(b, 0);
    out[k++] = test_state(b, s3), out[k++] = both(b);
    // the largest transaction count
    expect(b, 0xfffff);
    u64 s4 = arrive(b);
    out[k++] = test_state(b, s4);
    complete(b, 0xffffe);
    out[k++] = test_state(b, s4);
    complete(b, 1);
    out[k++] = test_state(b, s4), out[k++] = both(b);
}

// 128 threads meet eight times; what each wrote before a phase all read after it
extern "C" __global__ void mbarrier_block(const u32 *in, u32 *out) {
    __shared__ u64 bar;
    __shared__ u32 box[2][128];
    u32 t = threadIdx.x, b = shared_address(&bar), x = in[t];
    if (t == 0) barrier_init(b, 128);
    __syncthreads();
    for (u32 round = 0; round < 8; round++) {
        box[round & 1][t] = x;
        if (round & 1) {
            u64 state = arrive(b);
            for (int poll = 0; poll < 1 << 18 && !test_state(b, state); poll++) {
            }
        } else {
            arrive(b);
            u32 done = 0;
            for (int poll = 0; poll < 1 << 18 && !done; poll++)
                asm volatile(
                    "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2, 0x989680; "
                    "selp.u32 %0, 1, 0, p; }"
                    : "=r"(done)
                    : "r"(b), "r"(round & 1)
                    : "memory");
        }
        x = x * 3 + box[round & 1][(t * 37 + 5) & 127];
    }
    out[t] = x;
}

// `bar` is an address that the assembler cannot know: it takes readings of a barrier that it knows for one reading
static __device__ __forceinline__ u64 look(u32 bar) {
    u64 word;
    __threadfence_block();
    asm volatile("ld.volatile.shared.b64 %0, [%1];" : "=l"(word) : "r"(bar) : "memory");
    __threadfence_block();
    return word;
}

// the eight bytes of a barrier as they lie in memory; only for the record
extern "C" __global__ void mbarrier_dump(u64 *out, int zero) {
    __shared__ u64 bar;
    u32 b = shared_address(&bar), k = 0;
    if (threadIdx.x) return;
    const u32 counts[4] = {1, 2, 0xfffff, 5};
    for (int i = 0; i < 4; i++) {
        if (i) asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(b) : "memory");
        barrier_init(b, counts[i]);
        out[k++] = look(b + zero);
    }
    out[k++] = arrive(b);
    out[k++] = look(b + zero);
    expect(b, 1);
    out[k++] = look(b + zero);
    expect(b, 0xff);
    out[k++] = look(b + zero);
    out[k++] = arrive_count(b, 4);
    out[k++] = look(b + zero);
    complete(b, 0x100);
    out[k++] = look(b + zero);
    out[k++] = arrive_drop(b, 1);
    out[k++] = look(b + zero);
    out[k++] = arrive_count(b, 4);
    out[k++] = look(b + zero);
}
