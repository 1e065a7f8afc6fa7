/* C = epilogue(A . B^T) of NVFP4 operands on the tensor cores of Hopper (wgmma, fp16 with fp32 sums). The larger
 * operand, x, travels raw, 4-bit values and scales, and is decoded in the registers that wgmma takes it from, exactly;
 * the other one, y, has been expanded to fp16 just before (sm90_dequant.cu), so that it is decoded once and not once a
 * tile. Of up to 16 rows of y (Y_RAW) decoding costs less than a launch before: warps that would be idle do it.
 *
 * Which of A and B is x is the schedule's choice (swap_ab: x is B). A CTA computes TILE_X rows of x by TILE_Y of y.
 *
 *   last warpgroup    load   one thread   empty[slot] -> x values and y by tensor map, x scales as atoms -> full[slot]
 *    Y_RAW, its       decode three warps, a stage each: y to registers, empty[slot] -> y in fp16         -> full[slot]
 *   math warpgroups   full[slot] -> x into registers, products -> empty[slot];
 *                     at the end of a tile: sums to the units that keep them, or to global memory
 *
 * A sum over K may be taken in any order as long as x and y agree on it. Of 64 values along K lane t of a quad takes
 * the 16 of scale t, 8 bytes of a row; word i of these makes its share of steps 2i and 2i + 1 of wgmma (decode.cuh's
 * pairs 0, 1 and 2, 3). So x goes from memory to the tensor core without a shuffle, and y is expanded in that order.
 *
 * While the tensor core works on one part of a stage a math warp decodes the next; it has two buffers of registers.
 *
 * Dependent launch: the expansion of y waits for the grids before it and only then lets this grid start. So some of x
 * is loaded at once, while others still expand y. With Y_RAW nothing is loaded before the grids before have ended.
 *
 * Shared memory of a CTA: stages [y, 128 bytes a row, two spans along K | x values, 64 bytes a row | x scales], a
 * turning place a math warp, barriers (SM90_SHARED_BYTES).
 *
 * K may be cut between the CTAs of a cluster (split_k). Each then keeps some groups of 8 columns of the tile; the
 * others send it their sums of these, by st.async in the order of the registers, and it adds them to its own in the
 * order of the parts. In helped kernels CTAs beside the clusters compute the beginning of K for them
 * (sm90_gemm_parts.cuh).
 *
 * Tails. Rows past the end of a tensor reach only results that are not stored. Along K scales past the end are replaced
 * by zero where they are decoded, and values are finite whatever the byte. */
#include <type_traits>

#include "device/decode.cuh"
#include "device/epilogue.cuh"
#include "device/raw_rows.cuh"
#include "device/wgmma.cuh"
#include "sm90_gemm_parts.cuh"

