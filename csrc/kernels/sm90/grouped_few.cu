/* Products of groups of a few rows of fp16 or bf16 A, each group by an NVFP4 matrix of its own
 * (common/grouped_problem.h), on Hopper tensor cores: up to 48 rows a tile.
 *
 * As in grouped.cu, mma_a is B, dequantized into the registers that wgmma reads, and rows of A are mma_b. What differs
 * suits a product that reads B at the rate of memory: stages are 256 values along K of whole 128-byte lines of B; copy
 * warps read A where it lies and put it into the order along K that dequantizing leads to, so no pre-pass runs; and
 * store warps write a tile's results, with an activation if there is one, while the math warps are at the next tile.
 *
 *   warps             waits for                     does                                                  arrives at
 *   0-15 (math)       tile_full, full, drained      dequantizes mma_a, wgmma; rounded results to staging  empty, staged
 *   16-19 (copies)    tile_full, empty              rows of A, from global memory through registers       copied
 *   20 (one thread)   tile_empty, empty             finds tiles; TMA loads of B, bulk copies of scales    tile_full, full
 *   21 (one thread)   tile_full, copied             the proxy fence between copies and wgmma              full
 *   22-23 (stores)    tile_full, staged             activation, results to global memory                  drained
 *
 * A math warpgroup has 64 of a tile's 256 columns. With an activation of two parts, a tile has 128 columns of part 0,
 * then the same of part 1. Every width of wgmma adds along K in the same order, so the bits of a row depend on nothing
 * but its operands.
 *
 * Shared memory: stages | staging of a tile, [row][column] in 16 bits, 16-byte chunks swizzled by the row |
 * mbarriers | descriptions of tiles | table of groups. A stage: mma_b [4 spans of 64][row] 128 bytes, then mma_a
 * [row] 128 bytes, both with the 128-byte swizzle; scales of mma_a [block of 128 rows][atom] 512 bytes.
 *
 * A lane dequantizes 64 values of a row in a stage, one atom of scales: words w = 0 to 3 of each half. Chunk 4w + j of a
 * half of mma_b, 16 bytes, has for each lane t of a quad pair j (w4a16.cuh) of the 8 values of word w at 64t.
 *
 * Tails: values past the end of K are zeros in A and in B, and scales there are masked. Rows that A does not have are
 * not copied: their results have the factor NaN. Rows past the end of a group and columns past the end of B reach only
 * results that are not stored. */
#include "kernels/common/dependent.cuh"
#include "kernels/common/group_activation.cuh"
#include "kernels/common/ldmatrix.cuh"
#include "kernels/common/tma.cuh"
#include "kernels/sm90/grouped_few.cuh"
#include "kernels/sm90/mainloop.cuh"

/* ---- B ---- */

/* One thread: stages first to last - 1 of a tile's B. */
template <class C>
__device__ __forceinline__ void load_b(const grouped_problem &p, const sm90_grouped_few_schedule &s,
                                       const few_cta<C> &cta, int32_t l, int32_t column, int32_t first, int32_t last,
                                       pipeline_state<C::STAGES> &state) {
    constexpr int BOXES = TILE_N / BOX_ROWS;
    const gemm_problem &g = p.g;
    const bool both = has_both_parts(p);
    const int32_t atoms = (int32_t)((g.k + 63) / 64);
    int32_t ls[2] = {l, both ? l + 1 : l}, columns[2] = {column, both ? column : column + BOX_ROWS};
    const uint8_t *scales[2];
#pragma unroll
    for (int i = 0; i < BOXES; i++) /* a box behind the last column loads zeros, and scales that are not used */
        scales[i] = g.scale_b + ls[i] * g.scale_b_batch +
                    (columns[i] < g.n ? columns[i] : column) / SM90_ATOM_ROWS * g.scale_b_pitch;
#pragma unroll 1
    for (int32_t k = first; k < last; k++, state.advance()) {
        const uint32_t stage = cta.stage(state.index), full = cta.full(state.index);
        const uint32_t bytes = min(SM90_GROUPED_FEW_ATOMS, atoms - k * SM90_GROUPED_FEW_ATOMS) * SM90_ATOM_BYTES;
        mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
        mbarrier_arrive_expect_tx(full, C::SCALES_OFFSET - C::B_OFFSET + BOXES * bytes);
#pragma unroll
        for (int i = 0; i < BOXES; i++) {
            tma_load_3d<1>(stage + C::B_OFFSET + i * BOX_ROWS * 128, &s.b, k * (STAGE_K / 2), columns[i], ls[i], full,
                           s.b_cache_policy);
            cp_async_bulk(stage + C::SCALES_OFFSET + i * C::BLOCK_SCALES, scales[i] + (int64_t)k * C::BLOCK_SCALES,
                          bytes, full, s.b_cache_policy);
        }
    }
}

