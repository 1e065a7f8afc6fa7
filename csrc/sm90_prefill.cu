/* C = epilogue(A . B^T) on the tensor cores of Hopper, for products so large that decoding an operand again for every
 * tile costs more than a pass over memory: sm90_dequant.cu has made fp16 of y, and of x unless X_RAW; wgmma multiplies
 * 64 x 256 x 16.
 *
 * A CTA computes 128 rows of x by 256 of y. The two CTAs of a cluster take neighbouring 128 rows of x and the same y,
 * of which each loads half and sends it to both. What is left when no further round would occupy all clusters, is
 * computed by a cluster a tile, half of K each; then either CTA keeps 128 of the 256 columns and sends the other its
 * part of the rest. sm90_prefill_configs.h has the arithmetic of that.
 *
 *   warp 0      load   one thread   empty[slot] of both CTAs' math warps -> boxes by tensor map      -> full[slot]
 *   warps 4-11  math   full[slot]  -> (X_RAW: decode into registers) four steps of wgmma -> empty[slot] of both CTAs
 *                      at the end of a tile: sums to global memory, while the next tile's stages arrive
 *
 * A slot is released when the products of the next stage have been issued: the tensor core never waits for that. With
 * X_RAW the next stage is decoded, into the other one of two sets of registers, while the tensor core works; lane t of
 * a quad decodes the values of one scale, as sm90_dequant.cu's header says.
 *
 * Shared memory of a CTA: stages of [y 32768 | x 16384, or raw values 4096 and scales 512], a turning place a math
 * warp, barriers (SM90_PREFILL_SHARED_BYTES). Rows past the end of a tensor reach only results that are not stored. */
#include "device/cluster.cuh"
#include "device/decode.cuh"
#include "device/epilogue.cuh"
#include "device/mbarrier.cuh"
#include "device/tma.cuh"
#include "device/wgmma_dense.cuh"
#include "sm90_prefill_configs.h"

enum {
    MATH_WARPS = 8,
    FIRST_MATH_WARP = 4,
    BAND = 8,       /* pairs along x that are walked together */
    BOX_ROWS = 128, /* of the tensor maps */
    SUMS = 128,     /* a thread's */
    SCALES = 512,   /* bytes of 128 rows by 64 along K */
};
/* L2 cache policy of createpolicy.fractional for the fraction 1 (PTX ISA 9.0, section 9.7.9.20): no preference. */
static constexpr uint64_t EVICT_NORMAL = 0x1000000000000000;

template <int X_RAW_, int STAGES_> struct config {
    static constexpr bool X_RAW = X_RAW_;
    static constexpr int STAGES = STAGES_, STAGE_BYTES = SM90_PREFILL_STAGE_BYTES(X_RAW);
    static constexpr int HALF_Y = SM90_PREFILL_Y_BYTES / 2, X_AT = SM90_PREFILL_Y_BYTES;
    static constexpr int X_BYTES = SM90_PREFILL_X_BYTES(X_RAW), SCALES_AT = X_AT + X_BYTES;
    /* Behind the stages. */
    static constexpr int TURN_AT = STAGES * STAGE_BYTES,
                         FULL_AT = TURN_AT + MATH_WARPS * SM90_PREFILL_EPILOGUE_STAGING_BYTES;
    static constexpr int EMPTY_AT = FULL_AT + 8 * STAGES, END = EMPTY_AT + 8 * STAGES;
    /* A thread's registers: what the launch allots, 168, is shared out anew. */
    static constexpr int LOAD_REGISTERS = 40, MATH_REGISTERS = 232;

    static_assert(STAGE_BYTES % 1024 == 0 && X_AT % 1024 == 0, "the swizzle's pattern begins on 1024 bytes");
    static_assert(END == SM90_PREFILL_SHARED_BYTES(X_RAW, STAGES) && END <= 227 * 1024, "what Hopper gives a CTA");
    static_assert(SUMS / 2 * MATH_WARPS * 32 * 4 <= TURN_AT, "half a tile's sums fit the stages");
};