template <int MATH_GROUPS_, int X_TILES_, int TILE_Y_, int GROUP_WORDS_, int STAGES_, int HELPED_> struct config {
    static constexpr int MATH_WARPGROUPS = MATH_GROUPS_, X_TILES = X_TILES_, TILE_Y = TILE_Y_, STAGES = STAGES_;
    static constexpr int THREADS = SM90_THREADS(MATH_WARPGROUPS), MATH_WARPS = 4 * MATH_WARPGROUPS;
    static constexpr int TILE_X = SM90_TILE_X(MATH_WARPGROUPS, X_TILES), X_BLOCKS = TILE_X / SM90_ATOM_ROWS;
    /* Words of each row that become one group of products, two steps each: X_TILES * GROUP_WORDS * 8 registers. */
    static constexpr int GROUP_WORDS = GROUP_WORDS_;
    static constexpr int COLUMN_GROUPS = TILE_Y / 8;
    static constexpr bool Y_RAW = SM90_Y_RAW(TILE_Y);
    static constexpr int Y_WARPS = Y_RAW ? 3 : 0; /* that decode y, behind the one that loads */
    /* Stages of which x is asked for while y is still being expanded. More of them come between the expansion and its
     * data: with 6 a call takes 0.3 to 1.5 us longer (measured, with cold caches). */
    static constexpr int AHEAD = Y_RAW ? 0 : 2;
    static constexpr bool HELPED = HELPED_;
    static constexpr int PARTIAL_TILE_BYTES = SM90_PARTIAL_TILE_BYTES(MATH_WARPGROUPS, X_TILES, TILE_Y);
    /* Of a stage; y comes first. */
    static constexpr int Y_SPAN = TILE_Y * 128, X_AT = 2 * Y_SPAN, SFX_AT = X_AT + TILE_X * SM90_STAGE_K / 2;
    static constexpr int STAGE_BYTES = SM90_STAGE_BYTES(MATH_WARPGROUPS, X_TILES, TILE_Y);
    /* Behind the stages. */
    static constexpr int TURN_AT = STAGES * STAGE_BYTES, FULL_AT = TURN_AT + MATH_WARPS * SM90_EPILOGUE_STAGING_BYTES;
    static constexpr int EMPTY_AT = FULL_AT + 8 * STAGES, PARTS_FULL_AT = EMPTY_AT + 8 * STAGES;
    static constexpr int PARTS_AT = SM90_SHARED_BYTES(MATH_WARPGROUPS, X_TILES, TILE_Y, STAGES);

    /* A thread's registers: what the launch allots is shared out anew. */
    static constexpr int LOAD_REGISTERS = Y_RAW ? 80 : 32;
    static constexpr int MATH_REGISTERS =
        (65536 / THREADS / 8 * 8 * (MATH_WARPGROUPS + 1) - LOAD_REGISTERS) / MATH_WARPGROUPS / 8 * 8;

    static_assert(GROUP_WORDS == 1 || GROUP_WORDS == 2, "groups take the two buffers by turns");
    static_assert(TILE_X % SM90_ATOM_ROWS == 0, "a tile of x has whole blocks of scales");
    static_assert(STAGE_BYTES % 1024 == 0 && Y_SPAN % 1024 == 0, "the swizzle's pattern begins on 1024 bytes");
    static_assert(PARTS_FULL_AT + 8 <= PARTS_AT && PARTS_AT % 16 == 0, "the barriers fit");
    static_assert(PARTS_AT <= 227 * 1024, "what Hopper gives a CTA");
    static_assert(!HELPED || !Y_RAW, "the expansion of y zeroes the helpers' flags");
};

/* One thread: fills the slots. */
template <class C> struct loader {
    const sm90_schedule &s;
    const share<C> &w;
    tile_place place;
    int x_blocks;
    const uint8_t *sfx;

    __device__ __forceinline__ loader(const sm90_schedule &s, const share<C> &w) : s(s), w(w) {}

    __device__ __forceinline__ void begin_tile(const tile_place &p) {
        place = p;
        x_blocks = SM90_CEIL_DIV(min(C::TILE_X, s.x.rows - p.x), SM90_ATOM_ROWS);
        sfx = s.x.scale + p.l * s.x.scale_batch + p.x / SM90_ATOM_ROWS * s.x.scale_pitch;
    }

    __device__ __forceinline__ void load_x(int32_t k, uint32_t slot) const {
        uint32_t stage = w.stage(slot), full = w.full(slot);
        uint32_t bytes = min(2, (w.scales - k * 8 + 3) / 4) * SM90_ATOM_BYTES; /* of 128 rows */
        mbarrier_arrive_expect_tx(full, (C::Y_RAW ? C::SFX_AT - C::X_AT : C::SFX_AT) + x_blocks * bytes);
        tma_load_3d<1>(stage + C::X_AT, &s.x.values, k * (SM90_STAGE_K / 2), place.x, place.l, full, s.x.policy);
#pragma unroll
        for (int i = 0; i < C::X_BLOCKS; i++)
            if (i < x_blocks)
                cp_async_bulk(stage + C::SFX_AT + i * SM90_BLOCK_BYTES,
                              sfx + i * s.x.scale_pitch + (int64_t)k * SM90_BLOCK_BYTES, bytes, full, s.x.policy);
    }

    __device__ __forceinline__ void load_y(int32_t k, uint32_t slot) const {
        uint32_t stage = w.stage(slot), full = w.full(slot);
        int32_t l = s.y.shared ? 0 : place.l;
        tma_load_3d<1>(stage, &s.y.values, k * SM90_STAGE_K, place.y, l, full, s.y.policy);
        tma_load_3d<1>(stage + C::Y_SPAN, &s.y.values, k * SM90_STAGE_K + 64, place.y, l, full, s.y.policy);
    }

    /* The stages of one piece or tile; of the first ones x may have been asked for already. */
    __device__ __forceinline__ void load_stages(int32_t k_first, int32_t k_last, int32_t &ahead,
                                                pipeline_state<C::STAGES> &at) const {
#pragma unroll 1
        for (int32_t k = k_first; k < k_last; k++, at.advance()) {
            if (ahead > 0) {
                ahead--;
            } else {
                mbarrier_wait(w.empty(at.index), at.phase ^ 1);
                load_x(k, at.index);
            }
            if constexpr (!C::Y_RAW) load_y(k, at.index);
        }
    }

    /* Some of x at once; y has to be expanded first. Returns of how many stages. */
    __device__ __forceinline__ int32_t load_ahead(int32_t k_first, int32_t k_last) const {
        int32_t ahead = min(C::AHEAD, k_last - k_first);
#pragma unroll 1
        for (int32_t i = 0; i < ahead; i++) load_x(k_first + i, i);
        griddepcontrol_wait();
        griddepcontrol_launch_dependents();
        return ahead;
    }

    __device__ __forceinline__ void run(piece_walk<C> walk) {
        pipeline_state<C::STAGES> at;
        if (!walk.next()) return;
        begin_tile(walk.place);
        int32_t ahead = load_ahead(walk.k_first, walk.k_last);
        do {
            begin_tile(walk.place);
            load_stages(walk.k_first, walk.k_last, ahead, at);
            if (walk.receives()) load_contributions(w, walk, at);
        } while (walk.next());
    }

    __device__ __forceinline__ void run(tile_walk<C> walk) {
        pipeline_state<C::STAGES> at;
        if (!walk.more()) return;
        begin_tile(walk.place);
        int32_t ahead = load_ahead(w.k_first, w.k_last);
        for (; walk.more(); walk.advance()) {
            begin_tile(walk.place);
            load_stages(w.k_first, w.k_last, ahead, at);
        }
    }
};

