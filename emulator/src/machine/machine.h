/* The machine: devices, SMs, clusters, CTAs, warps, asynchronous operations.
 *
 * One host thread runs everything. A turn runs some instructions of one warp (simt.c) or one piece of one
 * asynchronous operation (async.c). The seed decides whose turn it is, how long it lasts and how late an operation
 * starts, so a run repeats itself; only what the memory model promises is certain.
 *
 * A warp is a set of fragments: lanes with the same place in the program and the same call stack. Fragments split at
 * branches and merge where they meet. An instruction that cannot go on returns RUN_PARK, having changed nothing, and
 * is tried again when the warp is woken. The machine reports a deadlock when nothing runs and nothing is under way. */
#ifndef EMULATOR_H
#define EMULATOR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ptx/ptx.h"

#define WARP_LANES  32
#define ALL_LANES   UINT32_MAX
#define SHARED_BASE 0x400 /* the first 1024 bytes of the shared window are the system's */
/* ... of which 288 are the scratch memory of cooperative groups, at %reserved_smem_offset_1 (SM 8.0 and later). */
#define SCRATCH_BASE (SHARED_BASE - 288)
/* Generic addresses: global memory, constants and parameters are host pointers; the other windows lie where no host
 * pointer can. The low 32 bits of a generic shared address are the .shared::cluster address: rank << 24 | offset. */
#define SHARED_WINDOW ((uint64_t)1 << 56)
#define LOCAL_WINDOW  ((uint64_t)2 << 56) /* | warp's thread address: see memory.c */
#define WINDOW_MASK   ((uint64_t)0xff << 56)
#define RANK_SHIFT    24
#define POISON_BYTE   0xff /* a NaN in every floating-point format that has one */

enum { MOST_GPCS = 12 };

typedef struct device device;
typedef struct sm sm;
typedef struct grid grid;
typedef struct cluster cluster;
typedef struct cta cta;
typedef struct fragment fragment;
typedef struct machine machine;
typedef struct mbarrier mbarrier;
typedef struct async_op async_op;
typedef struct pending pending;
typedef struct tmem tmem; /* tensor memory of an SM: tmem.c */

/* ---- devices (devices.c) ---- */

struct device {
    const char *key; /* "sm_100" */
    const char *name;
    int cc;               /* 100 */
    int sm_count;         /* as the real one answers */
    int shared_per_block; /* opt-in maximum */
    int shared_per_sm, shared_reserved;
    int threads_per_sm, ctas_per_sm, registers_per_sm;
    int clock_khz, memory_clock_khz, memory_bus_bits;
    int l2_bytes;
    int64_t memory_bytes;
    int cluster_max; /* CTAs of a cluster, without the non-portable opt-in */
    /* SMs of each GPC, in which a whole cluster lies; none: one GPC has all. The last are pairs of SMs that join no
     * larger cluster. */
    int gpcs[MOST_GPCS];
};
const device *device_by_key(const char *key); /* NULL: unknown. "" or NULL: the default, sm_100 */

/* ---- settings ---- */

typedef enum { ARITHMETIC_HARDWARE, ARITHMETIC_FP64 } arithmetic;
/* FENCES_TEXT: programs must follow the text of the ISA. FENCES_HARDWARE tolerates what NVIDIA's own kernels do: no
 * tcgen05.fence between an mbarrier wait and a tcgen05.ld, no fence.proxy.async, exit with bulk stores under way,
 * reliance on warps that advance at about the same pace. */
typedef enum { FENCES_TEXT, FENCES_HARDWARE } fences;
/* LANES_APART: lanes of a warp wait for each other only where PTX says so (simt.c). */
typedef enum { LANES_TOGETHER, LANES_APART } lanes_order;

/* When asynchronous operations and warps run; drawn from the seed (timing_of_seed, async.c). */
typedef struct timing {
    enum { TIMING_EAGER, TIMING_LAZY, TIMING_RANDOM } mode;
    uint32_t op_chance;   /* of 65536: that a turn goes to an asynchronous operation while warps could run */
    uint32_t max_quantum; /* instructions that a warp runs in a turn, at most; drawn anew each turn */
    uint32_t max_delay;   /* turns before an operation may start */
} timing;
timing timing_of_seed(uint64_t seed);

