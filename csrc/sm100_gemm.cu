/* C = epilogue(A . B^T) of NVFP4 operands on the tensor cores of Blackwell (tcgen05.mma kind::mxf4nvf4): raw values and
 * scales go from global memory to the tensor core, nothing is decoded.
 *
 * The side of the mma with 128 rows a CTA is called x, the other one y: x is B and y is A where that moves fewer bytes
 * (swap_ab), so that weights lie on the side that each CTA reads once. A unit is one CTA or a pair (GROUP = 2) whose
 * tensor cores multiply together: 256 rows of x, of which each CTA holds half, by TILE_Y of y, of which each holds
 * half, so that a pair moves three quarters of what two CTAs would.
 *
 *   warp 4  producer   one thread   empty[slot] -> values by tensor map, scales as whole atoms -> full[slot]
 *   warp 5  mma        one thread   full[slot]  -> scales to tensor memory, products           -> empty[slot]
 *                                   acc_empty   -> ... after the tile's last stage             -> acc_full
 *   warps 0-3 epilogue              acc_full    -> tensor memory to registers to global memory -> acc_empty
 *   warps 6-9 gather (GATHER only)  empty[slot] -> cp.async of scales, and values if need be   -> full[slot]
 *
 * In a pair the barriers full and acc_empty of the CTA of even rank, the leader, count for both, only the leader's mma
 * warp works, and its commits arrive in both CTAs. Barriers are one a slot; a slot's phase flips each time round.
 *
 * Scales in tensor memory lie in columns of their own for each slot. A copy into them is issued behind the wait on
 * full[slot], which lies behind the wait on empty[slot], which says that the products that read them have ended: so no
 * copy overtakes an mma, an order that tcgen05 does not promise by itself.
 *
 * Shared memory of a CTA: stages of [x values 16384 | y values 128 a row | x scales 2048 | y scales 2048 or 4096], then
 * barriers; in KiB 128x16 88, 128x32 96, 128x64 112, 128x128 216, 256x64 96, 256x128 112, 256x128_deep 224, 256x256
 * 190 (SM100_SHARED_BYTES; where K is cut SM100_PARTIALS_BYTES more). Tensor memory, columns: accumulators, then 32
 * (256x256: 48) a stage: 144, 160, 192, 448, 192, 256, 512, 496 used. What takes at most 113 KiB and 256 columns leaves
 * room on its SM for a CTA of the next call, which is allowed to start early (dependent launch), prepares, and waits
 * for the end of this one before it touches a tensor.
 *
 * K may be cut between the units of a cluster (split_k). Each then keeps TILE_Y / split_k columns of the tile; the
 * others send it their sums of these, [unit][4 columns][128 lanes][4] floats, and it adds them in the order of the
 * units. They go to memory behind the barriers, or where that would cost the next call its place on the SM, into the
 * stages, once every unit has left them.
 *
 * Tails. Rows past the end of a tensor arrive as zeros or are left as they are: they reach only results that are not
 * stored. Along K the last stage multiplies only blocks of 64 that exist. Bulk copies need K % 64 == 0, scale atoms and
 * rows on 16 bytes; everything else is the gather kernels', which replace scales past K by zero (values are finite
 * whatever the byte). */
#include "device/cluster.cuh"
#include "device/cp_async.cuh"
#include "device/dump.cuh"
#include "device/epilogue.cuh"
#include "device/mbarrier.cuh"
#include "device/tcgen05.cuh"
#include "device/tma.cuh"
#include "sm100_configs.h"

enum { EPILOGUE_WARPS = 4, PRODUCER_WARP = 4, MMA_WARP = 5, GATHER_WARP = 6, GATHER_THREADS = 128 };