/* A converged warp: describes each tile of the CTA, and loads its B. */
template <class C>
__device__ __forceinline__ void produce(const grouped_problem &p, const sm90_grouped_few_schedule &s,
                                        const few_cta<C> &cta, grouped_tiles &tiles, tile_header *headers) {
    const int tile_n = has_both_parts(p) ? TILE_N / 2 : TILE_N;
    pipeline_state<C::STAGES> state;
    pipeline_state<SM90_GROUPED_FEW_TILES_AHEAD> slot;
    fetched_tile<C> next;
    next.next(tiles, p);
    /* B of the first tile is loaded while rows are fetched. */
    int32_t early = min(s.stages_k, C::STAGES);
    for (bool more = true; more; slot.advance(), early = 0) {
        const grouped_tile now = next.tile;
        more = now.rows > 0;
#pragma unroll 1
        for (int is_described = 0; is_described < 2; is_described++) {
            if (is_described) {
                mbarrier_wait(cta.tile_empty(slot.index), slot.phase ^ 1);
                next.write(headers[slot.index], p, tile_n);
                mbarrier_arrive(cta.tile_full(slot.index));
                if (more) next.next(tiles, p);
            }
            if (more && elect_one())
                load_b(p, s, cta, now.l, now.column * tile_n, is_described ? early : 0,
                       is_described ? s.stages_k : early, state);
            __syncwarp();
        }
    }
}

/* ---- A ---- */

/* 16 bytes from L2: the grid before may have written them. */
__device__ __forceinline__ uint4 ld_global_cg(const uint8_t *from) {
    uint4 v;
    asm volatile("ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

/* A copy thread has word w of half h of all four atoms in rows r, r + 16, ...: of a row it reads 16 bytes of each atom,
 * and writes four chunks. Two rows, of a stage or of two, are on their way in registers. */
template <class C> struct a_copies {
    static constexpr int ROWS = C::ROWS / 16, AT_ONCE = 2, STAGES = ROWS % AT_ONCE ? AT_ONCE : 1;
    static_assert(C::ROWS % 16 == 0, "whole rows of copy threads");

    const few_cta<C> &cta;
    const uint8_t *rows[ROWS]; /* NULL: there is none */
    int32_t stages_k, left;    /* stages along K; values from the thread's first one to the end of K */
    uint32_t to;               /* in a stage */
    int row, chunk;
    uint4 atoms[AT_ONCE][4];

    __device__ __forceinline__ a_copies(const few_cta<C> &cta, const gemm_problem &g, int32_t stages_k)
        : cta(cta), stages_k(stages_k) {
        const int thread = threadIdx.x - 32 * MATH_WARPS, word = thread % 4, half = thread / 4 % 2;
        row = thread / 8, chunk = word % 2 * 4, left = (int32_t)g.k - half * 32 - word * 8;
        to = (2 * half + word / 2) * C::SPAN + row * 128;
    }
    __device__ __forceinline__ void begin_tile(const gemm_problem &g, const tile_header &tile) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int32_t from = tile.from[row + 16 * i];
            rows[i] = from >= 0 ? g.a + from * g.a_pitch + ((int32_t)g.k - left) * 2 : NULL;
        }
    }
    /* Loads the piece `number` places behind the first one of stage k. */
    __device__ __forceinline__ void load(int32_t k, int number) {
        k += number / ROWS;
        if (k >= stages_k) return;
        const uint8_t *from = rows[number % ROWS];
#pragma unroll
        for (int atom = 0; atom < 4; atom++) {
            const int32_t at = k * STAGE_K + atom * 64;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (from && at < left) v = ld_global_cg(from + (int64_t)at * 2);
            atoms[number % AT_ONCE][atom] = v;
        }
    }
    __device__ __forceinline__ void store(int number, uint32_t stage) const {
        if (!rows[number % ROWS]) return;
        const uint32_t here = stage + to + number % ROWS * 16 * 128;
        uint32_t pairs[4][4];
#pragma unroll
        for (int atom = 0; atom < 4; atom++) w4a16<C::TYPE>::activations(atoms[number % AT_ONCE][atom], pairs[atom]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            st_shared_v4(here + ((chunk + j) ^ row % 8) * 16, pairs[0][j], pairs[1][j], pairs[2][j], pairs[3][j]);
    }
    __device__ __forceinline__ void copy_tile(pipeline_state<C::STAGES> &state) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) load(0, i);
#pragma unroll 1
        for (int32_t k = 0; k < stages_k; k += STAGES)
#pragma unroll
            for (int i = 0; i < STAGES * ROWS; i++) {
                if (k + i / ROWS >= stages_k) break;
                if (i % ROWS == 0) mbarrier_wait(cta.empty(state.index), state.phase ^ 1);
                store(i, cta.stage(state.index));
                if (i % ROWS == ROWS - 1) {
                    mbarrier_arrive(cta.copied(state.index));
                    state.advance();
                }
                load(k, i + AT_ONCE);
            }
    }
};

