/* C = epilogue(A . B^T) of NVFP4 operands on the tensor cores of Hopper (wgmma, fp16 with fp32 sums): both operands
 * travel raw, 4-bit values and scales, and are decoded next to the tensor core, exactly.
 *
 * The side whose rows wgmma takes from registers is called x, the other one, taken from shared memory, y. Which of A
 * and B is x is the schedule's choice (swapped: x is B). A CTA computes TILE_X rows of x by TILE_Y of y.
 *
 *   first support warp    load    empty[slot] -> values by tensor map, scales as whole atoms      -> full[slot]
 *   other support warps   decode  full[slot], y_empty[slot] -> y as fp16 into shared memory       -> y_full[slot],
 * empty math warpgroups       full[slot] -> x into registers -> empty[slot];  y_full[slot] -> products ->
 * y_empty[slot]; at the end of a tile: sums to the units that keep them, or to global memory
 *
 * A sum over K may be taken in any order as long as x and y agree on it. Of the 128 values along K of a stage lane t of
 * a quad takes 32 neighbours, 16 bytes of a row and two scales; word i of these makes its share of steps 2i and 2i + 1
 * of wgmma (decode.cuh's pairs 0, 1 and 2, 3). So x goes from memory to the tensor core without a shuffle. y is laid
 * out to match: piece 4i + q, 16 bytes a row, is pair q of word i of lanes 0 to 3.
 *
 * While the tensor core works on one half of a stage a math warp decodes the other; it has two buffers of registers.
 *
 * Shared memory of a CTA: stages of [x values 64 bytes a row | y values | x scales 1024 a 128 rows | y scales],
 * decoded stages [16 pieces][TILE_Y][8 fp16], a turning place a math warp, barriers (SM90_SHARED_BYTES).
 *
 * K may be cut between the CTAs of a cluster (split_k). Each then keeps some groups of 8 columns of the tile; the
 * others send it their sums of these, by st.async in the order of the registers, and it adds them in the order of the
 * parts.
 *
 * Tails. Rows past the end of a tensor reach only results that are not stored. Along K scales past the end are replaced
 * by zero where they are decoded, and values are finite whatever the byte. */
#include "device/cluster.cuh"
#include "device/cp_async.cuh"
#include "device/decode.cuh"
#include "device/epilogue.cuh"
#include "device/mbarrier.cuh"
#include "device/tma.cuh"
#include "device/wgmma.cuh"
#include "sm90_configs.h"