template <int GROUP_, int TILE_Y_, int STAGES_, int ACCUMULATORS_, int GATHER_> struct config {
    static constexpr int GROUP = GROUP_, TILE_Y = TILE_Y_, STAGES = STAGES_, ACCUMULATORS = ACCUMULATORS_;
    static constexpr bool GATHER = GATHER_;
    static constexpr int THREADS = SM100_THREADS(GATHER), TILE_X = SM100_CTA_ROWS * GROUP, CTA_Y = TILE_Y / GROUP;
    /* Where the parts of a stage begin; x values come first. */
    static constexpr int STAGE_BYTES = SM100_STAGE_BYTES(GROUP, TILE_Y), Y_AT = SM100_X_BYTES;
    static constexpr int SFX_AT = Y_AT + SM100_Y_BYTES(GROUP, TILE_Y), SFY_AT = SFX_AT + SM100_SFX_BYTES;
    static constexpr int ATOMS_Y = SM100_CEIL_DIV(TILE_Y, SM100_ATOM_ROWS); /* for each 64 along K */
    /* Behind the stages. */
    static constexpr int FULL_AT = STAGES * STAGE_BYTES, EMPTY_AT = FULL_AT + 8 * STAGES;
    static constexpr int ACC_FULL_AT = EMPTY_AT + 8 * STAGES, ACC_EMPTY_AT = ACC_FULL_AT + 8 * ACCUMULATORS;
    static constexpr int PARTS_FULL_AT = ACC_EMPTY_AT + 8 * ACCUMULATORS, TMEM_AT = PARTS_FULL_AT + 8;
    static constexpr int PARTS_AT = SM100_SHARED_BYTES(GROUP, TILE_Y, STAGES);
    /* Columns of tensor memory. */
    static constexpr int COLUMNS = SM100_TMEM_COLUMNS(TILE_Y, STAGES, ACCUMULATORS);
    static constexpr int SCALES_AT = ACCUMULATORS * TILE_Y, SCALE_COLUMNS = SM100_SCALE_COLUMNS(TILE_Y);
    /* This call's and the next one's: what registers are allotted for. */
    static constexpr int CTAS_PER_SM = COLUMNS <= 256 && PARTS_AT <= 113 * 1024 ? 2 : 1;
    static constexpr int CHUNK = TILE_Y < 32 ? TILE_Y : 32; /* columns that the epilogue loads at once */

    static_assert(STAGE_BYTES % 1024 == 0 && SFX_AT % 1024 == 0, "the swizzle's pattern begins on 1024 bytes");
    static_assert(TMEM_AT + 4 <= PARTS_AT && PARTS_AT % 16 == 0, "the barriers fit");
    static_assert(SM100_SHARED_BYTES(GROUP, TILE_Y, STAGES) <= 227 * 1024, "what Blackwell gives a CTA");
    static_assert(SM100_USED_COLUMNS(TILE_Y, STAGES, ACCUMULATORS) <= COLUMNS, "tensor memory has 512 columns");
    static_assert(SCALES_AT % 4 == 0, "scales of 128 rows begin on 4 columns");
    static_assert(!GATHER || GROUP == 1, "a thread's copies cannot signal the other CTA of a pair");
    static_assert(CHUNK == 16 || CHUNK == 32, "what tcgen05_ld takes");
};

/* This CTA's share of the work. */
template <class C> struct share {
    uint32_t base;           /* shared address of the stages */
    uint32_t rank;           /* in the pair */
    uint32_t unit;           /* in the cluster: the part of K */
    uint32_t first, step;    /* of tiles */
    int32_t k_first, k_last; /* stages along K */
    int32_t k_blocks;        /* of 64, of the whole K */
    uint32_t parts;          /* shared address of the partial sums */

    __device__ __forceinline__ share(const gemm_problem &p, const sm100_schedule &s, uint32_t base) : base(base) {
        uint32_t in_cluster = C::GROUP * s.split_k, cluster = cluster_ctarank();
        rank = cluster % C::GROUP;
        unit = cluster / C::GROUP;
        first = blockIdx.x / in_cluster;
        step = gridDim.x / in_cluster;
        k_first = (int32_t)((int64_t)unit * s.k_stages / s.split_k);
        k_last = (int32_t)((int64_t)(unit + 1) * s.k_stages / s.split_k);
        k_blocks = (int32_t)((p.k + SM100_MMA_K - 1) / SM100_MMA_K);
        parts = base + (s.partials_in_stages ? 0 : C::PARTS_AT);
    }

    __device__ __forceinline__ uint32_t stage(uint32_t slot) const { return base + slot * C::STAGE_BYTES; }
    __device__ __forceinline__ uint32_t full(uint32_t slot) const { return base + C::FULL_AT + 8 * slot; }
    __device__ __forceinline__ uint32_t empty(uint32_t slot) const { return base + C::EMPTY_AT + 8 * slot; }
    __device__ __forceinline__ uint32_t parts_full() const { return base + C::PARTS_FULL_AT; }
    __device__ __forceinline__ uint32_t acc_full(uint32_t index) const { return base + C::ACC_FULL_AT + 8 * index; }
    __device__ __forceinline__ uint32_t acc_empty(uint32_t index) const { return base + C::ACC_EMPTY_AT + 8 * index; }

    /* The leader's barrier at that address: in a pair the CTA of even rank. */
    __device__ __forceinline__ uint32_t of_leader(uint32_t barrier) const {
        return C::GROUP == 1 ? barrier : mapa(barrier, unit * C::GROUP);
    }
    /* Blocks of 64 along K that a stage has. */
    __device__ __forceinline__ int blocks(int32_t k_stage) const {
        return min(SM100_STAGE_ATOMS, k_blocks - k_stage * SM100_STAGE_ATOMS);
    }
};