/* Shared addresses. */
template <class C> struct layout {
    uint32_t base;

    __device__ __forceinline__ uint32_t stage(uint32_t slot) const { return base + slot * C::STAGE_BYTES; }
    __device__ __forceinline__ uint32_t full(uint32_t slot) const { return base + C::FULL_AT + 8 * slot; }
    __device__ __forceinline__ uint32_t empty(uint32_t slot) const { return base + C::EMPTY_AT + 8 * slot; }
};

/* The tiles of this CTA, one after the other. Both CTAs of a cluster go through as many steps, so that the slots of one
 * are the slots of the other. */
struct tile_walk {
    const sm90_prefill_schedule &s;
    uint32_t rank, next, clusters;
    bool halved;              /* this tile is this cluster's alone, half of K a CTA */
    int32_t x, y, l;          /* where the tile begins; its batch */
    int32_t k, k_last, steps; /* stages along K; with `halved` the last step may lie at k_last, and is empty */

    __device__ __forceinline__ tile_walk(const sm90_prefill_schedule &s)
        : s(s), rank(cluster_ctarank()), next(blockIdx.x / 2), clusters(gridDim.x / 2) {}

    /* Goes to the next tile; false: there is none. */
    __device__ __forceinline__ bool advance() {
        uint32_t cluster = blockIdx.x / 2, half = rank;
        k = 0, k_last = steps = s.k_stages;
        halved = next >= (uint32_t)s.whole;
        if (halved) {
            if (next >= (uint32_t)s.whole + clusters || cluster >= (uint32_t)s.halved) return false;
            half = cluster % 2;
            steps = (s.k_stages + 1) / 2;
            if (rank == 0)
                k_last = steps;
            else
                k = steps;
            locate(s.whole + cluster / 2, half);
            next = s.whole + clusters;
        } else {
            locate(next, half);
            next += clusters;
        }
        return true;
    }

  private:
    /* Pairs in bands of BAND along x, in each x fastest: what runs at a time shares rows of x and of y, in L2. */
    __device__ __forceinline__ void locate(uint32_t pair, uint32_t half) {
        uint32_t pairs_x = (s.tiles_x + 1) / 2, batch = pairs_x * s.tiles_y, in_batch = pair % batch;
        uint32_t band = in_batch / (BAND * s.tiles_y), in_band = in_batch - band * BAND * s.tiles_y;
        uint32_t width = min((uint32_t)BAND, pairs_x - band * BAND);
        l = (int32_t)(pair / batch);
        y = (int32_t)(in_band / width) * SM90_PREFILL_TILE_Y;
        x = (int32_t)((band * BAND + in_band % width) * 2 + half) * SM90_PREFILL_TILE_X;
    }
};

/* The box at (x, y, z), to the same place in both CTAs of the cluster, each of whose barriers counts its own bytes. */
__device__ __forceinline__ void copy_box_to_both(uint32_t to, const tensor_map *map, int32_t x, int32_t y, int32_t z,
                                                 uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"((uint16_t)3), "l"(EVICT_NORMAL)
                 : "memory");
}

/* One thread: fills the slots. */
template <class C> __device__ __forceinline__ void load(const sm90_prefill_schedule &s, layout<C> at, tile_walk walk) {
    pipeline_state<C::STAGES> ring;
    while (walk.advance()) {
        int32_t xl = s.x.batches == 1 ? 0 : walk.l, yl = s.y.batches == 1 ? 0 : walk.l, k = walk.k;
        const uint8_t *scales = s.x.scale + walk.l * s.x.scale_batch + walk.x / SM90_PREFILL_TILE_X * s.x.scale_pitch;
        bool have_scales = C::X_RAW && walk.x < s.x.rows;
        uint32_t bytes = SM90_PREFILL_Y_BYTES + C::X_BYTES + (have_scales ? SCALES : 0);
#pragma unroll 1
        for (int32_t step = 0; step < walk.steps; step++, k++, ring.advance()) {
            uint32_t stage = at.stage(ring.index), full = at.full(ring.index);
            mbarrier_wait(at.empty(ring.index), ring.phase ^ 1);
            if (k == walk.k_last) { /* of a halved tile, an odd stage less */
                mbarrier_arrive(full);
                continue;
            }
            mbarrier_arrive_expect_tx(full, bytes);
            if (walk.halved) {
                tma_load_3d<1>(stage, &s.y.values, k * 64, walk.y, yl, full, EVICT_NORMAL);
                tma_load_3d<1>(stage + C::HALF_Y, &s.y.values, k * 64, walk.y + BOX_ROWS, yl, full, EVICT_NORMAL);
            } else {
                copy_box_to_both(stage + walk.rank * C::HALF_Y, &s.y.values, k * 64, walk.y + walk.rank * BOX_ROWS, yl,
                                 full);
            }
            tma_load_3d<1>(stage + C::X_AT, &s.x.values, k * (C::X_RAW ? 32 : 64), walk.x, xl, full, EVICT_NORMAL);
            if (have_scales)
                cp_async_bulk(stage + C::SCALES_AT, scales + (int64_t)k * SCALES, SCALES, full, EVICT_NORMAL);
        }
    }
    /* The last releases, the other CTA's too, arrive in this CTA's memory: it must be there. */
    for (int i = 0; i < C::STAGES; i++, ring.advance()) mbarrier_wait(at.empty(ring.index), ring.phase ^ 1);
}