template <int MATH_GROUPS_, int X_TILES_, int TILE_Y_, int STAGES_, int Y_STAGES_, int SUPPORT_GROUPS_> struct config {
    static constexpr int MATH_GROUPS = MATH_GROUPS_, X_TILES = X_TILES_, TILE_Y = TILE_Y_;
    static constexpr int STAGES = STAGES_, Y_STAGES = Y_STAGES_, SUPPORT_GROUPS = SUPPORT_GROUPS_;
    static constexpr int THREADS = SM90_THREADS(MATH_GROUPS, SUPPORT_GROUPS);
    static constexpr int MATH_WARPS = 4 * MATH_GROUPS, LOAD_WARP = MATH_WARPS, DECODE_WARP = LOAD_WARP + 1;
    static constexpr int DECODE_WARPS = 4 * SUPPORT_GROUPS - 1;
    static constexpr int TILE_X = SM90_TILE_X(MATH_GROUPS, X_TILES), X_BLOCKS = TILE_X / SM90_ATOM_ROWS;
    /* Words of each row that become one group of products, two steps each: X_TILES * GROUP_WORDS * 8 registers. */
    static constexpr int GROUP_WORDS = X_TILES == 1 ? 2 : 1;
    static constexpr int COLUMN_GROUPS = TILE_Y / 8;
    /* Where the parts of a stage begin; x values come first. */
    static constexpr int Y_AT = TILE_X * SM90_STAGE_K / 2, SFX_AT = Y_AT + TILE_Y * SM90_STAGE_K / 2;
    static constexpr int SFY_AT = SFX_AT + X_BLOCKS * SM90_BLOCK_BYTES;
    static constexpr int STAGE_BYTES = SM90_STAGE_BYTES(TILE_X, TILE_Y), DECODED_BYTES = SM90_DECODED_BYTES(TILE_Y);
    /* Behind the stages. */
    static constexpr int DECODED_AT = STAGES * STAGE_BYTES, TURN_AT = DECODED_AT + Y_STAGES * DECODED_BYTES;
    static constexpr int FULL_AT = TURN_AT + MATH_WARPS * SM90_TURN_BYTES, EMPTY_AT = FULL_AT + 8 * STAGES;
    static constexpr int Y_FULL_AT = EMPTY_AT + 8 * STAGES, Y_EMPTY_AT = Y_FULL_AT + 8 * Y_STAGES;
    static constexpr int PARTS_FULL_AT = Y_EMPTY_AT + 8 * Y_STAGES;
    static constexpr int PARTS_AT = SM90_SHARED_BYTES(MATH_GROUPS, X_TILES, TILE_Y, STAGES, Y_STAGES);
    /* A thread's registers: what the launch allots is shared out anew. */
    static constexpr int SUPPORT_REGISTERS = SUPPORT_GROUPS == 1 ? 72 : 64;
    static constexpr int MATH_REGISTERS =
        (65536 / THREADS / 8 * 8 * (MATH_GROUPS + SUPPORT_GROUPS) - SUPPORT_REGISTERS * SUPPORT_GROUPS) / MATH_GROUPS /
        8 * 8;

    static_assert(TILE_X % SM90_ATOM_ROWS == 0, "a tile of x has whole blocks of scales");
    static_assert(STAGE_BYTES % 512 == 0 && Y_AT % 512 == 0, "the swizzle's pattern begins on 512 bytes");
    static_assert(PARTS_FULL_AT + 8 <= PARTS_AT && PARTS_AT % 16 == 0, "the barriers fit");
    static_assert(PARTS_AT <= 227 * 1024, "what Hopper gives a CTA");
    static_assert(MATH_REGISTERS <= 240, "what a thread may have");
};

/* A place in a ring of slots, and the parity of the phase that ends when the slot is filled this time round. */
template <int SLOTS> struct ring {
    uint32_t slot = 0, parity = 0;

    __device__ __forceinline__ void advance() {
        slot++;
        if (slot == SLOTS) slot = 0, parity ^= 1;
    }
};

/* This CTA's share of the work. */
template <class C> struct share {
    uint32_t base;           /* shared address of the stages */
    uint32_t unit;           /* rank in the cluster: the part of K */
    uint32_t first, step;    /* of tiles */
    int32_t k_first, k_last; /* stages along K */
    int32_t scales;          /* along K */
    uint32_t parts;          /* shared address of the partial sums */

    __device__ __forceinline__ share(const gemm_problem &p, const sm90_schedule &s, uint32_t base) : base(base) {
        unit = cluster_rank();
        first = blockIdx.x / s.split_k;
        step = gridDim.x / s.split_k;
        k_first = (int32_t)((int64_t)unit * s.k_stages / s.split_k);
        k_last = (int32_t)((int64_t)(unit + 1) * s.k_stages / s.split_k);
        scales = (int32_t)(p.k / 16);
        parts = base + (s.parts_in_stages ? 0 : C::PARTS_AT);
    }

    __device__ __forceinline__ uint32_t stage(uint32_t slot) const { return base + slot * C::STAGE_BYTES; }
    __device__ __forceinline__ uint32_t decoded(uint32_t slot) const {
        return base + C::DECODED_AT + slot * C::DECODED_BYTES;
    }
    __device__ __forceinline__ uint32_t full(uint32_t slot) const { return base + C::FULL_AT + 8 * slot; }
    __device__ __forceinline__ uint32_t empty(uint32_t slot) const { return base + C::EMPTY_AT + 8 * slot; }
    __device__ __forceinline__ uint32_t y_full(uint32_t slot) const { return base + C::Y_FULL_AT + 8 * slot; }
    __device__ __forceinline__ uint32_t y_empty(uint32_t slot) const { return base + C::Y_EMPTY_AT + 8 * slot; }
    __device__ __forceinline__ uint32_t parts_full() const { return base + C::PARTS_FULL_AT; }

    /* Scales along K that a stage has. */
    __device__ __forceinline__ int scales_left(int32_t k_stage) const { return scales - k_stage * 8; }
};