/* Which rows of x and y a tile begins with, and its batch. Of x the rows of this CTA. */
struct tile_place {
    int32_t x, y, l;
};

/* The tiles of this CTA, one after the other. */
template <class C> struct tile_walk {
    const sm100_schedule &s;
    uint32_t tile, step, rank;
    tile_place place;

    __device__ __forceinline__ tile_walk(const sm100_schedule &s, const share<C> &w)
        : s(s), tile(w.first), step(w.step), rank(w.rank) {
        locate();
        pin(place.x), pin(place.y), pin(place.l); /* divisions: before the wait for prior grids */
    }
    __device__ __forceinline__ bool more() const { return tile < (uint32_t)s.tiles; }
    /* Whether there is a tile so many further on. */
    __device__ __forceinline__ bool reaches(uint32_t tiles) const { return tile + tiles * step < (uint32_t)s.tiles; }
    __device__ __forceinline__ void advance() {
        tile += step;
        if (more()) locate();
    }

  private:
    __device__ __forceinline__ void locate() {
        uint32_t rest = tile / s.tiles_y;
        place.y = (int32_t)(tile % s.tiles_y) * C::TILE_Y;
        place.x = (int32_t)(rest % s.tiles_x) * C::TILE_X + (int32_t)rank * SM100_CTA_ROWS;
        place.l = (int32_t)(rest / s.tiles_x);
    }
};

/* One thread: fills the slots. In gather kernels only with the values, and only where tensor maps reach them. */
template <class C>
__device__ __forceinline__ void produce(const sm100_schedule &s, const share<C> &w, tile_walk<C> walk) {
    pipeline_state<C::STAGES> at;
    for (; walk.more(); walk.advance()) {
        tile_place place = walk.place;
        int32_t y_values = place.y + (int32_t)w.rank * C::CTA_Y;
        int32_t x_block = place.x / SM100_ATOM_ROWS, y_block = place.y / SM100_ATOM_ROWS;
        const uint8_t *sfx = s.x.scale + place.l * s.x.scale_batch + x_block * s.x.scale_pitch;
        const uint8_t *sfy = s.y.scale + place.l * s.y.scale_batch + y_block * s.y.scale_pitch;
#pragma unroll 1 /* unrolled, the preparations would delay the first copy */
        for (int32_t k = w.k_first; k < w.k_last; k++, at.advance()) {
            uint32_t stage = w.stage(at.index), own = w.full(at.index), full = w.of_leader(own);
            mbarrier_wait(w.empty(at.index), at.phase ^ 1);
            if constexpr (C::GATHER)
                mbarrier_arrive_expect_tx(own, s.values_by_tma ? C::SFX_AT : 0);
            else if constexpr (C::GROUP == 1)
                mbarrier_arrive_expect_tx(own, C::SFX_AT + 2 * w.blocks(k) * SM100_ATOM_BYTES);
            else if (w.rank == 0) /* of both CTAs; what lies out of bounds counts as well */
                mbarrier_arrive_expect_tx(own, 2 * C::STAGE_BYTES);
            if (!C::GATHER || s.values_by_tma) {
                int32_t byte = k * (SM100_STAGE_K / 2);
                tma_load_3d<C::GROUP>(stage, &s.x.values, byte, place.x, place.l, full, s.x.policy);
                tma_load_3d<C::GROUP>(stage + C::Y_AT, &s.y.values, byte, y_values, place.l, full, s.y.policy);
            }
            if constexpr (C::GROUP == 2) { /* only tensor copies can signal the leader's barrier */
                int32_t atom = k * SM100_STAGE_ATOMS;
                tma_load_4d_2sm(stage + C::SFX_AT, &s.x.scales, 0, atom, x_block, place.l, full, s.x.policy);
                tma_load_4d_2sm(stage + C::SFY_AT, &s.y.scales, 0, atom, y_block, place.l, full, s.y.policy);
            } else if constexpr (!C::GATHER) {
                uint32_t bytes = w.blocks(k) * SM100_ATOM_BYTES;
                cp_async_bulk(stage + C::SFX_AT, sfx + (int64_t)k * SM100_SFX_BYTES, bytes, own, s.x.policy);
                cp_async_bulk(stage + C::SFY_AT, sfy + (int64_t)k * SM100_SFX_BYTES, bytes, own, s.y.policy);
            }
        }
    }
    /* The last releases arrive in this CTA's memory too: it must be there. */
    for (int i = 0; i < C::STAGES; i++, at.advance()) mbarrier_wait(w.empty(at.index), at.phase ^ 1);
}