/* ---- launches ---- */

typedef struct launch {
    entry *entry;
    uint32_t grid[3], block[3], cluster[3]; /* cluster 1,1,1: none was asked for */
    uint32_t dynamic_shared;
    int explicit_cluster;
    int programmatic; /* may start when its predecessor says launch_dependents */
    int cooperative;  /* all of it is resident at once */
    uint8_t *parameters;
} launch;

/* ---- what runs ---- */

struct grid {
    grid *next; /* in launch order */
    machine *on;
    launch launch;
    uint64_t serial;
    uint64_t cta_count, next_cta, live_ctas, done_ctas;
    uint64_t triggered_ctas; /* that called launch_dependents, or have exited */
    int started, finished;
    uint8_t *image;     /* of a warp's registers, as far as all warps have the same */
    uint8_t *workspace; /* of a cooperative launch: where its blocks meet (%envreg1 and 2 hold the address) */
    struct global_record
        *unpublished; /* its writes to global memory that the async proxy does not see yet (memory.c) */
};

struct cluster {
    grid *grid;
    cta **ctas;              /* by rank */
    int size, live, started; /* started: all resident, none run before */
    uint32_t id[3];
    /* barrier.cluster: */
    uint32_t barrier_arrived; /* threads, of this phase */
    uint64_t barrier_phase;
    uint32_t exited_threads;
    uint32_t threads; /* of all its CTAs */
};

/* Counts warps: a warp arrives when all its lanes that have not exited have arrived. */
typedef struct named_barrier {
    uint32_t arrived, expected; /* of this phase; expected 0: nobody has come yet */
    uint32_t warps;             /* bit i: warp i is among them */
    uint32_t partial;           /* bit i: some lanes of warp i are here, the others are not */
    uint32_t lanes[WARP_LANES]; /* which ones, by warp */
    uint64_t phase;
    int everyone;                            /* for all warps of the CTA, of which exited ones are not waited for */
    uint32_t votes_no, votes_yes, votes_sum; /* bar.red: some lane said no, some said yes, how many did */
} named_barrier;

/* Bytes moved, for the trace: one row a kind. */
#define TRAFFIC_KINDS(X)                                                                                               \
    X(GLOBAL_READ, "global read by threads")                                                                           \
    X(GLOBAL_WRITE, "global written by threads")                                                                       \
    X(SHARED_READ, "shared read by threads")                                                                           \
    X(SHARED_WRITE, "shared written by threads")                                                                       \
    X(LOCAL, "local")                                                                                                  \
    X(CP_ASYNC, "cp.async")                                                                                            \
    X(BULK_READ, "bulk copies from global")                                                                            \
    X(BULK_WRITE, "bulk copies to global")                                                                             \
    X(TMA_READ, "tensor copies from global")                                                                           \
    X(MULTICAST, "from global, multicast to further CTAs")                                                             \
    X(TMA_WRITE, "tensor copies to global")                                                                            \
    X(CLUSTER_WRITE, "to another CTA's shared memory")                                                                 \
    X(MMA_SHARED_READ, "shared read by tensor cores")                                                                  \
    X(TMEM_READ, "tensor memory read by threads")                                                                      \
    X(TMEM_WRITE, "tensor memory written by threads")                                                                  \
    X(TMEM_COPY, "shared to tensor memory")
typedef enum {
#define X(kind, text) TRAFFIC_##kind,
    TRAFFIC_KINDS(X)
#undef X
        TRAFFIC_COUNT
} traffic;

