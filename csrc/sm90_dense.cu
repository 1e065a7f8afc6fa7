/* C = epilogue(A . B^T) on the tensor cores of Hopper, for large products: 128 rows of x by 256 of y a CTA, two CTAs a
 * cluster, wgmma of 64 x 256 x 16 fp16. Three forms differ in what arrives raw, as NVFP4, and is decoded here, exactly
 * (sm90_dense_configs.h): with Y_RAW x and y; with X_RAW alone x, and y is fp16 that sm90_expand.cu has made; or
 * nothing.
 *
 * The two CTAs of a cluster take neighbouring 128 rows of x and the same y, of which each loads, or decodes, half and
 * sends it to both. What is left when no further round would occupy all clusters is computed by a cluster a tile:
 * either CTA then takes 128 rows of x by its half of y, 64 x 128 x 16, and sends nothing.
 *
 *   warp 0      load    one thread   empty[slot] of both CTAs' math warps -> boxes by tensor map             ->
 * full[slot] with Y_RAW           raw_empty[slot] -> boxes, scales -> raw_full[slot] warps 1-3   decode  Y_RAW only
 * raw_full[slot], empty[slot] -> half of y as fp16, bulk copy to the other -> full[slot] warps 4-11  math full[slot],
 * X_RAW: decode into registers -> four steps of wgmma -> empty[slot] of both CTAs at the end of a tile: sums to global
 * memory, while the next tile's stages arrive
 *
 * A slot is released when the products of the next stage have been issued: the tensor core never waits for that. With
 * X_RAW the next stage is decoded, into the other one of two sets of registers, while the tensor core works.
 *
 * A sum over K may be taken in any order as long as x and y agree on it. Of 64 values along K lane t of a quad decodes
 * group t, the 16 values of one scale: pairs 0 and 1 of its word 0 for step 0 of wgmma, columns 2t, 2t+1 and 2t+8, 2t+9
 * of it, pairs 2 and 3 for step 1, those of word 1 for steps 2 and 3. So 16 bytes of y, piece 4w + q of a row, are pair
 * q of word w of the four groups.
 *
 * Shared memory of a CTA: stages of [y 32768 | x 16384, or raw values 4096 and scales 512]; with Y_RAW stages of [y
 * 32768] and raw stages of [x values 4096 | y values 4096 | x scales 512 | y scales 512]; a turning place a math warp;
 * barriers (SM90_DENSE_SHARED_BYTES). Rows past the end of a tensor reach only results that are not stored. */
#include "device/cluster.cuh"
#include "device/decode.cuh"
#include "device/epilogue.cuh"
#include "device/mbarrier.cuh"
#include "device/tma.cuh"
#include "device/wgmma_dense.cuh"
#include "sm90_dense_configs.h"

enum {
    MATH_WARPS = 8,
    FIRST_MATH_WARP = 4,
    DECODE_WARPS = 3, /* 1 to 3 */
    BAND = 8,         /* pairs along x that are walked together */
    BOX_ROWS = 128,   /* of the tensor maps */
    SUMS = 128,       /* a thread's */
    SCALES = 512,     /* bytes of 128 rows by 64 along K */
};
/* L2 cache policy of createpolicy.fractional for the fraction 1 (PTX ISA 9.0, section 9.7.9.20): no preference. */
static constexpr uint64_t EVICT_NORMAL = 0x1000000000000000;