/* Warps 6-9: thread r copies the scales of row r of both sides, a word an atom, and its pieces of the values. */
template <class C> struct gatherer {
    const gemm_problem &p;
    const sm100_schedule &s;
    const share<C> &w;
    int thread;
    bool linear, words; /* words: all scales of 4 blocks lie on 4 bytes */

    __device__ __forceinline__ gatherer(const gemm_problem &p, const sm100_schedule &s, const share<C> &w)
        : p(p), s(s), w(w), thread(threadIdx.x - GATHER_WARP * 32), linear(p.scale_layout == SCALES_LINEAR) {
        uint64_t bits = (uint64_t)s.x.scale | (uint64_t)s.y.scale | s.x.scale_pitch | s.y.scale_pitch;
        words = (bits | s.x.scale_batch | s.y.scale_batch) % 4 == 0;
    }

    /* 4 scales of one row for each atom of the stage; those past K become zero. */
    __device__ __forceinline__ void scales(uint32_t to, const sm100_operand &x, int64_t row, int64_t l,
                                           int32_t k_stage) const {
        if (row >= x.rows) return;
        to += thread % 32 * 16 + thread / 32 * 4;
        int64_t atom = (int64_t)k_stage * SM100_STAGE_ATOMS;
        const uint8_t *from =
            x.scale + l * x.scale_batch +
            (linear ? row * x.scale_pitch + atom * 4
                    : row / 128 * x.scale_pitch + atom * SM100_ATOM_BYTES + row % 32 * 16 + row % 128 / 32 * 4);
        int64_t left = p.k / 16 - atom * 4;
        for (int i = 0; i < w.blocks(k_stage); i++, left -= 4, from += linear ? 4 : SM100_ATOM_BYTES) {
            int valid = (int)min((int64_t)4, left);
            if (words) {
                cp_async_4_zfill(to + i * SM100_ATOM_BYTES, from, valid);
            } else {
                uint32_t word = 0;
                for (int byte = 0; byte < valid; byte++) word |= (uint32_t)from[byte] << byte * 8;
                st_shared(to + i * SM100_ATOM_BYTES, word);
            }
        }
    }

    /* Rows of 128 bytes under the swizzle, in pieces of 8 bytes: 16 threads a row. */
    template <int ROWS>
    __device__ __forceinline__ void values(uint32_t to, const sm100_operand &x, int32_t row, int64_t l,
                                           int32_t k_stage) const {
        int piece = thread % 16;
        int64_t byte = (int64_t)k_stage * (SM100_STAGE_K / 2) + piece * 8;
        if (byte >= p.k / 2) return;
        const uint8_t *from = x.data + l * x.batch + byte;
        for (int i = thread / 16; i < ROWS && row + i < x.rows; i += GATHER_THREADS / 16)
            cp_async_8(to + i * 128 + ((piece / 2) ^ (i % 8)) * 16 + piece % 2 * 8, from + (row + i) * x.pitch);
    }

    __device__ __forceinline__ void announce(uint32_t slot) const {
        fence_proxy_async();
        mbarrier_arrive(w.full(slot));
    }

    /* A slot is announced when STAGES - 2 later ones have been started, and the last ones at the end: two are with the
     * tensor core meanwhile, and the wait is for the older. */
    __device__ __forceinline__ void run(tile_walk<C> walk) const {
        pipeline_state<C::STAGES> at, landed;
        int pending = 0;
        for (; walk.more(); walk.advance()) {
            tile_place place = walk.place;
            for (int32_t k = w.k_first; k < w.k_last; k++, at.advance()) {
                uint32_t stage = w.stage(at.index);
                mbarrier_wait(w.empty(at.index), at.phase ^ 1);
                scales(stage + C::SFX_AT, s.x, place.x + thread, place.l, k);
                if (thread < C::TILE_Y) scales(stage + C::SFY_AT, s.y, place.y + thread, place.l, k);
                if (!s.values_by_tma) {
                    values<SM100_CTA_ROWS>(stage, s.x, place.x, place.l, k);
                    values<C::TILE_Y>(stage + C::Y_AT, s.y, place.y, place.l, k);
                }
                cp_async_commit_group();
                if (++pending < C::STAGES - 1) continue;
                cp_async_wait_group<C::STAGES - 2>();
                announce(landed.index);
                landed.advance();
                pending--;
            }
        }
        cp_async_wait_group<0>();
        for (; pending; pending--, landed.advance()) announce(landed.index);
    }
};