/* One of Y_WARPS warps, `index`: of the stages of all tiles every Y_WARPS-th. What it needs of the next one is on its
 * way while the products of those between run. */
template <class C>
__device__ __forceinline__ void decode_y(const sm90_schedule &s, const share<C> &w, tile_walk<C> walk, int index) {
    const sm90_dequant_operand &y = s.raw_y;
    raw_rows<C::COLUMN_GROUPS> rows;
    pipeline_state<C::STAGES> at;
    int turn = index; /* stages until the next of this warp's */
    griddepcontrol_wait();
    for (; walk.more(); walk.advance()) {
        int32_t l = walk.place.l;
        rows.begin(y.data + l * y.batch, y.pitch, y.scale + l * y.scale_batch, y.scale_pitch, walk.place.y, y.rows,
                   w.scales);
        if (w.k_first + turn < w.k_last) rows.load(w.k_first + turn);
#pragma unroll 1
        for (int32_t k = w.k_first; k < w.k_last; k++, at.advance()) {
            if (turn-- > 0) continue;
            mbarrier_wait(w.empty(at.index), at.phase ^ 1);
            rows.store(w.stage(at.index), C::Y_SPAN);
            fence_proxy_async();
            mbarrier_arrive(w.full(at.index));
            if (k + C::Y_WARPS < w.k_last) rows.load(k + C::Y_WARPS);
            turn = C::Y_WARPS - 1;
        }
    }
}

/* Where the 4 scales of a row lie among those of a stage; those of the next 64 along K 512 bytes on. */
__device__ __forceinline__ uint32_t scale_place(int row) {
    return row / SM90_ATOM_ROWS * SM90_BLOCK_BYTES + row % 32 * 16 + row % SM90_ATOM_ROWS / 32 * 4;
}

/* The products of one tile. A slot is released when the first group of the next stage has been issued, by every lane:
 * each has read x for itself, and a warp's barrier in the loop would end the overlap of wgmma (measured). */