struct cta {
    grid *grid;
    cluster *cluster;
    sm *sm;
    cta *next; /* resident ones, of the machine */
    uint32_t id[3], rank;
    uint64_t serial;
    warp *warps;
    int warp_count, live_warps, thread_count;
    /* Shared memory, by offset in the window: [SHARED_BASE, shared_bytes). `shared` is what threads see. `async_view`
     * is what the async proxy sees, NULL where the kernel has no use for it: bytes that a thread wrote reach it when a
     * fence.proxy.async orders them (memory.c). */
    uint8_t *shared, *async_view;
    uint32_t shared_bytes;
    struct proxy_shadow *shadow;
    uint8_t *local;      /* local_bytes a thread */
    mbarrier *mbarriers; /* live ones: mbarrier.c */
    named_barrier barriers[16];
    uint32_t pending_ops;  /* asynchronous operations that can still touch this CTA's memory */
    int launch_dependents; /* this CTA has triggered */
    /* tcgen05: tmem.c */
    int tmem_columns_held, tmem_relinquished, tmem_group; /* cta_group 1 or 2 once used */
    void *tcgen05;                                        /* FIFO of the CTA or pair */
    struct warpgroup *warpgroups;                         /* warpgroup.c */
    uint64_t traffic[TRAFFIC_COUNT];
};

/* Where calls return to. A warp's nodes are a tree: fragments that call from the same place of the same stack share a
 * node, so that they can meet again. control.c makes them and gives them back when no lane is below. */
typedef struct call_node call_node;
struct call_node {
    call_node *parent;
    const function *function; /* to return into */
    int32_t pc;
    int depth;
    uint32_t lanes;  /* that have called and not returned */
    void *saved;     /* registers and local memory of a recursive callee */
    call_node *next; /* of the warp */
};

typedef enum { FRAGMENT_RUNS, FRAGMENT_PARKED } fragment_state;

/* What a parked fragment waits for, for the deadlock's report and for handlers that try again. */
typedef struct wait_note {
    enum {
        WAIT_NOTHING,
        WAIT_LANES,    /* for other lanes of the warp at the same instruction */
        WAIT_BARRIER,  /* a = barrier number, b = phase; when it is over, the votes (barrier.c) */
        WAIT_CLUSTER,  /* b = phase */
        WAIT_MBARRIER, /* a = shared address, b = parity or token */
        WAIT_ASYNC,    /* own asynchronous operations: a = groups allowed */
        WAIT_TMEM,     /* columns: a */
        WAIT_GRID      /* the predecessor's end */
    } kind;
    int over; /* WAIT_BARRIER: its phase; WAIT_MBARRIER: the time limit of the try_wait */
    uint64_t a, b;
} wait_note;

struct fragment {
    uint32_t lanes;
    int32_t pc;
    const function *function;
    call_node *stack;
    fragment_state state;
    int alone;      /* has arrived somewhere: no other fragment may merge with it until it is done */
    int joined;     /* LANES_APART: its lanes have met and not parted since */
    uint32_t rank;  /* LANES_APART: the highest runs first */
    wait_note wait; /* kept while the parked instruction is tried again; cleared when it is done */
};

struct warp {
    cta *cta;
    int index;
    uint32_t live; /* lanes that have not exited */
    uint8_t *registers;
    fragment fragments[WARP_LANES];
    int fragment_count;
    fragment *current;           /* being run */
    uint32_t executing;          /* the lanes that its instruction runs for */
    int in_ready;                /* index in the machine's ready list, -1: not there */
    uint64_t sync_time;          /* machine->now when it last synchronised with others (acquired something) */
    uint64_t tcgen05_fence_time; /* of its last tcgen05.fence::after_thread_sync */
    uint32_t threads;            /* lanes that exist (the last warp of an odd block has fewer) */
    uint64_t instructions, last_turn;
    uint64_t rests_until; /* turns: others go first until then */
    /* families' own state a warp or thread, made on first use and freed with the warp */
    void *cp_async, *bulk_groups, *wgmma, *tmem_loads;
    call_node *calls;         /* control.c: call_nodes_free(w) when the warp ends */
    pending *pending;         /* claims, NULL: none */
    uint32_t cluster_arrived; /* lanes that have arrived at barrier.cluster and not waited yet */
    uint64_t cluster_phase[WARP_LANES];
};

/* ---- asynchronous operations (async.c) ---- */

/* An operation under way. The family embeds this as its first member. It is queued by async_start and is run in pieces;
 * `step` does one piece and returns 1 after the last one, or STEP_HELD where it has done nothing and is to be asked
 * again later. Operations of one queue run in order, one at a time; those without a queue overlap freely. */