/* The products of one stage, by one thread. */
template <class C> struct stage_products {
    uint64_t x, y, atoms_x, atoms_y; /* descriptors of the first */
    uint32_t d, sfx, sfy;            /* tensor memory */
    uint32_t half;                   /* of 128-row atoms a tile of 64 rows takes a half: 2 of the 4 columns */

    __device__ __forceinline__ stage_products(uint32_t stage, uint32_t d, uint32_t scales, uint32_t half)
        : x(smem_descriptor_sw128(stage)), y(x + C::Y_AT / 16), atoms_x(smem_descriptor_atom(stage) + C::SFX_AT / 16),
          atoms_y(atoms_x + (C::SFY_AT - C::SFX_AT) / 16), d(d), sfx(scales), sfy(scales + 4 * SM100_STAGE_ATOMS),
          half(half) {}

    /* add: to what d holds. ALL: every block of 64 is there, and the instructions follow each other without a branch.
     */
    template <bool ALL> __device__ __forceinline__ void issue(int blocks, bool add, dumper<C> &dump) const {
#pragma unroll
        for (int i = 0; i < SM100_STAGE_ATOMS; i++) {
            if (!ALL && i >= blocks) break;
            tcgen05_cp_atom<C::GROUP>(sfx + 4 * i, atoms_x + i * SM100_ATOM_BYTES / 16);
#pragma unroll
            for (int j = 0; j < C::ATOMS_Y; j++)
                tcgen05_cp_atom<C::GROUP>(sfy + 4 * (i * C::ATOMS_Y + j),
                                          atoms_y + (j * SM100_SFX_BYTES + i * SM100_ATOM_BYTES) / 16);
        }
#pragma unroll
        for (int i = 0; i < SM100_STAGE_ATOMS; i++) {
            if (!ALL && i >= blocks) break;
            mma_operands m{d,
                           x + i * (SM100_MMA_K / 32),
                           y + i * (SM100_MMA_K / 32),
                           instruction_descriptor(C::TILE_X, C::TILE_Y),
                           sfx + 4 * i,
                           sfy + 4 * i * C::ATOMS_Y + half,
                           add || i > 0};
            tcgen05_mma_mxf4nvf4<C::GROUP>(m.d, m.x, m.y, m.instruction, m.sfx, m.sfy, m.add);
            dump.block(m, atoms_x, atoms_y);
        }
    }
};

/* One thread, of a pair the leader's: scales to tensor memory, then products. */
template <class C> __device__ __forceinline__ void multiply(const share<C> &w, tile_walk<C> walk, uint32_t tmem) {
    uint16_t pair = (uint16_t)(3u << w.unit * 2);
    pipeline_state<C::STAGES> at;
    pipeline_state<C::ACCUMULATORS> acc;
    dumper<C> dump(walk.s, w);
    if (w.k_first == w.k_last) return; /* K = 0: the epilogue stores zeros */
    for (; walk.more(); walk.advance(), acc.advance()) {
        uint32_t half = C::TILE_Y == 64 ? walk.place.y / 64 % 2 * 2 : 0;
        mbarrier_wait(w.acc_empty(acc.index), acc.phase ^ 1);
        tcgen05_fence_after_thread_sync();
        for (int32_t k = w.k_first; k < w.k_last; k++, at.advance()) {
            mbarrier_wait(w.full(at.index), at.phase);
            tcgen05_fence_after_thread_sync();
            /* Here, not before the wait, where the compiler would not know that one thread alone needs it. */
            stage_products<C> products(w.stage(at.index), tmem + acc.index * C::TILE_Y,
                                       tmem + C::SCALES_AT + at.index * C::SCALE_COLUMNS, half);
            int blocks = w.blocks(k);
            dump.stage(at.index, at.phase);
            if (blocks == SM100_STAGE_ATOMS)
                products.template issue<true>(blocks, k > w.k_first, dump);
            else
                products.template issue<false>(blocks, k > w.k_first, dump);
            tcgen05_commit<C::GROUP>(w.empty(at.index), pair);
        }
        tcgen05_commit<C::GROUP>(w.acc_full(acc.index), pair);
    }
}