/* Which rows of x and y a tile begins with, and its batch. */
struct tile_place {
    int32_t x, y, l;
};

/* The tiles of this CTA, one after the other. */
template <class C> struct tile_walk {
    const sm90_schedule &s;
    uint32_t tile, step;
    tile_place place;

    __device__ __forceinline__ tile_walk(const sm90_schedule &s, const share<C> &w)
        : s(s), tile(w.first), step(w.step) {
        locate();
        pin(place.x), pin(place.y), pin(place.l); /* divisions: before the wait for prior grids */
    }
    __device__ __forceinline__ bool more() const { return tile < (uint32_t)s.tiles; }
    __device__ __forceinline__ void advance() {
        tile += step;
        if (more()) locate();
    }

  private:
    __device__ __forceinline__ void locate() {
        uint32_t rest = tile / s.tiles_y;
        place.y = (int32_t)(tile % s.tiles_y) * C::TILE_Y;
        place.x = (int32_t)(rest % s.tiles_x) * C::TILE_X;
        place.l = (int32_t)(rest / s.tiles_x);
    }
};

/* One thread: fills the slots. */
template <class C> __device__ __forceinline__ void load(const sm90_schedule &s, const share<C> &w, tile_walk<C> walk) {
    ring<C::STAGES> at;
    for (; walk.more(); walk.advance()) {
        tile_place place = walk.place;
        int32_t y_block = place.y / SM90_ATOM_ROWS;
        int x_blocks = min(C::X_BLOCKS, SM90_CEIL_DIV(s.x.rows - place.x, SM90_ATOM_ROWS));
        int y_blocks = (min(place.y + C::TILE_Y, s.y.rows) - 1) / SM90_ATOM_ROWS - y_block + 1;
        const uint8_t *sfx = s.x.scale + place.l * s.x.scale_batch + place.x / SM90_ATOM_ROWS * s.x.scale_pitch;
        const uint8_t *sfy = s.y.scale + place.l * s.y.scale_batch + y_block * s.y.scale_pitch;
#pragma unroll 1
        for (int32_t k = w.k_first; k < w.k_last; k++, at.advance()) {
            uint32_t stage = w.stage(at.slot), full = w.full(at.slot);
            uint32_t bytes = w.scales_left(k) > 4 ? SM90_BLOCK_BYTES : SM90_ATOM_BYTES; /* of a block of scales */
            mbarrier_wait(w.empty(at.slot), at.parity ^ 1);
            mbarrier_arrive_expect(full, C::SFX_AT + (x_blocks + y_blocks) * bytes);
            int32_t byte = k * (SM90_STAGE_K / 2);
            copy_box_3d<1>(stage, &s.x.values, byte, place.x, place.l, full, s.x.policy);
            copy_box_3d<1>(stage + C::Y_AT, &s.y.values, byte, place.y, place.l, full, s.y.policy);
#pragma unroll
            for (int i = 0; i < C::X_BLOCKS; i++)
                if (i < x_blocks)
                    copy_bulk(stage + C::SFX_AT + i * SM90_BLOCK_BYTES,
                              sfx + i * s.x.scale_pitch + (int64_t)k * SM90_BLOCK_BYTES, bytes, full, s.x.policy);
#pragma unroll
            for (int i = 0; i < SM90_Y_BLOCKS(C::TILE_Y); i++)
                if (i < y_blocks)
                    copy_bulk(stage + C::SFY_AT + i * SM90_BLOCK_BYTES,
                              sfy + i * s.y.scale_pitch + (int64_t)k * SM90_BLOCK_BYTES, bytes, full, s.y.policy);
        }
    }
}

/* Where the 4 scales of a row lie in a stage's block of scales; those of the next 64 along K 512 bytes on. */
__device__ __forceinline__ uint32_t scale_place(int row) {
    return row / SM90_ATOM_ROWS * SM90_BLOCK_BYTES + row % 32 * 16 + row % SM90_ATOM_ROWS / 32 * 4;
}

/* Keeps the magnitude of a scale, nothing of one past the end; bit 7 means nothing. */
__device__ __forceinline__ uint32_t scale_mask(bool exists) {
    return exists ? 0x7F : 0;
}