enum { STEP_HELD = -1 };
struct async_op {
    async_op *next, *previous;
    int (*step)(async_op *op);
    void (*release)(async_op *op); /* frees what it holds; the op itself too */
    struct async_queue *queue;     /* NULL: unordered */
    uint64_t not_before;
    const instr *in; /* what issued it, and who: for reports and the trace */
    warp *by;
    cta *from;
    cta *touches[2]; /* whose pending_ops count it, while it lives */
    uint64_t started_at, serial, bytes;
    const char *what; /* "tensor copy", for the timeline */
    int drains;       /* with FENCES_HARDWARE, an exiting block waits for it */
};
typedef struct async_queue {
    async_op *first, *last;
} async_queue;

void async_start(machine *m, async_op *op, warp *by, const instr *in, async_queue *queue);
/* The CTA ends: completes its operations' writes to global memory. */
void async_forget(machine *m, const cta *c);
/* The next one behind `after` (NULL: the first) that can still touch the CTA's memory, NULL: there is none. */
const async_op *async_touching(const machine *m, const cta *c, const async_op *after);
int async_pending(const machine *m);
/* One piece of some operation, chosen by the seed; force: of one that may start later too. 0: none could. */
int async_turn(machine *m, int force);

/* ---- the machine (machine.c) ---- */

struct sm {
    int index, gpc;
    int shared_free, threads_free, ctas_free;
    tmem *tmem;
};

struct machine {
    const device *device;
    uint64_t seed, random[4];
    timing timing;
    arithmetic arithmetic;
    fences fences;
    lanes_order lanes;
    int tmem_base; /* first column that is handed out, to find kernels that assume 0 */
    sm *sms;
    int sm_count;
    grid *first_grid, *last_grid; /* queued and running */
    cta *ctas;                    /* resident */
    warp **ready;
    int ready_count, ready_capacity;
    uint64_t now;  /* turns */
    uint64_t idle; /* turns in a row in which warps only polled */
    int forcing;   /* an operation has to go on: none may be held */
    /* how often every try_wait was ended since something last happened, and `progress` then */
    uint64_t expirations, expired_at;
    int resident_goal; /* CTAs beyond this start only when nothing else can run; drawn from the seed */
    int spread;        /* SMs among which the first place for a CTA is drawn, so that some seeds crowd them */
    uint64_t slept;    /* nanoseconds that passed while nothing but nanosleep ran */
    uint64_t progress; /* grows whenever something changes that another thread can see */
    uint64_t op_serial, cta_serial, grid_serial;
    int resident;
    struct async_pool *pool;
    struct spares *spares; /* memory of CTAs that have gone: start.c */
    struct trace *trace;   /* NULL: none is wanted */
    void *escape;          /* jmp_buf of machine_run, for fault() */
    char *error;           /* the message of the fault that stopped it; sticky, as on hardware */
    int assertion_failed;  /* that was why */
    warp *running;         /* whose instruction, or operation, is being run */
    const instr *instruction;
};

machine *machine_create(const device *d);
void machine_destroy(machine *m);
void machine_seed(machine *m, uint64_t seed); /* from here on; also sets the timing */
/* Queues a launch; parameters are copied. NULL or a message that says why it cannot run (malloc'd). */
char *machine_launch(machine *m, const launch *l);
/* Runs until every queued grid has finished. 0, or -1 after a fault: m->error says it. */
int machine_run(machine *m);
/* Clusters of that many CTAs that are resident at once where an SM takes so many CTAs. */
int machine_clusters(const machine *m, int size, int ctas_per_sm);
/* Resident CTAs that one SM takes of such a launch. */
int machine_occupancy(const machine *m, const launch *l);

uint32_t machine_random(machine *m);                /* 32 bits */
uint32_t machine_below(machine *m, uint32_t bound); /* 0 .. bound-1 */
void wake_cta(cta *c); /* something that its warps may wait for has changed: parked warps try again */
void wake_warp(warp *w);
void wake_cluster(cluster *c);
void wake_all(machine *m);
static inline void machine_progress(machine *m) {
    m->progress++;
}
static inline machine *machine_of(const warp *w) {
    return w->cta->grid->on;
}