/* One thread: passes on copied rows to wgmma. */
template <class C>
__device__ __forceinline__ void pass_on_a(const few_cta<C> &cta, int32_t stages_k, pipeline_state<C::STAGES> &state) {
#pragma unroll 1
    for (int32_t k = 0; k < stages_k; k++, state.advance()) {
        mbarrier_wait(cta.copied(state.index), state.phase);
        fence_proxy_async();
        mbarrier_arrive(cta.full(state.index));
    }
}

/* ---- math ---- */

/* A lane knows this before the first tile: its place in a stage, and where K ends. */
template <class C> struct math_lane {
    int column; /* in a tile, the lane's first one; the other is 8 further */
    uint32_t values, scales, chunk;
    int32_t stages_k, k_tail; /* k_tail: the stage in which K ends; behind all stages if it has no rest */
    uint32_t tail_masks[2];   /* of each half */

    __device__ __forceinline__ math_lane(const gemm_problem &g, int warp, int32_t stages_k) : stages_k(stages_k) {
        const int lane = threadIdx.x % 32, t = lane % 4, row_of_8 = lane / 4;
        column = warp * 16 + row_of_8;
        const int block = column / BOX_ROWS, row = column % BOX_ROWS;
        values = C::B_OFFSET + column * 128, chunk = (2 * t ^ row_of_8) * 16;
        scales = C::SCALES_OFFSET + block * C::BLOCK_SCALES + t * SM90_ATOM_BYTES + row % 32 * 16 + row / 32 * 4;
        k_tail = (int32_t)(g.k / STAGE_K);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int32_t left = (int32_t)(g.k / 16) - k_tail * (STAGE_K / 16) - t * 4 - h * 2;
            tail_masks[h] = left >= 2 ? 0x7F7F : left == 1 ? 0x7F : 0;
        }
        pin(values), pin(scales), pin(chunk);
    }
};