/* The decoding warps: lane 8i + r takes word i of all four 16-byte pieces of a row r of 8. */
template <class C> __device__ __forceinline__ void decode(const share<C> &w, tile_walk<C> walk) {
    int warp = threadIdx.x / 32 - C::DECODE_WARP, word = threadIdx.x % 32 / 8, r = threadIdx.x % 8;
    uint32_t pick = word < 2 ? 0x6420 : 0x7531; /* word i has scale i/2 of each piece */
    /* Of the stage that K fills in part. */
    uint32_t tail_mask = 0;
    for (int i = 0; i < 4; i++) tail_mask |= scale_mask(2 * i + word / 2 < w.scales % 8) << 8 * i;
    ring<C::STAGES> raw;
    ring<C::Y_STAGES> decoded;
    for (; walk.more(); walk.advance()) {
        int first = walk.place.y % SM90_ATOM_ROWS;
#pragma unroll 1
        for (int32_t k = w.k_first; k < w.k_last; k++, raw.advance(), decoded.advance()) {
            uint32_t mask = w.scales_left(k) < 8 ? tail_mask : 0x7F7F7F7F;
            uint32_t stage = w.stage(raw.slot), to = w.decoded(decoded.slot);
            mbarrier_wait(w.full(raw.slot), raw.parity);
            mbarrier_wait(w.y_empty(decoded.slot), decoded.parity ^ 1);
#pragma unroll
            for (int i = 0; i < C::COLUMN_GROUPS; i += C::DECODE_WARPS) {
                int row = (i + warp) * 8 + r;
                if (i + C::DECODE_WARPS > C::COLUMN_GROUPS && row >= C::TILE_Y) break;
                uint32_t values = stage + C::Y_AT + row * 64 + word * 4, swizzle = row / 2 % 4;
                uint32_t scales = stage + C::SFY_AT + scale_place(first + row), pairs[4][4], low, high;
                e4m3x4_to_half2x2(__byte_perm(load_shared(scales), load_shared(scales + SM90_ATOM_BYTES), pick) & mask,
                                  low, high);
                decode_word<0>(load_shared(values + (swizzle ^ 0) * 16), low, pairs[0]);
                decode_word<1>(load_shared(values + (swizzle ^ 1) * 16), low, pairs[1]);
                decode_word<0>(load_shared(values + (swizzle ^ 2) * 16), high, pairs[2]);
                decode_word<1>(load_shared(values + (swizzle ^ 3) * 16), high, pairs[3]);
#pragma unroll
                for (int q = 0; q < 4; q++)
                    store_shared_128(to + ((4 * word + q) * C::TILE_Y + row) * 16, pairs[0][q], pairs[1][q],
                                     pairs[2][q], pairs[3][q]);
            }
            fence_proxy_async();
            __syncwarp();
            if (threadIdx.x % 32 == 0) {
                mbarrier_arrive(w.y_full(decoded.slot));
                mbarrier_arrive(w.empty(raw.slot));
            }
        }
    }
}

/* What a lane holds of a tile: [tile of 64 rows][group of 8 columns * 4 + row of 2 * 2 + column of 2]. */
template <class C> using sums = float[C::X_TILES][C::TILE_Y / 2];