/* ---- warps (simt.c) ---- */

/* Parks the fragment (the handler returns what this returns). While it is tried again, w->current->wait still says
 * this; it is cleared when the instruction is done. */
run_result park(warp *w, int kind, uint64_t a, uint64_t b);

/* Warp collectives. `members` are lanes that must come together (exited ones do not count). Returns 1 if they are all
 * in the current fragment, or wait at other instructions of the same name; else notes the wait: return RUN_PARK. A
 * handler whose lanes name different masks calls it for each group and, if one is incomplete, calls split_off(w, that
 * group) (these lanes become a parked fragment of their own) and goes on with the rest. */
int converge(warp *w, const instr *in, uint32_t members);
/* Lanes that wait at other instructions: how many instructions, which, and their lanes. elsewhere_done lets them go on.
 */
typedef struct {
    const instr *in;
    uint32_t lanes;
} meeting;
int elsewhere(const warp *w, const instr *in, uint32_t members, meeting out[WARP_LANES]);
void elsewhere_done(warp *w, const instr *in, uint32_t members);
/* For `.aligned` instructions: all live lanes of the warp must be here. Faults where they cannot come any more. */
int converge_aligned(warp *w, const instr *in, uint32_t lanes);
void split_off(warp *w, uint32_t lanes);
/* Where `lanes` of the current fragment go on; the rest stay with the next instruction. For RUN_JUMP handlers. */
void jump(warp *w, uint32_t lanes, int32_t pc);
/* The same into another function, or out of one: calls and returns. */
void jump_function(warp *w, uint32_t lanes, const function *f, int32_t pc, call_node *stack);
void exit_lanes(warp *w, uint32_t lanes);
int special_fill(const warp *w, const char *name, uint64_t out[WARP_LANES]); /* %tid.x ...; 0: there is none */
int special_scope(const char *name);                                         /* SAME_IN_GRID ... of struct fill */
int special_exists(const char *name);
int special_is_dynamic(const char *name); /* %clock ...: read when executed, by mov */
uint64_t special_read(warp *w, const char *name, int lane);

/* ---- registers ---- */

static inline uint32_t *r32(const warp *w, uint32_t slot) {
    return (uint32_t *)(w->registers + slot);
}
static inline uint64_t *r64(const warp *w, uint32_t slot) {
    return (uint64_t *)(w->registers + slot);
}
static inline unsigned __int128 *r128(const warp *w, uint32_t slot) {
    return (unsigned __int128 *)(w->registers + slot);
}
static inline uint32_t *predicate(const warp *w, uint32_t slot) {
    return (uint32_t *)(w->registers + slot);
}
/* Writes the lanes of a predicate. */
static inline void set_predicate(const warp *w, uint32_t slot, uint32_t lanes, uint32_t bits) {
    if (slot == NO_SLOT) return;
    uint32_t *p = predicate(w, slot);
    *p = (*p & ~lanes) | (bits & lanes);
}
/* for each lane of a mask: */
#define FOR_LANES(lane, lanes)                                                                                         \
    for (uint32_t left_ = (lanes), lane; left_ && (lane = (uint32_t)__builtin_ctz(left_), 1); left_ &= left_ - 1)

/* A register that a pending operation will write (tcgen05.ld, wgmma): it holds poison, and a plain mov carries the
 * claim along, until the operation delivers (pending.c). Compilers move such registers before the wait and pack them in
 * pairs, so a place is the offset of its lane 0 in the register file and the stride of lanes: 4 in a 32-bit register, 8
 * for a half of a 64-bit one (slot, slot + 4). */
void pending_claim(warp *w, uint32_t place, uint32_t stride, uint32_t lanes, const uint32_t value[WARP_LANES]);
/* A mov has copied `lanes` of one place to another: copies the claim too and ends an earlier claim on `to`. Needs
 * w->pending != NULL. */
void pending_copy(warp *w, uint32_t to, uint32_t to_stride, uint32_t from, uint32_t lanes);
/* The value that a place will get, NULL if there is no claim on its lane 0. */
const uint32_t *pending_value(const warp *w, uint32_t place);
/* Writes every place whose value lies in values[0 .. count) and drops these claims. */
void pending_deliver(warp *w, const uint32_t *values, size_t count);