/* The mainloop of one tile, by halves of a stage. A stage is released as in mainloop.cuh. */
template <class C>
__device__ __forceinline__ void few_mainloop(const few_cta<C> &cta, const math_lane<C> &own,
                                             pipeline_state<C::STAGES> &state, float (&acc)[C::WIDTH / 2]) {
    using convert = w4a16<C::TYPE>;
    uint32_t fragments[2][2][4], next_scales[2];
    uint4 next[2];
    auto read = [&](uint32_t stage, int h) { /* rows `column` and 8 further */
                                             const uint32_t at = stage + own.values + (own.chunk ^ h * 16),
                                                            scales = stage + own.scales + 2 * h;
                                             next[0] = ld_shared_v4(at), next[1] = ld_shared_v4(at + 8 * 128);
                                             next_scales[0] = ld_shared_u16(scales),
                                             next_scales[1] = ld_shared_u16(scales + 8 * 16);
    };
    auto wait = [&] {
        const uint32_t stage = cta.stage(state.index);
        mbarrier_wait(cta.full(state.index), state.phase);
        state.advance();
        return stage;
    };
    uint32_t current = state.index, previous = 0, stage = wait();
    read(stage, 0);
#pragma unroll 1
    for (int32_t k = 0; k < own.stages_k; k++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint64_t descriptor = wgmma_smem_descriptor(cta.stage(current) + h * 2 * C::SPAN);
            pin(descriptor); /* one addition a step */
            const uint4 now[2] = {next[0], next[1]};
            const uint32_t mask = k == own.k_tail ? own.tail_masks[h] : 0x7F7F;
            const uint32_t scales[2] = {convert::scales(next_scales[0] & mask), convert::scales(next_scales[1] & mask)};
#pragma unroll
            for (int word = 0; word < 4; word++) {
                auto &of_word = fragments[word % 2];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    uint32_t pairs[4];
                    if (word < 2)
                        convert::template word<0>(word_of(now[r], word), scales[r], pairs);
                    else
                        convert::template word<1>(word_of(now[r], word), scales[r], pairs);
#pragma unroll
                    for (int q = 0; q < 4; q++) of_word[q / 2][q % 2 * 2 + r] = pairs[q];
                }
                wgmma_fence();
#pragma unroll
                for (int step = 0; step < 2; step++) {
                    const int all = 2 * word + step;
                    wgmma_rs<C::WIDTH, C::TYPE>::mma_async(acc, of_word[step],
                                                           descriptor + (all / 4 * C::SPAN + all % 4 * 32) / 16,
                                                           all > 0 || h > 0 || k > 0);
                }
                wgmma_commit_group();
                if (word == 3) {
                    if (h == 0) {
                        read(stage, 1);
                    } else {
                        previous = current, current = state.index;
                        if (k + 1 < own.stages_k) {
                            stage = wait();
                            read(stage, 0);
                        }
                    }
                }
                wgmma_wait_group<1>();
                if (word == 0 && h == 0 && k > 0) mbarrier_arrive(cta.empty(previous));
            }
        }
    }
    wgmma_wait_group<0>();
#pragma unroll
    for (int i = 0; i < C::WIDTH / 2; i++) pin_float(acc[i]);
    mbarrier_arrive(cta.empty(previous));
}

/* alpha and bias of the lane's two columns. */
struct lane_columns {
    float alpha[2], bias[2];

    __device__ __forceinline__ lane_columns(const grouped_problem &p, const tile_header &tile, int column) {
        const gemm_problem &g = p.g;
        const int part = has_both_parts(p) && column >= BOX_ROWS;
        const int64_t l = tile.l + part, first = tile.column + column - part * BOX_ROWS;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int64_t n = first + 8 * i;
            alpha[i] = tile.alphas[part], bias[i] = 0.0f;
            if (n >= g.n) continue;
            if (!has_one_alpha(g)) alpha[i] = g.alpha[g.by_batch & ALPHA_BY_BATCH ? l * g.n + n : n];
            if (g.bias) bias[i] = load_float(g.bias, g.by_batch & BIAS_BY_BATCH ? l * g.n + n : n, g.bias_type);
        }
    }
};

/* Rounded results of the lane's two columns to staging, transposed: a row of the result is one of staging. */
template <class C>
__device__ __forceinline__ void stage_results(const grouped_problem &p, const tile_header &tile, uint32_t staging,
                                              int first_column, const lane_columns &columns,
                                              const float (&acc)[C::WIDTH / 2]) {
    const int lane = threadIdx.x % 32, row = lane % 8, chunk = first_column / 8 + lane / 8 % 2;
    const uint32_t to = staging + row * TILE_N * 2 + (chunk ^ row) * 16;
    const uint32_t factors = shared_address(tile.factors) + lane % 4 * 8;
#pragma unroll
    for (int group = 0; group < C::WIDTH / 8; group++) {
        const uint2 bits = ld_shared_v2(factors + group * 32);
        const float of_row[2] = {__uint_as_float(bits.x), __uint_as_float(bits.y)};
        uint32_t pairs[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float v[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                v[r] = __fmul_rn(columns.alpha[i], rescale(acc[group * 4 + i * 2 + r], w4a16<C::TYPE>::UNIT));
                if (p.g.bias) v[r] = __fadd_rn(v[r], columns.bias[i]);
                v[r] = __fmul_rn(v[r], of_row[r]);
            }
            pairs[i] = round_pair(v[0], v[1], p.g.out_type);
        }
        stmatrix_x2_trans(to + group * 8 * TILE_N * 2, pairs[0], pairs[1]);
    }
}