/* The products of one tile. A slot of y is released when the first group of the next stage has been issued. */
template <class C>
__device__ __forceinline__ void multiply(const share<C> &w, ring<C::STAGES> &raw, ring<C::Y_STAGES> &decoded,
                                         sums<C> &acc) {
    constexpr int GROUPS = 4 / C::GROUP_WORDS, STEPS = 2 * C::GROUP_WORDS;
    int lane = threadIdx.x % 32, t = lane % 4, warp = threadIdx.x / 32;
    int row = warp / 4 * 64 * C::X_TILES + warp % 4 * 16 + lane / 4; /* and 8, 64, 72 on */
    uint32_t values = row * 64 + t * 16, scales = C::SFX_AT + scale_place(row) + t / 2 * SM90_ATOM_BYTES + t % 2 * 2;
    uint32_t tail_mask = scale_mask(2 * t < w.scales % 8) | scale_mask(2 * t + 1 < w.scales % 8) << 8;
    uint32_t previous = 0;
    pin(values), pin(scales), pin(tail_mask);
    uint32_t a[2][C::X_TILES][STEPS][4];
#pragma unroll 1
    for (int32_t k = w.k_first; k < w.k_last; k++) {
        uint32_t mask = w.scales_left(k) < 8 ? tail_mask : 0x7F7F, stage = w.stage(raw.slot);
        uint4 x[C::X_TILES][2];
        uint32_t scale[C::X_TILES][2];
        mbarrier_wait(w.full(raw.slot), raw.parity);
#pragma unroll
        for (int i = 0; i < C::X_TILES; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                /* 64 rows on are two quarters of a block of scales on, or the next block */
                uint32_t at = stage + scales + h * 8 * 16 + (C::X_TILES == 2 ? i * 8 : 0);
                x[i][h] = load_shared_128(stage + values + (i * 64 + h * 8) * 64);
                scale[i][h] = load_shared_16(at) & mask;
            }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(w.empty(raw.slot));
        raw.advance();
        uint32_t scale_pairs[C::X_TILES][2];
#pragma unroll
        for (int i = 0; i < C::X_TILES; i++) {
            uint32_t unused;
            e4m3x4_to_half2x2(scale[i][0], scale_pairs[i][0], unused);
            e4m3x4_to_half2x2(scale[i][1], scale_pairs[i][1], unused);
        }
        mbarrier_wait(w.y_full(decoded.slot), decoded.parity);
        uint64_t y = wgmma_descriptor(w.decoded(decoded.slot), C::TILE_Y * 16, 128);
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            auto &buffer = a[group % 2];
#pragma unroll
            for (int i = 0; i < C::X_TILES; i++)
#pragma unroll
                for (int j = 0; j < C::GROUP_WORDS; j++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        int word = group * C::GROUP_WORDS + j;
                        const uint4 &v = x[i][h];
                        uint32_t bits = word == 0 ? v.x : word == 1 ? v.y : word == 2 ? v.z : v.w, pairs[4];
                        if (word < 2)
                            decode_word<0>(bits, scale_pairs[i][h], pairs);
                        else
                            decode_word<1>(bits, scale_pairs[i][h], pairs);
#pragma unroll
                        for (int q = 0; q < 4; q++) buffer[i][2 * j + q / 2][q % 2 * 2 + h] = pairs[q];
                    }
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < STEPS; step++)
#pragma unroll
                for (int i = 0; i < C::X_TILES; i++)
                    wgmma_from_registers<C::TILE_Y>::multiply(acc[i], buffer[i][step],
                                                              y + (group * STEPS + step) * 2 * C::TILE_Y,
                                                              group + step > 0 || k > w.k_first);
            wgmma_commit();
            wgmma_wait<1>();
            if (group == 0 && k > w.k_first && lane == 0) mbarrier_arrive(w.y_empty(previous));
        }
        previous = decoded.slot;
        decoded.advance();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < C::X_TILES; i++)
#pragma unroll
        for (int j = 0; j < C::TILE_Y / 2; j++) {
            if (w.k_first == w.k_last) acc[i][j] = 0.0f; /* K = 0 */
            pin_float(acc[i][j]);
        }
    if (w.k_first < w.k_last && lane == 0) mbarrier_arrive(w.y_empty(previous));
}

/* Groups of 8 columns of a tile that a unit keeps. */
struct kept_columns {
    int first, last;

    __device__ __forceinline__ kept_columns(int groups, int unit, int units)
        : first(unit * groups / units), last((unit + 1) * groups / units) {}
    __device__ __forceinline__ bool have(int group) const { return group >= first && group < last; }
};

/* The 16 bytes of a lane among the sums that a unit sends: the sender's place among the others, the group of columns
 * within those that are kept, the tile of 64 rows, the warp. */
template <class C> __device__ __forceinline__ uint32_t part_place(int from, int group, int tile, int units) {
    int groups = SM90_CEIL_DIV(C::COLUMN_GROUPS, units), warp = threadIdx.x / 32;
    return ((((from * groups + group) * C::X_TILES + tile) * C::MATH_WARPS + warp) * 32 + threadIdx.x % 32) * 16;
}