/* How the sums of a lane, a row of x, reach the output. */
struct output {
    const gemm_problem &p;
    bool swap_ab, plain;
    bool exists; /* the row of x */
    int64_t l, x;
    single_epilogue column; /* of x, where it counts columns */

    __device__ __forceinline__ output(const gemm_problem &p, const sm100_schedule &s, int64_t l, int64_t x)
        : p(p), swap_ab(s.swap_ab), plain(!p.c && !p.bias && (swap_ab || !p.alpha || p.alpha_stride == 0)),
          exists(x < s.x.rows), l(l), x(x), column(p, s.swap_ab ? min(x, (int64_t)s.x.rows - 1) : 0) {}

    /* The sums of rows of y from y on, of which the first `count` exist. */
    template <bool PLAIN, int COUNT>
    __device__ __forceinline__ void store(int64_t y, float (&v)[COUNT], int count) const {
        if (!exists) return;
        if (swap_ab)
            column.store<PLAIN>(p, l, y, v, count);
        else
            store_row<PLAIN>(p, l, x, y, v, count);
    }
};

/* Where K is cut: the columns of a tile that this unit keeps, the first of them being TILE_Y / split_k * unit, and what
 * the other units sent of them to this lane. */
struct kept_columns {
    int count, unit, units;
    const float4 *parts;

    /* Adds up columns from `first` on in the order of the units; v is this unit's part. */
    template <int COUNT> __device__ __forceinline__ void add(float (&v)[COUNT], int first) const {
        const float4 *part = parts + first / 4 * SM100_CTA_ROWS;
        float sum[COUNT] = {};
#pragma unroll 1
        for (int i = 0; i < units; i++) {
            if (i == unit) {
#pragma unroll
                for (int j = 0; j < COUNT; j++) sum[j] += v[j];
                continue;
            }
#pragma unroll
            for (int j = 0; j < COUNT; j += 4)
                if (first + j < count) {
                    float4 sent = part[j / 4 * SM100_CTA_ROWS];
                    sum[j] += sent.x, sum[j + 1] += sent.y, sum[j + 2] += sent.z, sum[j + 3] += sent.w;
                }
            part += count / 4 * SM100_CTA_ROWS;
        }
#pragma unroll
        for (int j = 0; j < COUNT; j++) v[j] = sum[j];
    }
};

/* Stores the first `columns` of an accumulator's kept columns, COUNT at a time, to the rows of y from y on. The next
 * load runs while a chunk is stored. */
template <bool PLAIN, int COUNT>
__device__ __forceinline__ void store_sums(const output &out, uint32_t accumulator, const kept_columns &kept, int32_t y,
                                           int columns) {
    float v[COUNT] = {}, next[COUNT] = {}; /* K = 0: sums of nothing */
    if (kept.units) {
        tcgen05_ld(v, accumulator);
        tcgen05_wait_ld(v);
    }
#pragma unroll 1
    for (int chunk = 0; chunk < columns; chunk += COUNT) {
        bool more = kept.units && chunk + COUNT < columns;
        if (more) tcgen05_ld(next, accumulator + chunk + COUNT);
        if (kept.units > 1) kept.add(v, chunk);
        out.store<PLAIN>(y + chunk, v, columns - chunk);
        if (more) tcgen05_wait_ld(next);
#pragma unroll
        for (int i = 0; i < COUNT; i++) v[i] = next[i];
    }
}

/* Warps 0-3 where K is cut: this unit's sums to the units that keep them, to the next one first, so that not all send
 * to the same. */
template <class C> __device__ __forceinline__ void send_sums(const share<C> &w, uint32_t lanes, int kept) {
    static_assert((C::TILE_Y & (C::TILE_Y - 1)) == 0, "columns are counted round");
    int shift = __ffs(kept) - 1; /* a power of two */
    int start = ((int)w.unit + 1) * kept & -C::CHUNK;
#pragma unroll 1
    for (int done = 0; done < C::TILE_Y; done += C::CHUNK) {
        int chunk = (start + done) & (C::TILE_Y - 1);
        if (kept >= C::CHUNK && chunk >> shift == w.unit) continue;
        float v[C::CHUNK];
        tcgen05_ld(v, lanes + chunk);
        tcgen05_wait_ld(v);
#pragma unroll
        for (int i = 0; i < C::CHUNK; i += 4) {
            uint32_t column = (chunk + i) & (kept - 1), unit = (chunk + i) >> shift;
            if (unit == w.unit) continue;
            uint32_t from = w.unit < unit ? w.unit : w.unit - 1; /* its place among the others */
            uint32_t to = w.parts + ((from * kept + column) * SM100_CTA_ROWS + threadIdx.x * 4) * 4;
            uint32_t rank = unit * C::GROUP + w.rank;
            st_async(mapa(to, rank), mapa(w.parts_full(), rank), v[i], v[i + 1], v[i + 2], v[i + 3]);
        }
    }
}