/* ---- memory (memory.c) ---- */

/* Where `bytes` at an address are, for a thread's ordinary access. Checks space, bounds
 * and alignment (of `align` bytes); faults with a message. `lane` is for the message.
 * For shared memory of this CTA or, through a cluster address or a generic one, of
 * another. The pointer is good for this instruction only. */
uint8_t *thread_read(warp *w, const instr *in, int lane, ptx_space space, uint64_t address, uint32_t bytes,
                     uint32_t align);
/* The same for a write of `bytes` from `data`, so that the proxies' views and the shadow
 * can be kept. */
void thread_write(warp *w, const instr *in, int lane, ptx_space space, uint64_t address, const void *data,
                  uint32_t bytes, uint32_t align);
/* Shared memory through the async proxy. `offset` is in the CTA's window (SHARED_BASE ..).
 */
void async_read_shared(cta *c, uint32_t offset, void *data, uint32_t bytes);
void async_write_shared(cta *c, uint32_t offset, const void *data, uint32_t bytes);
/* Checks that such an access would be inside the CTA's shared memory; faults with `what`
 * in the message. */
void check_shared(warp *w, const instr *in, const cta *c, uint64_t offset, uint64_t bytes, uint32_t align,
                  const char *what);
/* fence.proxy.async by these lanes: for shared memory (of the whole cluster) and for global memory. */
void publish_to_async_proxy(warp *w, uint32_t lanes);
void publish_global_to_async_proxy(warp *w, uint32_t lanes);
/* A release at the scope of the GPU, or .sys, by these lanes. */
void release_global(warp *w, uint32_t lanes);
/* Global memory through the async proxy, once check_global has allowed it, for an operation that `from` has issued: a
 * read gets the old bytes where threads of this grid have written and no fence.proxy.async has ordered that, or no
 * release for another cluster. */
void async_read_global(const cta *from, uint64_t address, void *data, uint32_t bytes);
void async_write_global(grid *g, uint64_t address, const void *data, uint32_t bytes);
/* A global range that an asynchronous operation will touch: faults unless it is all inside
 * one allocation (or is host memory, where the device reads that). */
uint8_t *check_global(warp *w, const instr *in, uint64_t address, uint64_t bytes, uint32_t align, const char *what);
/* A shared address of 32 bits, or a generic one, to a CTA of the cluster and the offset in
 * it; faults if it is none. */
cta *shared_target(warp *w, const instr *in, uint64_t address, uint32_t *offset);
int64_t own_shared_address(const cta *c, uint32_t offset); /* rank << 24 | offset */
static inline uint32_t shared_begin(const cta *c) {
    return c->grid->launch.entry->uses_scratch ? SCRATCH_BASE : SHARED_BASE;
}

/* Device allocations: exact bounds, poisoned. */
void *device_allocate(size_t bytes);
int device_free(void *p);                                             /* 0 if it was one */
int device_range(uint64_t address, uint64_t *start, uint64_t *bytes); /* 1: inside an allocation */
int device_is_reserved(uint64_t address);                             /* 1: nothing but allocations lies there */
extern int host_memory_allowed;                                       /* the device reads pageable memory */

/* ---- mbarrier (mbarrier.c): also used by bulk, TMA, tcgen05.commit, st.async ---- */

/* `offset` in c's window. Each faults, naming w and in (which may be those of an operation
 * issued earlier), on an address that holds no barrier, and on counts out of range. */
void mbarrier_arrive(warp *w, const instr *in, cta *c, uint32_t offset, uint32_t count);
void mbarrier_complete_tx(warp *w, const instr *in, cta *c, uint32_t offset, int64_t bytes);
/* One more arrival is due in this phase (cp.async.mbarrier.arrive without .noinc). */
void mbarrier_add_pending(warp *w, const instr *in, cta *c, uint32_t offset, uint32_t count);
/* Bytes are written where a barrier may lie: a fault if it is in use; if it is idle, it ends with a remark. Cheap where
 * there is none; memory.c calls it for threads' stores. */