template <class C>
__device__ __forceinline__ void multiply_tiles(const grouped_problem &p, const sm90_grouped_few_schedule &s,
                                               const few_cta<C> &cta, int warp, const uint8_t *shared) {
    const math_lane<C> own(p.g, warp, s.stages_k);
    const int first_column = own.column - (int)threadIdx.x % 32 / 4; /* of the warp */
    pipeline_state<C::STAGES> state;
    uint32_t phase = 1; /* of the wait for an empty staging buffer */
    tile_reader<C> tiles(cta, shared);
    for (; const tile_header *tile = tiles.next(); phase ^= 1) {
        with_width<C>(tile->rows, [&](auto width) {
            using W = decltype(width);
            const lane_columns columns(p, *tile, own.column);
            /* Without a value the accumulators of all widths would be live around the loop, and not fit. */
            float acc[W::WIDTH / 2] = {};
            few_mainloop<W>((const few_cta<W> &)cta, (const math_lane<W> &)own, state, acc);
            mbarrier_wait(cta.drained(), phase);
            stage_results<W>(p, *tile, cta.staging(), first_column, columns, acc);
            mbarrier_arrive(cta.staged());
        });
        tiles.release();
    }
}

/* ---- stores ---- */

/* Replaces eight results of gate in staging by the activation. up: where those of up are; 0: 1 stands for them. Each
 * activation has code of its own, without branches: values follow each other closely in the pipeline. */
template <int ACTIVATION>
__device__ __forceinline__ void activate_chunk_by(const gating &numbers, int type, uint32_t gate, uint32_t up) {
#pragma unroll 2
    for (int i = 0; i < 4; i++) {
        const uint32_t gates = ld_shared(gate + i * 4), ups = up ? ld_shared(up + i * 4) : 0;
        float v[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float u = value_16(ups >> h * 16 & 0xFFFF, type);
            v[h] = gated(ACTIVATION, value_16(gates >> h * 16 & 0xFFFF, type), up ? u : 1.0f, numbers);
        }
        st_shared(gate + i * 4, round_pair(v[0], v[1], type));
    }
}

__device__ __forceinline__ void activate_chunk(int activation, const gating &numbers, int type, uint32_t gate,
                                               uint32_t up) {
    if (activation == NVFP4_SILU)
        activate_chunk_by<NVFP4_SILU>(numbers, type, gate, up);
    else if (activation == NVFP4_SWIGLU)
        activate_chunk_by<NVFP4_SWIGLU>(numbers, type, gate, up);
    else if (activation == NVFP4_GELU_TANH)
        activate_chunk_by<NVFP4_GELU_TANH>(numbers, type, gate, up);
    else
        activate_chunk_by<NVFP4_RELU2>(numbers, type, gate, up);
}

/* The columns of eight neighbours that exist: with one instruction, if all do and the address is aligned. */
__device__ __forceinline__ void store_chunk(uint16_t *to, uint32_t from, int count) {
    const uint4 v = ld_shared_v4(from);
    if (count >= 8 && (uintptr_t)to % 16 == 0) {
        *(uint4 *)to = v;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < count) to[i] = (uint16_t)(word_of(v, i / 2) >> i % 2 * 16);
}

template <class C>
__device__ __forceinline__ void store_tiles(const grouped_problem &p, const sm90_grouped_few_schedule &s,
                                            const few_cta<C> &cta, int thread, const uint8_t *shared) {
    const bool both = has_both_parts(p);
    const int chunks_log2 = both ? 4 : 5; /* chunks of a row of the tile's results */
    uint32_t phase = 0;
    for (tile_reader<C> tiles(cta, shared); const tile_header *tile = tiles.next(); phase ^= 1) {
        const int rows = tile->rows, column = tile->column;
        char *const out =
            (char *)p.g.out + tile->row * p.g.out_pitch + tile->part * p.g.out_batch + (int64_t)column * 2;
        tiles.release();
        const uint32_t staging = cta.staging();
        mbarrier_wait(cta.staged(), phase);
#pragma unroll 1
        for (int i = thread; i < rows << chunks_log2; i += 32 * STORE_WARPS) {
            const int row = i >> chunks_log2, chunk = i & ((1 << chunks_log2) - 1);
            const int count = (int)min(p.g.n - column - chunk * 8, (int64_t)8);
            if (count <= 0) continue;
            const uint32_t of_row = staging + row * TILE_N * 2, at = of_row + (chunk ^ row % 8) * 16;
            if (p.has_activation)
                activate_chunk(p.activation, s.numbers, p.g.out_type, at, both ? at + BOX_ROWS * 2 : 0);
            store_chunk((uint16_t *)(out + row * p.g.out_pitch) + chunk * 8, at, count);
        }
        mbarrier_arrive(cta.drained());
    }
}