template <class C>
__device__ __forceinline__ void multiply(const share<C> &w, pipeline_state<C::STAGES> &at, sums<C> &acc) {
    constexpr int GROUPS = 4 / C::GROUP_WORDS, STEPS = 2 * C::GROUP_WORDS;
    int lane = threadIdx.x % 32, t = lane % 4, warp = threadIdx.x / 32;
    int row = warp / 4 * 64 * C::X_TILES + warp % 4 * 16 + lane / 4; /* and 8, 64, 72 on */
    uint32_t values = C::X_AT + row * 64 + t * 8, scales = C::SFX_AT + scale_place(row) + t;
    uint32_t tail_mask[2] = {w.tail_mask(t), w.tail_mask(4 + t)}, previous = 0;
    pin(values), pin(scales), pin(tail_mask[0]), pin(tail_mask[1]);
    uint32_t a[2][C::X_TILES][STEPS][4];
    uint2 x[C::X_TILES][2][2]; /* [tile of 64 rows][64 along K][row, 8 on] */
    uint32_t scale[C::X_TILES][2][2];
    auto load_x = [&] {
        uint32_t stage = w.stage(at.index);
        mbarrier_wait(w.full(at.index), at.phase);
#pragma unroll
        for (int i = 0; i < C::X_TILES; i++)
#pragma unroll
            for (int b = 0; b < 2; b++)
#pragma unroll
                for (int h = 0; h < 2; h++) { /* 64 rows on are two quarters of a block of scales on */
                    x[i][b][h] = ld_shared_v2(stage + values + b * 32 + (i * 64 + h * 8) * 64);
                    scale[i][b][h] = ld_shared_u8(stage + scales + b * SM90_ATOM_BYTES + h * 8 * 16 + i * 8);
                }
    };
    if (w.k_first < w.k_last) load_x();
#pragma unroll 1
    for (int32_t k = w.k_first; k < w.k_last; k++) {
        uint64_t y = wgmma_smem_descriptor(w.stage(at.index));
        uint32_t before = w.empty(previous);
        uint32_t scale_pairs[C::X_TILES][2]; /* of both rows */
#pragma unroll
        for (int b = 0; b < 2; b++)
#pragma unroll
            for (int i = 0; i < C::X_TILES; i++) {
                uint32_t unused, bytes = scale[i][b][0] | scale[i][b][1] << 8;
                e4m3x4_to_half2x2(bytes & (k == w.k_tail ? tail_mask[b] : 0x7F7F), scale_pairs[i][b], unused);
            }
#pragma unroll
        for (int group = 0; group < GROUPS; group++) {
            auto &buffer = a[group % 2];
#pragma unroll
            for (int i = 0; i < C::X_TILES; i++)
#pragma unroll
                for (int j = 0; j < C::GROUP_WORDS; j++)
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        int word = group * C::GROUP_WORDS + j, b = word / 2;
                        uint32_t bits = word % 2 ? x[i][b][h].y : x[i][b][h].x, pairs[4];
                        if (h == 0)
                            decode_word<0>(bits, scale_pairs[i][b], pairs);
                        else
                            decode_word<1>(bits, scale_pairs[i][b], pairs);
#pragma unroll
                        for (int q = 0; q < 4; q++) buffer[i][2 * j + q / 2][q % 2 * 2 + h] = pairs[q];
                    }
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < STEPS; step++)
#pragma unroll
                for (int i = 0; i < C::X_TILES; i++) {
                    int all = group * STEPS + step;
                    wgmma_rs<C::TILE_Y>::multiply(acc[i], buffer[i][step],
                                                  y + (all / 4 * C::Y_SPAN + all % 4 * 32) / 16,
                                                  all > 0 || k > w.k_first);
                }
            wgmma_commit_group();
            if (group == GROUPS - 1) { /* x has been decoded */
                previous = at.index;
                at.advance();
                if (k + 1 < w.k_last) load_x();
            }
            wgmma_wait_group<1>();
            if (group == 0 && k > w.k_first) mbarrier_arrive(before);
        }
    }
    wgmma_wait_group<0>();
#pragma unroll
    for (int i = 0; i < C::X_TILES; i++)
#pragma unroll
        for (int j = 0; j < C::TILE_Y / 2; j++) {
            if (w.k_first == w.k_last) acc[i][j] = 0.0f; /* K = 0 */
            pin_float(acc[i][j]);
        }
    if (w.k_first < w.k_last) mbarrier_arrive(w.empty(previous));
}

/* A sum of products, without the power of two that decode.cuh leaves in it. Zero is +0. */
__device__ __forceinline__ float finished(float sum) {
    return __fmaf_rn(sum, DECODED_PRODUCT_UNIT, 0.0f);
}

/* Two numbers in 16 bits each, as round_16: one instruction for either type. */
__device__ __forceinline__ uint32_t round_pair(float x, float y, int32_t type) {
    __half2 half = __floats2half2_rn(x, y);
    __nv_bfloat162 bfloat = __floats2bfloat162_rn(x, y);
    return type == OUT_FP16 ? *(uint32_t *)&half : *(uint32_t *)&bfloat;
}