/* Warps 0-3: each finishes its 32 lanes of every tile. */
template <class C>
__device__ __forceinline__ void finish(const gemm_problem &p, const sm100_schedule &s, const share<C> &w,
                                       tile_walk<C> walk, uint32_t tmem, const float4 *parts) {
    kept_columns kept{C::TILE_Y / s.split_k, (int)w.unit, s.k_stages ? s.split_k : 0, parts + threadIdx.x};
    uint32_t lanes = tmem + (threadIdx.x / 32 << 21);
    pipeline_state<C::ACCUMULATORS> acc;
    dumper<C> dump(s, w);
    dump.begin(s);
    for (; walk.more(); walk.advance(), acc.advance()) {
        dump.tile(walk, acc.index, tmem);
        output out(p, s, walk.place.l, walk.place.x + (int)threadIdx.x);
        uint32_t accumulator = lanes + acc.index * C::TILE_Y + kept.unit * kept.count;
        int32_t y = walk.place.y + kept.unit * kept.count;
        int columns = min(kept.count, s.y.rows - y);
        if (kept.units) {
            mbarrier_wait(w.acc_full(acc.index), acc.phase);
            tcgen05_fence_after_thread_sync();
        }
        if (kept.units > 1) {
            if (s.partials_in_stages)
                barrier_cluster_arrive(), barrier_cluster_wait(); /* every unit has left its stages */
            send_sums(w, lanes, kept.count);
            mbarrier_wait_cluster(w.parts_full(), 0);
        }
        if (out.plain)
            store_sums<true, C::CHUNK>(out, accumulator, kept, y, columns);
        else
            store_sums<false, 8>(out, accumulator, kept, y, columns);
        /* The accumulator may be written again. Where it will not be, nobody would wait for an arrival on its way. */
        tcgen05_fence_before_thread_sync();
        __syncwarp();
        if (threadIdx.x % 32 == 0 && walk.reaches(C::ACCUMULATORS))
            mbarrier_arrive_relaxed(w.of_leader(w.acc_empty(acc.index)));
    }
}

/* One thread, before the wait for prior grids: the first stages of x into L2, and of y, which all CTAs share, one stage
 * each. DRAM has little to do while the call before ends. */
template <class C>
__device__ __forceinline__ void prefetch(const sm100_schedule &s, const share<C> &w, const tile_place &place) {
    int32_t stages = min(s.prefetch_stages, w.k_last - w.k_first);
    if (stages <= 0 || w.first >= (uint32_t)s.tiles) return;
    int32_t tile_y = place.y / C::TILE_Y; /* CTAs beside each other along y take turns */
    if (place.x < s.x.rows) {
        int32_t atoms = min(stages * SM100_STAGE_ATOMS, w.k_blocks - w.k_first * SM100_STAGE_ATOMS);
        if (tile_y == 0)
            cp_async_bulk_prefetch_l2(s.x.scale + place.l * s.x.scale_batch +
                                          place.x / SM100_ATOM_ROWS * s.x.scale_pitch +
                                          (int64_t)w.k_first * SM100_SFX_BYTES,
                                      atoms * SM100_ATOM_BYTES);
        for (int32_t k = w.k_first + tile_y; k < w.k_first + stages; k += s.tiles_y)
            tma_prefetch_l2_3d(&s.x.values, k * (SM100_STAGE_K / 2), place.x, place.l);
    }
    int32_t k = w.k_first + (int32_t)(w.first % (uint32_t)(w.k_last - w.k_first));
    tma_prefetch_l2_3d(&s.y.values, k * (SM100_STAGE_K / 2), place.y + (int32_t)w.rank * C::CTA_Y, place.l);
    cp_async_bulk_prefetch_l2(s.y.scale + place.l * s.y.scale_batch + place.y / SM100_ATOM_ROWS * s.y.scale_pitch +
                                  (int64_t)k * SM100_SFX_BYTES,
                              w.blocks(k) * SM100_ATOM_BYTES);
}