/* A math warp is done with a slot of which both CTAs fill a half. Every lane has read x for itself; what the other CTA
 * writes only wgmma has read, whose end the warp has waited for. */
__device__ __forceinline__ void release(uint32_t empty, uint32_t other_rank) {
    mbarrier_arrive(empty);
    if (threadIdx.x % 32 == 0) mbarrier_arrive_relaxed(mapa(empty, other_rank));
}

/* Raw x of one stage into a thread's fragments of its four steps. */
template <class C> __device__ __forceinline__ void decode_x(uint32_t stage, uint32_t (&a)[4][4]) {
    int lane = threadIdx.x % 32, row = (threadIdx.x / 32 - FIRST_MATH_WARP) * 16 + lane / 4, t = lane % 4;
    uint32_t values = stage + C::X_AT + row * 32 + t * 8, scales = stage + C::SCALES_AT + row % 32 * 16 + row / 32 * 4;
    uint2 words[2];
    uint32_t four[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        words[h] = ld_shared_v2(values + h * 8 * 32);
        four[h] = ld_shared(scales + h * 8 * 16);
    }
    uint32_t scale_pair = decode_scales(four[0] >> t * 8 & 0xFF, four[1] >> t * 8 & 0xFF);
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int w = 0; w < 2; w++) {
            uint32_t pairs[4], word = w ? words[h].y : words[h].x;
            if (h == 0)
                decode_word<0>(word, scale_pair, pairs);
            else
                decode_word<1>(word, scale_pair, pairs);
#pragma unroll
            for (int i = 0; i < 4; i++) a[2 * w + i / 2][i % 2 * 2 + h] = pairs[i];
        }
}

/* The products of one tile. */
template <class C> struct multiplier {
    layout<C> at;
    pipeline_state<C::STAGES> ring;
    uint32_t previous; /* its slot */

    __device__ __forceinline__ multiplier(layout<C> at) : at(at) {}

    __device__ __forceinline__ void step(bool first, uint32_t other, uint32_t (&a)[4][4], float (&d)[SUMS]) {
        uint32_t stage = at.stage(ring.index);
        mbarrier_wait(at.full(ring.index), ring.phase);
        if constexpr (C::X_RAW) decode_x<C>(stage, a);
        uint64_t y = wgmma_smem_descriptor(stage);
        uint64_t x = wgmma_smem_descriptor(stage + C::X_AT + threadIdx.x / 128 * 8192 - 8192);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            if constexpr (C::X_RAW)
                wgmma_n256(d, a[i], y + 2 * i);
            else
                wgmma_n256(d, x + 2 * i, y + 2 * i);
        wgmma_commit_group();
        wgmma_wait_group<1>();
        if (!first) release(at.empty(previous), other);
        previous = ring.index;
        ring.advance();
    }

    __device__ __forceinline__ void run(const tile_walk &walk, float (&d)[SUMS]) {
        uint32_t a[2][4][4], other = walk.rank ^ 1;
        int32_t k = walk.k;
#pragma unroll
        for (int i = 0; i < SUMS; i++) d[i] = 0.0f;
#pragma unroll 1
        while (k < walk.k_last) {
            step(k == walk.k, other, a[0], d);
            if (++k == walk.k_last) break;
            step(false, other, a[1], d);
            k++;
        }
        wgmma_wait_group<0>();
#pragma unroll
        for (int i = 0; i < SUMS; i++) pin_float(d[i]);
        if (walk.k < walk.k_last) release(at.empty(previous), other);
        if (walk.steps > walk.k_last - walk.k) { /* the empty stage of a halved tile */
            mbarrier_wait(at.full(ring.index), ring.phase);
            release(at.empty(ring.index), other);
            ring.advance();
        }
    }
};