/* This unit's sums to the units that keep them, to the next one first, so that not all send to the same. */
template <class C> __device__ __forceinline__ void send_sums(const share<C> &w, int units, const sums<C> &acc) {
#pragma unroll 1
    for (int ahead = 1; ahead < units; ahead++) {
        int to = (int)w.unit + ahead < units ? w.unit + ahead : w.unit + ahead - units;
        kept_columns kept(C::COLUMN_GROUPS, to, units);
        int from = (int)w.unit < to ? w.unit : w.unit - 1;
        uint32_t parts = map_to_rank(w.parts, to), full = map_to_rank(w.parts_full(), to);
#pragma unroll
        for (int group = 0; group < C::COLUMN_GROUPS; group++)
            if (kept.have(group))
#pragma unroll
                for (int i = 0; i < C::X_TILES; i++) {
                    const float *v = acc[i] + 4 * group;
                    send_to_cluster(parts + part_place<C>(from, group - kept.first, i, units), full, v[0], v[1], v[2],
                                    v[3]);
                }
    }
}

/* Adds up in the order of the units; v is this unit's part. */
template <class C>
__device__ __forceinline__ void add_parts(const share<C> &w, int units, int group, int tile, float (&v)[4]) {
    float sum[4] = {};
#pragma unroll 1
    for (int unit = 0; unit < units; unit++) {
        float part[4] = {v[0], v[1], v[2], v[3]};
        if (unit != (int)w.unit) {
            int from = unit < (int)w.unit ? unit : unit - 1;
            load_shared_floats(w.parts + part_place<C>(from, group, tile, units), part);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i] += part[i];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = sum[i];
}

/* 32 columns of y of a warp's 16 rows of x, from the order of wgmma's registers into that of the output, 4 neighbours
 * along an output row to a thread, through the warp's own place in shared memory. */
struct turning_place {
    float *place; /* 16 x 40 or, where x counts columns of the output, 32 x 20 */
    bool swapped;
    int lane;

    __device__ __forceinline__ void put(int group, const float (&v)[4]) const {
        int x = lane / 4, y = group * 8 + lane % 4 * 2;
#pragma unroll
        for (int h = 0; h < 2; h++, x += 8)
            if (swapped)
                place[y * 20 + x] = v[2 * h], place[(y + 1) * 20 + x] = v[2 * h + 1];
            else
                *(float2 *)(place + x * 40 + y) = make_float2(v[2 * h], v[2 * h + 1]);
    }
};

/* Finishes the kept columns of a tile. */
template <class C>
__device__ __forceinline__ void finish(const gemm_problem &p, const sm90_schedule &s, const share<C> &w,
                                       const tile_place &place, float *turn, sums<C> &acc) {
    int units = s.split_k, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    kept_columns kept(C::COLUMN_GROUPS, w.unit, units);
    if (kept.first == kept.last) return;
    turning_place turning{turn, s.swapped != 0, lane};
#pragma unroll
    for (int i = 0; i < C::X_TILES; i++) {
        int64_t x = place.x + (warp / 4 * C::X_TILES + i) * 64 + warp % 4 * 16;
        column_epilogue of_rows(p, s.swapped ? x + lane % 4 * 4 : 0);
#pragma unroll
        for (int chunk = 0; chunk < C::COLUMN_GROUPS; chunk += 4) {
            if (chunk >= kept.last || chunk + 4 <= kept.first) continue;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int group = chunk + j;
                if (group >= C::COLUMN_GROUPS || !kept.have(group)) continue;
                float v[4] = {acc[i][4 * group], acc[i][4 * group + 1], acc[i][4 * group + 2], acc[i][4 * group + 3]};
                if (units > 1) add_parts(w, units, group - kept.first, i, v);
#pragma unroll
                for (int r = 0; r < 4; r++) v[r] *= DECODED_PRODUCT_UNIT;
                turning.put(j, v);
            }
            __syncwarp();
            int64_t y = place.y + chunk * 8;
            if (s.swapped) {
#pragma unroll 1
                for (int j = 0; j < 4; j++) {
                    int row = j * 8 + lane / 4;
                    float4 v = *(const float4 *)(turn + row * 20 + lane % 4 * 4);
                    if (kept.have(chunk + j) && y + row < s.y.rows)
                        of_rows.store(p, place.l, y + row, {v.x, v.y, v.z, v.w});
                }
            } else if (kept.have(chunk + lane % 8 / 2)) {
                column_epilogue of_columns(p, y + lane % 8 * 4);
#pragma unroll 1
                for (int row = lane / 8; row < 16; row += 4) {
                    float4 v = *(const float4 *)(turn + row * 40 + lane % 8 * 4);
                    if (x + row < s.x.rows) of_columns.store(p, place.l, x + row, {v.x, v.y, v.z, v.w});
                }
            }
            __syncwarp();
        }
    }
}