/* What each lane has of 8 rows and 8 columns, two neighbours of row lane / 4 in a word, with rows and columns changed
 * (PTX ISA 9.0, section 9.7.14.5.17 movmatrix). */
__device__ __forceinline__ uint32_t transpose(uint32_t pair) {
    uint32_t result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
    return result;
}

/* Stores of a quad's row 8 neighbours and the 8 behind them: lane t has the pair 2t of both. Each lane gets a
 * neighbour's pair for one of its own, so that it has 4 in a row, those from two_groups_place() on. */
__device__ __forceinline__ int two_groups_place() {
    return threadIdx.x % 4 / 2 * 4 + threadIdx.x % 2 * 8;
}
__device__ __forceinline__ void store_two_groups(char *to, bool exists, uint32_t first, uint32_t second) {
    bool odd = threadIdx.x % 2;
    uint32_t other = __shfl_xor_sync(0xFFFFFFFF, odd ? first : second, 1);
    if (exists) *(uint2 *)to = odd ? make_uint2(other, second) : make_uint2(first, other);
}

/* 8 columns of y of a warp's 16 rows of x, from the order of wgmma's registers into that of the output, 4 neighbours
 * along an output row to a thread, through the warp's own place in shared memory: rows of 12 numbers or, where x counts
 * columns of the output, of 20. */
__device__ __forceinline__ void turn_group(float *place, bool swap_ab, const float (&v)[4]) {
    int x = threadIdx.x % 32 / 4, y = threadIdx.x % 4 * 2;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        int row = x + r / 2 * 8, column = y + r % 2;
        place[swap_ab ? column * 20 + row : row * 12 + column] = v[r];
    }
}

/* Whether the output is alpha times the sums in 16 bits, all columns exist, and rows start on 8 bytes. */
template <class C>
__device__ __forceinline__ bool is_plain(const gemm_problem &p, const sm90_schedule &s, const tile_place &place) {
    int64_t columns = s.swap_ab ? (int64_t)place.x + C::TILE_X : (int64_t)place.y + C::TILE_Y;
    return !p.c && !p.bias && (!p.alpha || p.alpha_stride == 0) && p.out_type != OUT_FP32 && columns <= p.n &&
           ((uint64_t)p.out | p.out_pitch | p.out_batch) % 8 == 0;
}

/* Finishes the kept columns of a tile of plain output, 16 at a time, out of registers. */
template <bool SWAP_AB, class C>
__device__ __forceinline__ void finish_plain(const gemm_problem &p, const sm90_schedule &s, const tile_place &place,
                                             const kept_columns<C> &kept, const sums<C> &acc) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int32_t x = place.x + warp / 4 * 64 * C::X_TILES + warp % 4 * 16, row = (SWAP_AB ? place.y : x) + lane / 4;
    int32_t rows = (SWAP_AB ? s.y.rows : s.x.rows) - row; /* from this one on */
    int64_t column = SWAP_AB ? x : place.y, eight_rows = 8 * p.out_pitch;
    char *out = (char *)p.out + place.l * p.out_batch + row * p.out_pitch + column * 2;
    float alpha = p.alpha ? *p.alpha : p.alpha_value;
#pragma unroll
    for (int first = 0; first < C::COLUMN_GROUPS; first += 2)
#pragma unroll
        for (int i = 0; i < C::X_TILES; i++) {
            bool have[2] = {kept.have(first), first + 1 < C::COLUMN_GROUPS && kept.have(first + 1)};
            if (!have[0] && !have[1]) continue;
            uint32_t pairs[2][2] = {};
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (first + j / 2 < C::COLUMN_GROUPS) {
                    const float *v = acc[i] + first * 4 + j * 2;
                    pairs[j / 2][j % 2] =
                        round_pair(__fmul_rn(alpha, finished(v[0])), __fmul_rn(alpha, finished(v[1])), p.out_type);
                }
#pragma unroll
            for (int j = 0; j < 2; j++) /* a group, or 8 rows of x */
                if (SWAP_AB) {
                    char *to = out + (first + j) * eight_rows + i * 128 + two_groups_place() * 2;
                    if (have[j])
                        store_two_groups(to, (first + j) * 8 < rows, transpose(pairs[j][0]), transpose(pairs[j][1]));
                } else {
                    char *to = out + (i * 8 + j) * eight_rows + first * 16;
                    bool exists = i * 64 + j * 8 < rows;
                    if (have[0] && have[1])
                        store_two_groups(to + two_groups_place() * 2, exists, pairs[0][j], pairs[1][j]);
                    else if (exists)
                        *(uint32_t *)(to + (have[0] ? 0 : 16) + lane % 4 * 4) = have[0] ? pairs[0][j] : pairs[1][j];
                }
        }
}