template <int X_RAW_, int Y_RAW_, int STAGES_, int RAW_STAGES_> struct config {
    static constexpr bool X_RAW = X_RAW_, Y_RAW = Y_RAW_;
    static constexpr int STAGES = STAGES_, RAW_STAGES = RAW_STAGES_;
    static constexpr int STAGE_BYTES = SM90_DENSE_STAGE_BYTES(X_RAW, Y_RAW), HALF_Y = SM90_DENSE_Y_BYTES / 2;
    static constexpr int X_BYTES = SM90_DENSE_X_BYTES(X_RAW), RAW_BYTES = SM90_DENSE_RAW_BYTES;
    /* Where x and its scales lie in a stage, or in a raw one. */
    static constexpr int X_AT = Y_RAW ? 0 : SM90_DENSE_Y_BYTES, RAW_Y_AT = X_BYTES;
    static constexpr int SFX_AT = Y_RAW ? 2 * X_BYTES : X_AT + X_BYTES, SFY_AT = SFX_AT + SCALES;
    /* Behind the stages. */
    static constexpr int RAW_AT = STAGES * STAGE_BYTES, TURN_AT = RAW_AT + RAW_STAGES * RAW_BYTES;
    static constexpr int FULL_AT = TURN_AT + MATH_WARPS * SM90_DENSE_TURN_BYTES, EMPTY_AT = FULL_AT + 8 * STAGES;
    static constexpr int RAW_FULL_AT = EMPTY_AT + 8 * STAGES, RAW_EMPTY_AT = RAW_FULL_AT + 8 * RAW_STAGES;
    static constexpr int END = RAW_EMPTY_AT + 8 * RAW_STAGES;
    /* A thread's registers: what the launch allots, 168, is shared out anew. */
    static constexpr int SUPPORT_REGISTERS = Y_RAW ? 72 : 40, MATH_REGISTERS = Y_RAW ? 216 : 232;

    static_assert(STAGE_BYTES % 1024 == 0, "the swizzle's pattern begins on 1024 bytes");
    static_assert(END == SM90_DENSE_SHARED_BYTES(X_RAW, Y_RAW, STAGES, RAW_STAGES), "as the host reckons");
    static_assert(END <= 227 * 1024, "what Hopper gives a CTA");
    static_assert(X_RAW || !Y_RAW, "where y is raw x is");
};

/* A place in a ring of slots, and the parity of the phase that ends when the slot is filled this time round. */
template <int SLOTS> struct ring {
    uint32_t slot = 0, parity = 0;

    __device__ __forceinline__ void advance() {
        slot++;
        if (slot == SLOTS) slot = 0, parity ^= 1;
    }
};

/* Shared addresses. */
template <class C> struct layout {
    uint32_t base;

    __device__ __forceinline__ uint32_t stage(uint32_t slot) const { return base + slot * C::STAGE_BYTES; }
    __device__ __forceinline__ uint32_t raw(uint32_t slot) const { return base + C::RAW_AT + slot * C::RAW_BYTES; }
    __device__ __forceinline__ uint32_t full(uint32_t slot) const { return base + C::FULL_AT + 8 * slot; }
    __device__ __forceinline__ uint32_t empty(uint32_t slot) const { return base + C::EMPTY_AT + 8 * slot; }
    __device__ __forceinline__ uint32_t raw_full(uint32_t slot) const { return base + C::RAW_FULL_AT + 8 * slot; }
    __device__ __forceinline__ uint32_t raw_empty(uint32_t slot) const { return base + C::RAW_EMPTY_AT + 8 * slot; }
};

/* The tiles of this CTA, one after the other, as many as the other CTA of the cluster has. */
struct tile_walk {
    const sm90_dense_schedule &s;
    uint32_t rank, next, clusters;
    bool halved;     /* this tile is this cluster's alone, half of y a CTA */
    int32_t x, y, l; /* where the tile begins, of y that of the cluster; its batch */
    int32_t y_half;  /* the half of y that this CTA loads or decodes, and is all that it multiplies if halved */

    __device__ __forceinline__ tile_walk(const sm90_dense_schedule &s)
        : s(s), rank(cluster_rank()), next(blockIdx.x / 2), clusters(gridDim.x / 2) {}

    /* Goes to the next tile; false: there is none. */
    __device__ __forceinline__ bool advance() {
        uint32_t cluster = blockIdx.x / 2;
        halved = next >= (uint32_t)s.whole;
        if (!halved) {
            locate(next, rank);
            next += clusters;
            return true;
        }
        if (next >= (uint32_t)s.whole + clusters || cluster >= (uint32_t)s.halved) return false;
        locate(s.whole + cluster / 2, cluster % 2);
        next = s.whole + clusters;
        return true;
    }