__device__ __forceinline__ void send_floats(uint32_t to, const float *v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]),
                 "f"(v[3])
                 : "memory");
}

/* A halved tile: the CTA of rank 0 keeps columns 0 to 127 of y, the other one the rest; each sends what it does not
 * keep into the other one's stages, and adds what it gets. */
template <int KEPT> __device__ __forceinline__ void exchange(uint32_t stages, uint32_t other, float (&d)[SUMS]) {
    uint32_t mine = (threadIdx.x - FIRST_MATH_WARP * 32) * 16;
    uint32_t to = mapa(stages, other) + mine;
    barrier_cluster_arrive(), barrier_cluster_wait(); /* all products have ended, and all copies */
#pragma unroll
    for (int i = 0; i < SUMS / 2; i += 4) send_floats(to + i * MATH_WARPS * 32 * 4, d + (SUMS / 2 - KEPT) + i);
    barrier_cluster_arrive(), barrier_cluster_wait();
#pragma unroll
    for (int i = 0; i < SUMS / 2; i += 4) {
        float part[4];
        ld_shared_v4_f32(stages + mine + i * MATH_WARPS * 32 * 4, part);
#pragma unroll
        for (int j = 0; j < 4; j++) d[KEPT + i + j] += part[j];
    }
}

/* 32 columns of y of a warp's 16 rows of x, from the order of wgmma's registers into that of the output, 4 neighbours
 * along an output row to a thread, through the warp's own place in shared memory: 16 x 40 floats or, where x counts
 * columns of the output, 32 x 20. */
struct turning_place {
    float *place;
    bool swap_ab;
    int row, column, rows, pitch; /* this lane's first row and column of it; rows that 32 lanes reach */

    __device__ __forceinline__ turning_place(float *place, bool swap_ab) : place(place), swap_ab(swap_ab) {
        int lane = threadIdx.x % 32;
        row = swap_ab ? lane / 4 : lane / 8, column = (swap_ab ? lane % 4 : lane % 8) * 4;
        rows = swap_ab ? 8 : 4, pitch = swap_ab ? 20 : 40;
    }

    __device__ __forceinline__ void put(const float *v) const {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 16; i += 2) {
            int x = lane / 4 + i / 2 % 2 * 8, y = i / 4 * 8 + lane % 4 * 2;
            float2 pair = make_float2(v[i] * DECODED_PRODUCT_UNIT, v[i + 1] * DECODED_PRODUCT_UNIT);
            if (swap_ab)
                place[y * 20 + x] = pair.x, place[(y + 1) * 20 + x] = pair.y;
            else
                *(float2 *)(place + x * 40 + y) = pair;
        }
    }

    /* What this lane stores in pass 0 to 3, to row + pass * rows. */
    __device__ __forceinline__ float4 get(int pass) const {
        return *(const float4 *)(place + (row + pass * rows) * pitch + column);
    }
};

/* Whether the output is one alpha times the sums, in 16 bits, and 8 neighbours are one store. */
__device__ __forceinline__ bool is_plain(const gemm_problem &p) {
    uint64_t places = (uint64_t)p.out | (uint64_t)p.out_pitch | (uint64_t)p.out_batch;
    return !p.c && !p.bias && p.out_type != OUT_FP32 && (!p.alpha || p.alpha_stride == 0) &&
           (places % 16 | p.n % 8) == 0;
}

