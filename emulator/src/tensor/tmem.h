/* Tensor memory, shared by the tcgen05 files (PTX ISA 9.7.16): cells, their owners and last writers, and the queue
 * of the tensor core that a CTA, or a pair of CTAs, feeds. */
#ifndef EMULATOR_TMEM_H
#define EMULATOR_TMEM_H

#include "machine/machine.h"

enum {
    TMEM_LANES = 128,
    TMEM_COLUMNS = 512,
    TMEM_UNIT = 32,     /* columns of the smallest allocation */
    TMEM_GROUP = 16,    /* lanes that share a note of their last write */
    TMEM_MAX_WARPS = 32 /* of a CTA */
};

/* Who wrote or read a cell last: what decides whether an access is ordered behind it (9.7.16.6). */
typedef struct {
    const warp *by; /* that issued it; NULL: nobody yet */
    const instr *in;
    const uint64_t *published; /* when that warp last executed fence::before_thread_sync or a commit */
    uint64_t issued, finished; /* turns */
    int by_core;               /* mma, cp, shift: not a thread's ld or st */
} tmem_note;
typedef tmem_note tmem_notes[TMEM_LANES / TMEM_GROUP][TMEM_COLUMNS];

struct tmem {
    uint32_t cells[TMEM_LANES][TMEM_COLUMNS];
    const cta *owner[TMEM_COLUMNS / TMEM_UNIT];
    uint32_t allocated[TMEM_COLUMNS / TMEM_UNIT];     /* columns of the allocation that begins here, else 0 */
    const instr *allocator[TMEM_COLUMNS / TMEM_UNIT]; /* what made it */
    tmem_notes written, loaded, taken;                /* by anyone; read by ld; read by the tensor core */
};

tmem *tmem_of(const cta *c);

static inline uint32_t tmem_lane(uint32_t address) {
    return address >> 16;
}
static inline uint32_t tmem_column(uint32_t address) {
    return address & 0xffff;
}

/* Faults unless lanes [lane, lane + lanes) x columns [column, column + columns) exist and the CTA has allocated them.
 */
void tmem_check(warp *w, const instr *in, const cta *c, uint32_t lane, uint32_t lanes, uint32_t column,
                uint32_t columns, const char *what);

/* ---- order ---- */

/* An operation on TMEM, as it was when it was issued. */
typedef struct {
    const warp *by;
    uint64_t issued;
    uint64_t fenced; /* by's last fence::after_thread_sync */
    int by_core;
    int checked; /* 0: machine->fences says that the wait alone orders */
} tmem_reader;

tmem_reader tmem_reader_of(const warp *w, int by_core);
tmem_note tmem_note_of(warp *w, const instr *in, int by_core); /* finished: set by tmem_mark */
void tmem_mark(tmem_notes notes, machine *m, const tmem_note *note, uint32_t lane, uint32_t lanes, uint32_t column,
               uint32_t columns);
/* Faults where the operation overwrites what it is not ordered behind: reads, and writes too if it reads no cell. */
void tmem_check_overwrite(const async_op *op, const tmem *t, const tmem_reader *r, int behind_writes, uint32_t lane,
                          uint32_t lanes, uint32_t column, uint32_t columns);

/* Whether the warp of an access has executed fence::before_thread_sync or a commit since. */
static inline int tmem_published(const tmem_note *last) {
    return *last->published >= (last->by_core ? last->issued : last->finished);
}

enum { TMEM_ORDERED, TMEM_NOT_FENCED_AFTER, TMEM_NOT_FENCED_BEFORE };

/* Whether an access is ordered behind another. Threads' own st and ld are ordered by tcgen05.wait; operations that one
 * warp issued to the core by their queue; everything else needs fences on both sides. */
static inline int tmem_order(const tmem_note *last, const tmem_reader *r) {
    if (!r->checked || !last->by) return TMEM_ORDERED;
    if (last->by == r->by && last->by_core == r->by_core) return TMEM_ORDERED;
    uint64_t must_precede = last->by_core && r->by_core ? last->issued : last->finished;
    if (must_precede > r->fenced) return TMEM_NOT_FENCED_AFTER;
    if (last->by == r->by || tmem_published(last)) return TMEM_ORDERED;
    return TMEM_NOT_FENCED_BEFORE;
}

/* Whether a read is ordered behind what was last written to the cell. */
static inline int tmem_ordered(const tmem *t, const tmem_reader *r, uint32_t lane, uint32_t column) {
    return tmem_order(&t->written[lane / TMEM_GROUP][column], r) == TMEM_ORDERED;
}

/* ---- the tensor core of a CTA or a pair ---- */

typedef enum { TMEM_ALLOC, TMEM_DEALLOC, TMEM_RELINQUISH } tmem_management;

typedef struct tensor_core {
    async_queue queue; /* mma, cp, shift and commits, in order */
    int group;         /* of CTAs: 1 or 2 */
    int references;
    cta *ctas[2];                          /* group 1: the first only */
    uint32_t under_way[2];                 /* operations that touch the CTA's tensor memory */
    uint64_t published[2][TMEM_MAX_WARPS]; /* of fence::before_thread_sync and commit */
    uint32_t last_columns[2];              /* of the CTA's latest allocation */
    uint64_t collector[5];                 /* what fill has left in a and b0-b3: the operand, 0: nothing */
    struct tmem_meeting {                  /* group 2: alloc, dealloc and relinquish wait for the peer */
        warp *by;
        const instr *in;
        tmem_management what;
        uint32_t columns, column;
        int done;
        int alone; /* a dealloc that has not waited: the peer's is still due */
    } meetings[2];
} tensor_core;

/* The warp's, made on first use. Faults if its kernel uses the other cta_group too, or has no peer. */
tensor_core *tensor_core_of(warp *w, const instr *in, int group);
int tensor_core_index(const cta *c); /* of the CTA in ctas[] */
/* fence::before_thread_sync, and what commit implies */
void tensor_core_publish(warp *w);

/* Operands, decode */
int take_cta_group(decoder *d);
/* The value that all lanes must agree on. */
uint32_t uniform_value(warp *w, const instr *in, uint32_t slot, uint32_t lanes, const char *what);
/* For .sync.aligned instructions of a whole warp: 1: all are here; 0: return RUN_PARK. */
int whole_warp(warp *w, const instr *in, uint32_t lanes);

int decode_tmem_access(decoder *d);  /* tcgen05_ld_st.c: ld, st, wait */
int decode_tcgen05_copy(decoder *d); /* tcgen05_cp.c: cp, shift */
int decode_tcgen05_mma(decoder *d);  /* tcgen05_mma.c */

#endif