/* Finishes the kept columns of a tile of any output, 16 at a time, in a loop: the sums go through shared memory. */
template <class C>
__device__ __forceinline__ void finish_any(const gemm_problem &p, const sm90_schedule &s, const tile_place &place,
                                           const kept_columns<C> &kept, uint8_t *shared, const sums<C> &acc) {
    constexpr int PAIRS = SM90_CEIL_DIV(C::COLUMN_GROUPS, 2);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *turn = (float *)(shared + C::TURN_AT + warp * SM90_EPILOGUE_STAGING_BYTES);
    float4 *own = (float4 *)turn + lane;
    int row = s.swap_ab ? lane / 4 : lane / 2, column = s.swap_ab ? lane % 4 * 4 : lane % 2 * 4; /* of the output */
#pragma unroll 1
    for (int step = 0; step < PAIRS * C::X_TILES; step++) {
        int i = step / PAIRS, first = step % PAIRS * 2;
        bool have[2] = {kept.have(first), first + 1 < C::COLUMN_GROUPS && kept.have(first + 1)};
        if (!have[0] && !have[1]) continue;
#pragma unroll
        for (int j = 0; j < PAIRS * C::X_TILES; j++)
            if (j == step)
#pragma unroll
                for (int g = 0; g < 2; g++)
                    if (j % PAIRS * 2 + g < C::COLUMN_GROUPS) {
                        const float *a = acc[j / PAIRS] + (j % PAIRS * 2 + g) * 4;
                        own[g * 32] = make_float4(finished(a[0]), finished(a[1]), finished(a[2]), finished(a[3]));
                    }
        float4 v[2] = {have[0] ? own[0] : float4{}, have[1] ? own[32] : float4{}};
        int64_t x = place.x + (warp / 4 * C::X_TILES + i) * 64 + warp % 4 * 16, y = place.y + first * 8;
#pragma unroll
        for (int g = 0; g < 2; g++) {
            __syncwarp();
            turn_group(turn, s.swap_ab, {v[g].x, v[g].y, v[g].z, v[g].w});
            __syncwarp();
            float4 four = *(const float4 *)(turn + row * (s.swap_ab ? 20 : 12) + column);
            int64_t m = row + (s.swap_ab ? y + g * 8 : x), n = column + (s.swap_ab ? x : y + g * 8);
            if (have[g] && m < p.m && n < p.n)
                column_epilogue(p, n).store(p, place.l, m, {four.x, four.y, four.z, four.w});
        }
        __syncwarp();
    }
}

/* The end of a tile: the sums of a cluster, and of the helpers if there are any, are brought together, finished and
 * stored. `add_others` adds the helpers'. */
template <class C, class F>
__device__ __forceinline__ void end_tile(const gemm_problem &p, const sm90_schedule &s, const share<C> &w,
                                         const tile_place &place, uint8_t *shared, sums<C> &acc, F add_others) {
    bool plain = is_plain<C>(p, s, place), stored = plain && s.swap_ab;
    with_kept_columns(s, w, [&](const kept_columns<C> &kept) {
        if (kept.units > 1) send_sums(w, kept, acc);
        add_others(kept);
        if (kept.units > 1) {
            mbarrier_wait_cluster(w.parts_full(), 0);
            add_parts(w, kept, acc);
        }
        griddepcontrol_wait();
        if (stored) finish_plain<true>(p, s, place, kept, acc);
    });
    kept_columns<C> kept(s.split_k, w.unit, s.inv_split_k);
    if (!stored && plain) finish_plain<false>(p, s, place, kept, acc);
    if (!plain) finish_any(p, s, place, kept, shared, acc);
}