  private:
    /* Pairs in bands of BAND along x, in each x fastest: what runs at a time shares rows of x and of y, in L2. */
    __device__ __forceinline__ void locate(uint32_t pair, uint32_t half) {
        uint32_t pairs_x = (s.tiles_x + 1) / 2, batch = pairs_x * s.tiles_y, in_batch = pair % batch;
        uint32_t band = in_batch / (BAND * s.tiles_y), in_band = in_batch - band * BAND * s.tiles_y;
        uint32_t width = min((uint32_t)BAND, pairs_x - band * BAND);
        l = (int32_t)(pair / batch);
        y = (int32_t)(in_band / width) * SM90_DENSE_TILE_Y;
        y_half = y + (int32_t)rank * BOX_ROWS;
        x = (int32_t)((band * BAND + in_band % width) * 2 + half) * SM90_DENSE_TILE_X;
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

/* Shared memory of this CTA to that of another one, whose barrier counts the bytes; both of those by map_to_rank. */
__device__ __forceinline__ void copy_to_cluster(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "r"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

/* Where a tile's scales begin, 512 bytes for each 64 along K; NULL where the rows do not exist. */
__device__ __forceinline__ const uint8_t *scales_of(const sm90_dense_operand &x, int32_t row, int32_t l) {
    return row < x.rows ? x.scale + l * x.scale_batch + row / BOX_ROWS * x.scale_pitch : nullptr;
}

/* One thread: fills the slots. */
template <class C> __device__ __forceinline__ void load(const sm90_dense_schedule &s, layout<C> at, tile_walk walk) {
    ring<C::STAGES> ring;
    while (walk.advance()) {
        int32_t xl = s.x.batches == 1 ? 0 : walk.l, yl = s.y.batches == 1 ? 0 : walk.l;
        const uint8_t *sfx = C::X_RAW ? scales_of(s.x, walk.x, walk.l) : nullptr;
        uint32_t bytes = (walk.halved ? C::HALF_Y : 2 * C::HALF_Y) + C::X_BYTES + (sfx ? SCALES : 0);
#pragma unroll 1
        for (int32_t k = 0; k < s.k_stages; k++, ring.advance()) {
            uint32_t stage = at.stage(ring.slot), full = at.full(ring.slot), y = stage + walk.rank * C::HALF_Y;
            mbarrier_wait(at.empty(ring.slot), ring.parity ^ 1);
            mbarrier_arrive_expect(full, bytes);
            if (walk.halved)
                copy_box_3d<1>(y, &s.y.values, k * 64, walk.y_half, yl, full, EVICT_NORMAL);
            else
                copy_box_to_both(y, &s.y.values, k * 64, walk.y_half, yl, full);
            copy_box_3d<1>(stage + C::X_AT, &s.x.values, k * (C::X_RAW ? 32 : 64), walk.x, xl, full, EVICT_NORMAL);
            if (sfx) copy_bulk(stage + C::SFX_AT, sfx + (int64_t)k * SCALES, SCALES, full, EVICT_NORMAL);
        }
    }
    /* The last releases, the other CTA's too, arrive in this CTA's memory: it must be there. */
    for (int i = 0; i < C::STAGES; i++, ring.advance()) mbarrier_wait(at.empty(ring.slot), ring.parity ^ 1);
}

/* The same with Y_RAW. */
template <class C>
__device__ __forceinline__ void load_raw(const sm90_dense_schedule &s, layout<C> at, tile_walk walk) {
    ring<C::RAW_STAGES> ring;
    while (walk.advance()) {
        int32_t xl = s.x.batches == 1 ? 0 : walk.l, yl = s.y.batches == 1 ? 0 : walk.l;
        const uint8_t *sfx = scales_of(s.x, walk.x, walk.l), *sfy = scales_of(s.y, walk.y_half, walk.l);
        uint32_t bytes = 2 * C::X_BYTES + (sfx ? SCALES : 0) + (sfy ? SCALES : 0);
#pragma unroll 1
        for (int32_t k = 0; k < s.k_stages; k++, ring.advance()) {
            uint32_t stage = at.raw(ring.slot), full = at.raw_full(ring.slot);
            mbarrier_wait(at.raw_empty(ring.slot), ring.parity ^ 1);
            mbarrier_arrive_expect(full, bytes);
            copy_box_3d<1>(stage + C::X_AT, &s.x.values, k * 32, walk.x, xl, full, EVICT_NORMAL);
            copy_box_3d<1>(stage + C::RAW_Y_AT, &s.y.values, k * 32, walk.y_half, yl, full, EVICT_NORMAL);
            if (sfx) copy_bulk(stage + C::SFX_AT, sfx + (int64_t)k * SCALES, SCALES, full, EVICT_NORMAL);
            if (sfy) copy_bulk(stage + C::SFY_AT, sfy + (int64_t)k * SCALES, SCALES, full, EVICT_NORMAL);
        }
    }
}

/* Word w of each group of a row of y, to the row's pieces 4w to 4w + 3 under the swizzle. */
template <class C> __device__ __forceinline__ void decode_row(uint32_t raw, uint32_t to, int row, int w) {
    uint32_t pairs[4][4], low, high;
    uint4 first = load_shared_128(raw + C::RAW_Y_AT + row * 32),
          last = load_shared_128(raw + C::RAW_Y_AT + row * 32 + 16);
    uint32_t scales = load_shared(raw + C::SFY_AT + row % 32 * 16 + row / 32 * 4);
    e4m3x4_to_half2x2(scales & 0x7F7F7F7F, low, high);
    decode_word<0>(w ? first.y : first.x, low, pairs[0]);
    decode_word<1>(w ? first.w : first.z, low, pairs[1]);
    decode_word<0>(w ? last.y : last.x, high, pairs[2]);
    decode_word<1>(w ? last.w : last.z, high, pairs[3]);
#pragma unroll
    for (int q = 0; q < 4; q++)
        store_shared_128(to + row * 128 + ((4 * w + q) ^ row % 8) * 16, pairs[0][q], pairs[1][q], pairs[2][q],
                         pairs[3][q]);
}

/* Warps 1 to 3: this CTA's half of y, 16 rows a warp at a time, two lanes a row. */
template <class C> __device__ __forceinline__ void decode(const sm90_dense_schedule &s, layout<C> at, tile_walk walk) {
    int warp = threadIdx.x / 32 - 1, lane = threadIdx.x % 32;
    uint32_t half = walk.rank * C::HALF_Y, other = walk.rank ^ 1;
    ring<C::RAW_STAGES> raw;
    ring<C::STAGES> ring;
    while (walk.advance()) {
#pragma unroll 1
        for (int32_t k = 0; k < s.k_stages; k++, raw.advance(), ring.advance()) {
            uint32_t y = at.stage(ring.slot) + half, full = at.full(ring.slot);
            mbarrier_wait(at.raw_full(raw.slot), raw.parity);
            mbarrier_wait(at.empty(ring.slot), ring.parity ^ 1);
#pragma unroll
            for (int i = 0; i < 9; i += DECODE_WARPS)
                if (i + warp < 8) decode_row<C>(at.raw(raw.slot), y, (i + warp) * 16 + lane / 2, lane % 2);
            fence_proxy_async();
            __syncwarp();
            if (lane == 0) mbarrier_arrive(at.raw_empty(raw.slot));
            if (walk.halved) {
                if (lane == 0) mbarrier_arrive(full);
            } else {
                asm volatile("bar.sync 1, 96;" ::: "memory"); /* the whole half is there */
                if (warp == 0 && lane == 0) {
                    copy_to_cluster(map_to_rank(y, other), y, C::HALF_Y, map_to_rank(full, other));
                    mbarrier_arrive_expect(full, C::HALF_Y);
                } else if (lane == 0) {
                    mbarrier_arrive(full);
                }
            }
        }
    }
    /* As in load: the last releases. */
    for (int i = 0; i < C::STAGES; i++, ring.advance()) mbarrier_wait(at.empty(ring.slot), ring.parity ^ 1);
}

/* A math warp is done with a slot of which both CTAs fill a half. What the other one writes only wgmma has read, whose
 * end the warp has waited for. */
__device__ __forceinline__ void release(uint32_t empty, uint32_t other_rank) {
    __syncwarp();
    int lane = threadIdx.x % 32;
    if (lane == 0) mbarrier_arrive(empty);
    if (lane == 1) mbarrier_arrive_relaxed(map_to_rank(empty, other_rank));
}

__device__ __forceinline__ uint2 load_pair(uint32_t from) {
    uint2 v;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
    return v;
}

/* Raw x of one stage into a thread's fragments of its four steps. */
template <class C> __device__ __forceinline__ void decode_x(uint32_t stage, uint32_t (&a)[4][4]) {
    int lane = threadIdx.x % 32, row = (threadIdx.x / 32 - FIRST_MATH_WARP) * 16 + lane / 4, t = lane % 4;
    uint32_t values = stage + C::X_AT + row * 32 + t * 8, scales = stage + C::SFX_AT + row % 32 * 16 + row / 32 * 4;
    uint2 words[2];
    uint32_t four[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        words[h] = load_pair(values + h * 8 * 32);
        four[h] = load_shared(scales + h * 8 * 16);
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
    ring<C::STAGES> ring;
    ::ring<C::RAW_STAGES> raw;
    uint32_t previous; /* its slot */

    __device__ __forceinline__ multiplier(layout<C> at) : at(at) {}

    template <int N>
    __device__ __forceinline__ void issue(uint32_t stage, uint64_t y, const uint32_t (&a)[4][4], float (&d)[SUMS]) {
        uint64_t x = wgmma_swizzled_descriptor(stage + C::X_AT + threadIdx.x / 128 * 8192 - 8192);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; i++)
            if constexpr (C::X_RAW)
                wgmma_wide<N>(d, a[i], y + 2 * i);
            else
                wgmma_wide<N>(d, x + 2 * i, y + 2 * i);
        wgmma_commit();
    }

    __device__ __forceinline__ void step(bool first, const tile_walk &walk, uint32_t (&a)[4][4], float (&d)[SUMS]) {
        uint32_t stage = at.stage(ring.slot);
        if constexpr (C::Y_RAW) {
            mbarrier_wait(at.raw_full(raw.slot), raw.parity);
            decode_x<C>(at.raw(raw.slot), a);
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(at.raw_empty(raw.slot));
            raw.advance();
        }
        mbarrier_wait(at.full(ring.slot), ring.parity);
        if constexpr (C::X_RAW && !C::Y_RAW) decode_x<C>(stage, a);
        if (walk.halved)
            issue<128>(stage, wgmma_swizzled_descriptor(stage + walk.rank * C::HALF_Y), a, d);
        else
            issue<256>(stage, wgmma_swizzled_descriptor(stage), a, d);
        wgmma_wait<1>();
        if (!first) release(at.empty(previous), walk.rank ^ 1);
        previous = ring.slot;
        ring.advance();
    }

    __device__ __forceinline__ void run(const tile_walk &walk, float (&d)[SUMS]) {
        uint32_t a[2][4][4];
        int32_t k = 0, last = walk.s.k_stages;
#pragma unroll
        for (int i = 0; i < SUMS; i++) d[i] = 0.0f;
#pragma unroll 1
        while (k < last) {
            step(k == 0, walk, a[0], d);
            if (++k == last) break;
            step(false, walk, a[1], d);
            k++;
        }
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < SUMS; i++) pin_float(d[i]);
        if (last) release(at.empty(previous), walk.rank ^ 1);
    }
};

/* 32 columns of y of a warp's 16 rows of x, from the order of wgmma's registers into that of the output, 4 neighbours
 * along an output row to a thread, through the warp's own place in shared memory: 16 x 40 floats or, where x counts
 * columns of the output, 32 x 20. */
struct turning_place {
    float *place;
    bool swapped;
    int row, column, rows, pitch; /* this lane's first row and column of it; rows that 32 lanes reach */

    __device__ __forceinline__ turning_place(float *place, bool swapped) : place(place), swapped(swapped) {
        int lane = threadIdx.x % 32;
        row = swapped ? lane / 4 : lane / 8, column = (swapped ? lane % 4 : lane % 8) * 4;
        rows = swapped ? 8 : 4, pitch = swapped ? 20 : 40;
    }

    __device__ __forceinline__ void put(const float *v) const {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 16; i += 2) {
            int x = lane / 4 + i / 2 % 2 * 8, y = i / 4 * 8 + lane % 4 * 2;
            float2 pair = make_float2(v[i] * DECODED_PRODUCT_UNIT, v[i + 1] * DECODED_PRODUCT_UNIT);
            if (swapped)
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
template <bool SWAPPED>
__device__ __forceinline__ void store_plain(const gemm_problem &p, int32_t l, int32_t x, int32_t y, int columns,
                                            uint32_t place, const float (&d)[SUMS]) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, matrix = lane / 8;
    float alpha = p.alpha ? *p.alpha : p.alpha_value;
    bool fp16 = p.out_type == OUT_FP16;
    /* Of the first two groups of 8 columns; the next two: 16 rows, or two pieces on. */
    int row = SWAPPED ? matrix / 2 * 8 + lane % 8 : matrix % 2 * 8 + lane % 8;
    int piece = SWAPPED ? warp * 2 + matrix % 2 : matrix / 2;
    int64_t m = SWAPPED ? y + warp * 4 + lane / 8 : x + lane / 8, n = (SWAPPED ? x : y) + lane % 8 * 8;
    char *out = (char *)p.out + l * p.out_batch + m * p.out_pitch + n * 2;
    uint32_t from = place + (SWAPPED ? warp * 4 + lane / 8 : lane / 8) * 128;
#pragma unroll
    for (int chunk = 0; chunk < SM90_DENSE_TILE_Y; chunk += 64) {
        if (chunk >= columns) break;
        if (SWAPPED)
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
            int at_row = row + (SWAPPED ? i * 16 : 0), at_piece = piece + (SWAPPED ? 0 : i * 2);
            store_matrices<SWAPPED>(place + at_row * 128 + (at_piece ^ at_row % 8) * 16, packed);
        }
        if (SWAPPED)
            asm volatile("bar.sync %0, 128;" ::"r"(1 + (int)threadIdx.x / 128) : "memory");
        else
            __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            constexpr int STEP = SWAPPED ? 16 : 4; /* rows */
            int64_t column = SWAPPED ? 0 : chunk, to_row = i * STEP + (SWAPPED ? chunk : 0);
            int at_row = i * STEP + (SWAPPED ? warp * 4 + lane / 8 : lane / 8);
            uint4 v = load_shared_128(from + i * STEP * 128 + (lane % 8 ^ at_row % 8) * 16);
            if (m + to_row < p.m && n + column < p.n) *(uint4 *)(out + to_row * p.out_pitch + column * 2) = v;
        }
    }
}

/* Stores a warp's sums. */
__device__ __forceinline__ void finish(const gemm_problem &p, const sm90_dense_schedule &s, const tile_walk &walk,
                                       float *place, const float (&d)[SUMS]) {
    int32_t first_y = walk.halved ? walk.y_half : walk.y, columns = walk.halved ? 128 : SM90_DENSE_TILE_Y;
    int warp = threadIdx.x / 32 - FIRST_MATH_WARP;
    int32_t x = walk.x + warp * 16;
    if (is_plain(p)) {
        uint32_t at = shared_address(place);
        if (s.swapped)
            store_plain<true>(p, walk.l, walk.x + warp / 4 * 64, first_y, columns,
                              at - warp % 4 * SM90_DENSE_TURN_BYTES, d);
        else
            store_plain<false>(p, walk.l, x, first_y, columns, at, d);
        return;
    }
    turning_place turn(place, s.swapped);
#pragma unroll
    for (int chunk = 0; chunk < SM90_DENSE_TILE_Y; chunk += 32) {
        if (chunk >= columns) break;
        turn.put(d + chunk / 2);
        __syncwarp();
        int64_t y = first_y + chunk, m = (s.swapped ? y : x) + turn.row, n = (s.swapped ? x : y) + turn.column;
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
template <class C> __device__ __forceinline__ void prepare(const sm90_dense_schedule &s, layout<C> at) {
    if (threadIdx.x / 32 == 0 && elect_one()) {
        prefetch_tensor_map(&s.x.values);
        prefetch_tensor_map(&s.y.values);
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(at.full(i), C::Y_RAW ? DECODE_WARPS : 1);
            mbarrier_init(at.empty(i), 2 * MATH_WARPS);
        }
        for (int i = 0; i < C::RAW_STAGES; i++) {
            mbarrier_init(at.raw_full(i), 1);
            mbarrier_init(at.raw_empty(i), DECODE_WARPS + MATH_WARPS);
        }
        fence_mbarrier_init();
    }
    __syncwarp();
    cluster_arrive_relaxed(), cluster_wait(); /* all may use them from here on */
}

template <class C> __device__ __forceinline__ void gemm(const gemm_problem &p, const sm90_dense_schedule &s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    layout<C> at{shared_address(shared)};
    if (at.base % 1024) __trap(); /* the swizzle is taken of absolute addresses */
    int warp = threadIdx.x / 32;
    prepare(s, at);
    wait_for_prior_grids();
    /* Not before the wait, or the grid after next would come to wait as well. */
    launch_dependents();

    tile_walk walk(s);
    if (warp < FIRST_MATH_WARP) {
        give_registers<C::SUPPORT_REGISTERS>();
        if constexpr (C::Y_RAW) {
            if (warp > 0)
                decode(s, at, walk);
            else if (elect_one())
                load_raw(s, at, walk);
        } else if (warp == 0 && elect_one()) {
            load(s, at, walk);
        }
    } else {
        take_registers<C::MATH_REGISTERS>();
        multiplier<C> multiply(at);
        float *turn = (float *)(shared + C::TURN_AT) + (warp - FIRST_MATH_WARP) * (SM90_DENSE_TURN_BYTES / 4);
        while (walk.advance()) {
            float d[SUMS];
            multiply.run(walk, d);
            finish(p, s, walk, turn, d);
        }
    }
}

#define KERNEL(id, ...)                                                                                                \
    extern "C" __global__ void __launch_bounds__(SM90_DENSE_THREADS, 1)                                                \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm90_dense_schedule s) {            \
        gemm<config<__VA_ARGS__>>(p, s);                                                                               \
    }
SM90_DENSE_CONFIGS(KERNEL)