/* Stores four matrices of 8 x 8 numbers of 16 bits, of which a lane holds row lane / 4, columns 2 (lane % 4) and the
 * next: 16 bytes a row, or with TURNED a column, to the address that lane 8i + r has for row r of matrix i (PTX
 * ISA 9.0, section 9.7.14.5.16 stmatrix). */
template <bool TURNED> __device__ __forceinline__ void store_matrices(uint32_t to, const uint32_t (&v)[4]) {
    if (TURNED)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]),
                     "r"(v[1]), "r"(v[2]), "r"(v[3])
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]),
                     "r"(v[2]), "r"(v[3])
                     : "memory");
}

/* A plain output, so that 8 lanes store a line of 128 bytes: 64 columns of y at a time, of a warp's 16 rows of x to its
 * own place, or, where x counts columns of the output, of the warpgroup's 64 rows to the places of its four warps. A
 * row of 128 bytes there is in pieces of 16, piece i at i ^ row % 8. */
template <bool SWAP_AB>
__device__ __forceinline__ void store_plain(const gemm_problem &p, int32_t l, int32_t x, int32_t y, int from, int to,
                                            uint32_t place, const float (&d)[SUMS]) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, matrix = lane / 8;
    float alpha = p.alpha ? *p.alpha : p.alpha_value;
    bool fp16 = p.out_type == OUT_FP16;
    /* Of the first two groups of 8 columns; the next two: 16 rows, or two pieces on. */
    int row = SWAP_AB ? matrix / 2 * 8 + lane % 8 : matrix % 2 * 8 + lane % 8;
    int piece = SWAP_AB ? warp * 2 + matrix % 2 : matrix / 2;
    int64_t m = SWAP_AB ? y + warp * 4 + lane / 8 : x + lane / 8, n = (SWAP_AB ? x : y) + lane % 8 * 8;
    char *out = (char *)p.out + l * p.out_batch + m * p.out_pitch + n * 2;
    uint32_t mine = place + (SWAP_AB ? warp * 4 + lane / 8 : lane / 8) * 128;
#pragma unroll
    for (int chunk = 0; chunk < SM90_PREFILL_TILE_Y; chunk += 64) {
        if (chunk < from || chunk >= to) continue;
        if (SWAP_AB)
            asm volatile("bar.sync %0, 128;" ::"r"(1 + (int)threadIdx.x / 128) : "memory");
        else
            __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t packed[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float *v = d + chunk / 2 + i * 8 + j * 2;
                float first = alpha * (v[0] * DECODED_PRODUCT_UNIT), second = alpha * (v[1] * DECODED_PRODUCT_UNIT);
                __half2 halves = __floats2half2_rn(first, second);
                __nv_bfloat162 brains = __floats2bfloat162_rn(first, second);
                packed[j] = fp16 ? *(uint32_t *)&halves : *(uint32_t *)&brains;
            }
            int at_row = row + (SWAP_AB ? i * 16 : 0), at_piece = piece + (SWAP_AB ? 0 : i * 2);
            store_matrices<SWAP_AB>(place + at_row * 128 + (at_piece ^ at_row % 8) * 16, packed);
        }
        if (SWAP_AB)
            asm volatile("bar.sync %0, 128;" ::"r"(1 + (int)threadIdx.x / 128) : "memory");
        else
            __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            constexpr int STEP = SWAP_AB ? 16 : 4; /* rows */
            int64_t column = SWAP_AB ? 0 : chunk, to_row = i * STEP + (SWAP_AB ? chunk : 0);
            int at_row = i * STEP + (SWAP_AB ? warp * 4 + lane / 8 : lane / 8);
            uint4 v = ld_shared_v4(mine + i * STEP * 128 + (lane % 8 ^ at_row % 8) * 16);
            if (m + to_row < p.m && n + column < p.n) *(uint4 *)(out + to_row * p.out_pitch + column * 2) = v;
        }
    }
}