void mbarrier_guard(warp *w, const instr *in, cta *c, uint32_t offset, uint32_t bytes);
void mbarrier_check(warp *w, const instr *in, cta *c, uint32_t offset); /* at issue: there is one */
/* To whom a fence or barrier has made mbarrier.init visible, beyond the CTA's threads: nobody, threads of the cluster,
 * the async proxy too. */
typedef enum { VIEW_CTA, VIEW_CLUSTER, VIEW_ASYNC } mbarrier_view;
/* At issue: there is one, and with FENCES_TEXT who signals has that view of it. */
void mbarrier_check_view(warp *w, const instr *in, int lane, cta *c, uint32_t offset, mbarrier_view view);
/* By these lanes: of what they have initialised, and of what others had until that turn. */
void mbarrier_publish(const warp *w, uint32_t lanes, mbarrier_view view, uint64_t others_until);
int mbarrier_held(const cta *c, uint32_t offset); /* an operation should not signal now: somebody would miss it */
void mbarrier_describe(const cta *c, uint32_t offset, char *out, size_t size); /* for the deadlock's report */

/* ---- beginnings and ends ---- */

/* A family with state of its own defines the hooks that it needs; the core calls those that exist. */
#define LIFECYCLE_HOOKS(X)                                                                                             \
    X(memory_cta_start, cta *)    /* shared memory is there; no warp has run */                                        \
    X(cp_async_warp_end, warp *)  /* frees w->cp_async */                                                              \
    X(bulk_warp_end, warp *)      /* w->bulk_groups */                                                                 \
    X(wgmma_warp_end, warp *)     /* w->wgmma */                                                                       \
    X(tmem_warp_end, warp *)      /* w->tmem_loads */                                                                  \
    X(pending_warp_end, warp *)   /* w->pending */                                                                     \
    X(call_nodes_free, warp *)    /* w->calls */                                                                       \
    X(mbarrier_cta_exit, warp *)  /* the CTA's last warp has exited: may fault */                                      \
    X(tmem_cta_exit, warp *)      /* the CTA's last warp has exited: may fault */                                      \
    X(warpgroup_cta_exit, warp *) /* the same: may fault */                                                            \
    X(tcgen05_cta_end, cta *)     /* frees c->tcgen05 */                                                               \
    X(warpgroup_cta_end, cta *)   /* c->warpgroups */                                                                  \
    X(mbarrier_cta_end, cta *)    /* c->mbarriers */                                                                   \
    X(memory_cta_end, cta *)      /* c->shadow */                                                                      \
    X(memory_grid_end, grid *)                                                                                         \
    X(async_clear, machine *)      /* frees every operation without running it: the machine is being destroyed */      \
    X(tmem_machine_end, machine *) /* frees the SMs' tensor memories */
#define X(hook, argument) void hook(argument) __attribute__((weak));
LIFECYCLE_HOOKS(X)
#undef X
#define CALL_HOOK(hook, argument)                                                                                      \
    do {                                                                                                               \
        if (hook) hook(argument);                                                                                      \
    } while (0)

/* ---- reports (report.c) ---- */

/* Stops the machine: "kernel K, block (x,y,z), warp W lane L, file:line `text`: message".
 * lane -1: the whole warp. w NULL: its CTA has gone (an operation that outlived it). */
_Noreturn void fault(warp *w, const instr *in, int lane, const char *message, ...)
    __attribute__((format(printf, 4, 5)));
_Noreturn void report_deadlock(machine *m);
void remark_once(machine *m, const char *key, const char *message, ...) __attribute__((format(printf, 3, 4)));

/* ---- trace (trace.c) ---- */

void trace_op(machine *m, const async_op *op); /* when it ends */
void trace_cta(machine *m, const cta *c);      /* when it is freed */
void trace_launch(machine *m, const grid *g);  /* when it is queued: what ran before the trace is not counted */
void trace_grid(machine *m, const grid *g);    /* when it has finished */
void trace_write(machine *m);
void trace_end(machine *m);
void trace_move(machine *from, machine *to); /* goes on in the same file, after a fault */
void trace_begin(machine *m, const char *path);

#endif