/* ---- the kernel ---- */

/* Initializes mbarriers. Reads no tensor, so it runs before griddepcontrol.wait. */
template <class C> __device__ __forceinline__ void prologue(const sm90_grouped_few_schedule &s, const few_cta<C> &cta) {
    if (threadIdx.x / 32 == 0 && elect_one()) {
        prefetch_tensormap(&s.b);
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(cta.full(i), 1 + 1);
            mbarrier_init(cta.empty(i), 32 * MATH_WARPS);
            mbarrier_init(cta.copied(i), 32 * COPY_WARPS);
        }
        for (int i = 0; i < SM90_GROUPED_FEW_TILES_AHEAD; i++) {
            mbarrier_init(cta.tile_full(i), 32);
            mbarrier_init(cta.tile_empty(i), TILE_READERS);
        }
        mbarrier_init(cta.staged(), 32 * MATH_WARPS);
        mbarrier_init(cta.drained(), 32 * STORE_WARPS);
        fence_mbarrier_init();
    }
    __syncwarp();
}

template <class C>
__device__ __forceinline__ void multiply(const grouped_problem &p, const sm90_grouped_few_schedule &s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const few_cta<C> cta{shared_address(shared)};
    if (cta.base % 1024) __trap(); /* the swizzle pattern follows absolute addresses */
    prologue(s, cta);
    begin_dependent_grid();
    group_table &table = *(group_table *)(shared + C::TABLE_OFFSET);
    /* Scratch in the staging buffers, which the barrier at the end of group_table::fill frees. */
    table.fill(p.ends, p.groups, (int)p.g.m, C::ROWS,
               *(group_table_scratch<SM90_GROUPED_FEW_THREADS> *)(shared + C::STAGING_OFFSET));

    const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
    if (warp < MATH_WARPS) {
        setmaxnreg_inc<MATH_REGISTERS>();
        multiply_tiles(p, s, cta, warp, shared);
    } else if (warp < MATH_WARPS + COPY_WARPS) {
        setmaxnreg_dec<COPY_REGISTERS>();
        a_copies<C> copies(cta, p.g, s.stages_k);
        pipeline_state<C::STAGES> state;
        for (tile_reader<C> tiles(cta, shared); const tile_header *tile = tiles.next();) {
            copies.begin_tile(p.g, *tile);
            tiles.release();
            copies.copy_tile(state);
        }
    } else {
        setmaxnreg_dec<OTHER_REGISTERS>();
        const int role = warp - MATH_WARPS - COPY_WARPS;
        if (role == 0) {
            grouped_tiles tiles(table, p, s.tiles_n, blockIdx.x, gridDim.x, p.has_activation);
            produce(p, s, cta, tiles, (tile_header *)(shared + C::TILES_OFFSET));
        } else if (role == 1) {
            pipeline_state<C::STAGES> state;
            for (tile_reader<C> tiles(cta, shared); tiles.next();) {
                tiles.release();
                if (elect_one()) pass_on_a(cta, s.stages_k, state);
                __syncwarp();
            }
        } else {
            store_tiles(p, s, cta, threadIdx.x - 32 * (MATH_WARPS + COPY_WARPS + 2), shared);
        }
    }
}

#define KERNEL(id, ...)                                                                                                \
    extern "C" __global__ void __launch_bounds__(SM90_GROUPED_FEW_THREADS, 1)                                          \
        nvfp4_##id(const __grid_constant__ grouped_problem p, const __grid_constant__ sm90_grouped_few_schedule s) {   \
        multiply<config<__VA_ARGS__>>(p, s);                                                                           \
    }
SM90_GROUPED_FEW_CONFIGS(KERNEL)