/* Stores a warp's sums, of a halved tile those that this CTA keeps. */
__device__ __forceinline__ void finish(const gemm_problem &p, const sm90_prefill_schedule &s, const tile_walk &walk,
                                       float *place, const float (&d)[SUMS]) {
    int from = walk.halved && walk.rank == 1 ? 128 : 0, to = walk.halved && walk.rank == 0 ? 128 : SM90_PREFILL_TILE_Y;
    int warp = threadIdx.x / 32 - FIRST_MATH_WARP;
    int32_t x = walk.x + warp * 16;
    if (is_plain(p)) {
        uint32_t at = shared_address(place);
        if (s.swap_ab)
            store_plain<true>(p, walk.l, walk.x + warp / 4 * 64, walk.y, from, to,
                              at - warp % 4 * SM90_PREFILL_EPILOGUE_STAGING_BYTES, d);
        else
            store_plain<false>(p, walk.l, x, walk.y, from, to, at, d);
        return;
    }
    turning_place turn(place, s.swap_ab);
#pragma unroll
    for (int chunk = 0; chunk < SM90_PREFILL_TILE_Y; chunk += 32) {
        if (chunk < from || chunk >= to) continue;
        turn.put(d + chunk / 2);
        __syncwarp();
        int64_t y = walk.y + chunk, m = (s.swap_ab ? y : x) + turn.row, n = (s.swap_ab ? x : y) + turn.column;
        if (n < p.n) {
            column_epilogue epilogue(p, n);
#pragma unroll 1
            for (int pass = 0; pass < 4; pass++) {
                float4 v = turn.get(pass);
                if (m + pass * turn.rows < p.m) epilogue.store(p, walk.l, m + pass * turn.rows, {v.x, v.y, v.z, v.w});
            }
        }
        __syncwarp();
    }
}

/* All threads: barriers and tensor maps. Reads no tensor. */
template <class C> __device__ __forceinline__ void prepare(const sm90_prefill_schedule &s, layout<C> at) {
    if (threadIdx.x / 32 == 0 && elect_one()) {
        prefetch_tensormap(&s.x.values);
        prefetch_tensormap(&s.y.values);
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(at.full(i), 1);
            mbarrier_init(at.empty(i), (32 + 1) * MATH_WARPS); /* lanes here, warps there */
        }
        fence_mbarrier_init();
    }
    __syncwarp();
    barrier_cluster_arrive_relaxed(), barrier_cluster_wait(); /* all may use them from here on */
}

template <class C> __device__ __forceinline__ void gemm(const gemm_problem &p, const sm90_prefill_schedule &s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    layout<C> at{shared_address(shared)};
    if (at.base % 1024) __trap(); /* the swizzle is taken of absolute addresses */
    int warp = threadIdx.x / 32;
    prepare(s, at);
    griddepcontrol_wait();
    /* Not before the wait, or the grid after next would come to wait as well. */
    griddepcontrol_launch_dependents();

    tile_walk walk(s);
    if (warp < FIRST_MATH_WARP) {
        setmaxnreg_dec<C::LOAD_REGISTERS>();
        if (warp == 0 && elect_one()) load(s, at, walk);
        __syncwarp();
        if (blockIdx.x / 2 < s.halved) { /* with the math warps: see exchange */
            barrier_cluster_arrive_relaxed(), barrier_cluster_wait();
            barrier_cluster_arrive_relaxed(), barrier_cluster_wait();
        }
    } else {
        setmaxnreg_inc<C::MATH_REGISTERS>();
        multiplier<C> multiply(at);
        float *turn =
            (float *)(shared + C::TURN_AT) + (warp - FIRST_MATH_WARP) * (SM90_PREFILL_EPILOGUE_STAGING_BYTES / 4);
        while (walk.advance()) {
            float d[SUMS];
            multiply.run(walk, d);
            if (walk.halved) {
                if (walk.rank == 0)
                    exchange<0>(at.base, 1, d);
                else
                    exchange<SUMS / 2>(at.base, 0, d);
            }
            finish(p, s, walk, turn, d);
        }
    }
}

#define KERNEL(id, ...)                                                                                                \
    extern "C" __global__ void __launch_bounds__(SM90_PREFILL_THREADS, 1)                                              \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm90_prefill_schedule s) {          \
        gemm<config<__VA_ARGS__>>(p, s);                                                                               \
    }
SM90_PREFILL_CONFIGS(KERNEL)