/* The math warpgroups of a helped kernel. */
template <class C>
__device__ __forceinline__ void compute(const gemm_problem &p, const sm90_schedule &s, share<C> w, piece_walk<C> walk,
                                        uint8_t *shared) {
    pipeline_state<C::STAGES> at;
    while (walk.next()) {
        sums<C> acc;
        w.k_first = walk.k_first, w.k_last = walk.k_last;
        multiply(w, at, acc);
        if (walk.contributes()) {
            griddepcontrol_wait();
            contribute(walk, acc);
            continue;
        }
        if (s.split_k > 1) barrier_cluster_wait();
        end_tile(p, s, w, walk.place, shared, acc, [&](const kept_columns<C> &kept) {
            if (walk.receives()) add_contributions(w, walk, at, kept, acc);
        });
    }
    if (walk.helper >= 0) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) flag_arrive(s.fixup_flags + walk.helper);
        if (s.split_k > 1) barrier_cluster_wait(); /* each that arrives waits */
    }
}

/* The math warpgroups. */
template <class C>
__device__ __forceinline__ void compute(const gemm_problem &p, const sm90_schedule &s, const share<C> &w,
                                        tile_walk<C> walk, uint8_t *shared) {
    pipeline_state<C::STAGES> at;
    for (; walk.more(); walk.advance()) {
        sums<C> acc;
        multiply(w, at, acc);
        if (s.split_k > 1) {
            barrier_cluster_wait(); /* the others have initialised their barriers */
            if (s.partials_in_stages)
                barrier_cluster_arrive(), barrier_cluster_wait(); /* every unit has left its stages */
        }
        end_tile(p, s, w, walk.place, shared, acc, [](const kept_columns<C> &) {});
    }
}

/* All threads: barriers, what the first copies need. Reads no tensor. */
template <class C> __device__ __forceinline__ void prepare(const sm90_schedule &s, const share<C> &w) {
    int warp = threadIdx.x / 32;
    if (warp == C::MATH_WARPS && elect_one()) {
        prefetch_tensormap(&s.x.values);
        if (!C::Y_RAW) prefetch_tensormap(&s.y.values);
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(w.full(i), 1 + (C::Y_RAW ? 32 : 0));
            mbarrier_init(w.empty(i), 32 * C::MATH_WARPS);
        }
        mbarrier_init(w.parts_full(), 1);
        fence_mbarrier_init();
        bool helps = C::HELPED && (int32_t)blockIdx.y < s.worker_clusters; /* who is sent nothing */
        if (s.split_k > 1 && !helps) {
            kept_columns<C> kept(s.split_k, w.unit, s.inv_split_k);
            mbarrier_arrive_expect_tx(w.parts_full(),
                                      (s.split_k - 1) * (kept.last - kept.first) * C::X_TILES * C::MATH_WARPS * 512);
        }
    }
    __syncwarp();
    if (s.split_k > 1) barrier_cluster_arrive_relaxed(); /* waited for where sums are sent */
    __syncthreads();
}

template <class C> __device__ __forceinline__ void gemm(const gemm_problem &p, const sm90_schedule &s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    share<C> w(p, s, shared_address(shared));
    if (w.base % 1024) __trap(); /* the swizzle is taken of absolute addresses */
    prepare(s, w);
    std::conditional_t<C::HELPED, piece_walk<C>, tile_walk<C>> walk(s, w);
    int warp = threadIdx.x / 32;
    if (warp >= C::MATH_WARPS) {
        setmaxnreg_dec<C::LOAD_REGISTERS>();
        int index = warp - C::MATH_WARPS - 1; /* behind the warp that loads */
        if (index < 0 && elect_one()) loader<C>(s, w).run(walk);
        if constexpr (C::Y_RAW)
            if (index >= 0) decode_y(s, w, walk, index);
        __syncwarp();
        if (s.split_k > 1) barrier_cluster_wait();
        if (s.partials_in_stages) barrier_cluster_arrive_relaxed(), barrier_cluster_wait();
    } else {
        setmaxnreg_inc<C::MATH_REGISTERS>();
        compute(p, s, w, walk, shared);
    }
}

#define KERNEL(id, ...)                                                                                                \
    extern "C" __global__ void __launch_bounds__(config<__VA_ARGS__>::THREADS, 1)                                      \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm90_schedule s) {                  \
        gemm<config<__VA_ARGS__>>(p, s);                                                                               \
    }
SM90_GEMM_CONFIGS(KERNEL)