/* The math warpgroups. */
template <class C>
__device__ __forceinline__ void compute(const gemm_problem &p, const sm90_schedule &s, const share<C> &w,
                                        tile_walk<C> walk, uint8_t *shared) {
    ring<C::STAGES> raw;
    ring<C::Y_STAGES> decoded;
    float *turn = (float *)(shared + C::TURN_AT) + threadIdx.x / 32 * (SM90_TURN_BYTES / 4);
    for (; walk.more(); walk.advance()) {
        sums<C> acc;
        multiply(w, raw, decoded, acc);
        if (s.split_k > 1) {
            if (s.parts_in_stages) cluster_arrive(), cluster_wait(); /* every unit has left its stages */
            send_sums(w, s.split_k, acc);
            mbarrier_wait_cluster(w.parts_full(), 0);
        }
        finish(p, s, w, walk.place, turn, acc);
    }
}

/* All threads: barriers, what the first copies need. Reads no tensor. */
template <class C> __device__ __forceinline__ void prepare(const sm90_schedule &s, const share<C> &w) {
    int warp = threadIdx.x / 32;
    if (warp == C::LOAD_WARP && elect_one()) {
        prefetch_tensor_map(&s.x.values);
        prefetch_tensor_map(&s.y.values);
    }
    if (warp == 0 && elect_one()) {
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(w.full(i), 1);
            mbarrier_init(w.empty(i), C::MATH_WARPS + C::DECODE_WARPS);
        }
        for (int i = 0; i < C::Y_STAGES; i++) {
            mbarrier_init(w.y_full(i), C::DECODE_WARPS);
            mbarrier_init(w.y_empty(i), C::MATH_WARPS);
        }
        mbarrier_init(w.parts_full(), 1);
        fence_mbarrier_init();
        if (s.split_k > 1) {
            kept_columns kept(C::COLUMN_GROUPS, w.unit, s.split_k);
            mbarrier_arrive_expect(w.parts_full(),
                                   (s.split_k - 1) * (kept.last - kept.first) * C::X_TILES * C::MATH_WARPS * 512);
        }
    }
    __syncwarp();
    if (s.split_k > 1) cluster_arrive_relaxed(), cluster_wait(); /* the others may use these barriers from here on */
    __syncthreads();
}

template <class C> __device__ __forceinline__ void gemm(const gemm_problem &p, const sm90_schedule &s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    share<C> w(p, s, shared_address(shared));
    if (w.base % 512) __trap(); /* the swizzle is taken of absolute addresses */
    int warp = threadIdx.x / 32;

    tile_walk<C> walk(s, w);
    prepare(s, w);
    wait_for_prior_grids();
    /* Not before the wait, or the grid after next would come to wait as well (an H200 lost 0.3 us a call to that). */
    launch_dependents();

    if (warp >= C::MATH_WARPS) {
        give_registers<C::SUPPORT_REGISTERS>();
        if (warp == C::LOAD_WARP) {
            if (elect_one()) load(s, w, walk);
        } else {
            decode(w, walk);
        }
        __syncwarp();
        if (s.parts_in_stages) cluster_arrive_relaxed(), cluster_wait();
    } else {
        take_registers<C::MATH_REGISTERS>();
        compute(p, s, w, walk, shared);
    }
}

#define KERNEL(id, ...)                                                                                                \
    extern "C" __global__ void __launch_bounds__(config<__VA_ARGS__>::THREADS, 1)                                      \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm90_schedule s) {                  \
        gemm<config<__VA_ARGS__>>(p, s);                                                                               \
    }
SM90_GEMM_CONFIGS(KERNEL)