/* All threads: barriers, what the first copies need, tensor memory, whose address it returns. Reads no tensor. */
template <class C>
__device__ __forceinline__ uint32_t prepare(const sm100_schedule &s, const share<C> &w, const tile_place &first) {
    int warp = threadIdx.x / 32;
    if (warp == PRODUCER_WARP && elect_one()) {
        prefetch_tensormap(&s.x.values);
        prefetch_tensormap(&s.y.values);
        if constexpr (C::GROUP == 2) {
            prefetch_tensormap(&s.x.scales);
            prefetch_tensormap(&s.y.scales);
        }
        if constexpr (!C::GATHER) prefetch(s, w, first);
    }
    if (warp == 0 && elect_one()) {
        for (int i = 0; i < C::STAGES; i++) {
            mbarrier_init(w.full(i), 1 + (C::GATHER ? GATHER_THREADS : 0));
            mbarrier_init(w.empty(i), 1);
        }
        for (int i = 0; i < C::ACCUMULATORS; i++) {
            mbarrier_init(w.acc_full(i), 1);
            mbarrier_init(w.acc_empty(i), EPILOGUE_WARPS * C::GROUP);
        }
        mbarrier_init(w.parts_full(), 1);
        dumper<C>::prepare(w);
        fence_mbarrier_init();
        if (s.split_k > 1) mbarrier_arrive_expect_tx(w.parts_full(), SM100_PARTIALS_BYTES(C::TILE_Y, s.split_k));
    }
    __syncwarp();
    /* The others may use these barriers from here on; and a pair allocates together, so both CTAs must be there. */
    if (C::GROUP * s.split_k > 1) barrier_cluster_arrive_relaxed(), barrier_cluster_wait();
    if (warp == MMA_WARP) {
        tcgen05_alloc<C::GROUP, C::COLUMNS>(w.base + C::TMEM_AT);
        tcgen05_relinquish_alloc_permit<C::GROUP>();
    }
    tcgen05_fence_before_thread_sync();
    __syncthreads();
    tcgen05_fence_after_thread_sync();
    return ld_shared(w.base + C::TMEM_AT);
}

template <class C> __device__ __forceinline__ void gemm(const gemm_problem &p, const sm100_schedule &s) {
    extern __shared__ __align__(1024) uint8_t shared[];
    share<C> w(p, s, shared_address(shared));
    if (w.base % 1024) __trap(); /* the swizzle is taken of absolute addresses */
    int warp = threadIdx.x / 32;

    tile_walk<C> walk(s, w);
    uint32_t tmem = prepare(s, w, walk.place);
    griddepcontrol_wait();
    /* Not before this CTA has its tensor memory, which one of the next grid on this SM could take. And not before the
     * wait, or the grid after next would come to wait as well (an H200 lost 0.3 us a call to that). */
    griddepcontrol_launch_dependents();

    if (warp == PRODUCER_WARP) {
        if (elect_one()) produce(s, w, walk);
    } else if (warp == MMA_WARP) {
        if (w.rank == 0 && elect_one()) multiply(w, walk, tmem);
    } else if (warp >= GATHER_WARP) {
        if constexpr (C::GATHER) gatherer<C>(p, s, w).run(walk);
    } else {
        finish(p, s, w, walk, tmem, (const float4 *)(shared + (w.parts - w.base)));
    }
    __syncwarp();
    if (s.partials_in_stages && warp >= EPILOGUE_WARPS) barrier_cluster_arrive_relaxed(), barrier_cluster_wait();

    tcgen05_fence_before_thread_sync();
    __syncthreads();
    if (C::GROUP == 2)
        barrier_cluster_arrive_relaxed(), barrier_cluster_wait(); /* commits and arrivals of the other CTA have come */
    tcgen05_fence_after_thread_sync();
    if (warp == MMA_WARP) tcgen05_dealloc<C::GROUP, C::COLUMNS>(tmem);
}

#define KERNEL(id, ...)                                                                                                \
    extern "C" __global__ void __launch_bounds__(config<__VA_ARGS__>::THREADS, config<__VA_ARGS__>::CTAS_PER_SM)       \
        nvfp4_##id(const __grid_constant__ gemm_problem p, const __grid_constant__ sm100_schedule s) {                 \
        gemm<config<__VA_ARGS__>>(p, s);                                                                               \
    }
SM100_GEMM_CONFIGS(KERNEL)
