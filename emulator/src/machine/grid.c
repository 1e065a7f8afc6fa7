/* Instructions on grids and SMs: griddepcontrol (programmatic dependent launch, PTX ISA 9.7.13.13), setmaxnreg
 * (9.7.19.5), nanosleep and pmevent (9.7.19). */
#include "control/warpgroup.h"
#include "machine/simt.h"

enum { SLEEPS_BEFORE_SKIPPING = 64 };

static run_result launch_dependents(warp *w, const instr *in, uint32_t lanes) {
    (void)in, (void)lanes;
    cta *c = w->cta;
    if (!c->launch_dependents) {
        c->launch_dependents = 1;
        c->grid->triggered_ctas++;
        machine_progress(machine_of(w));
    }
    return RUN_NEXT;
}

/* Until every grid before this one has finished and its writes are visible. */
static run_result wait_for_grids(warp *w, const instr *in, uint32_t lanes) {
    (void)in, (void)lanes;
    if (machine_of(w)->first_grid != w->cta->grid) return park(w, WAIT_GRID, 0, 0);
    w->sync_time = machine_of(w)->now;
    return RUN_NEXT;
}

static int decode_griddepcontrol(decoder *d) {
    static const char *const actions[] = {"launch_dependents", "wait", NULL};
    int action = take_one_of(d, actions);
    if (action < 0) reject(d, "one of .launch_dependents and .wait is missing");
    d->in->run = action ? wait_for_grids : launch_dependents;
    return 1;
}

static run_result set_registers(warp *w, const instr *in, uint32_t lanes) {
    if (!converge_aligned(w, in, lanes)) return RUN_PARK;
    if (lanes != w->threads && machine_of(w)->fences == FENCES_TEXT)
        fault(w, in, -1, "only lanes %08x of the warp are left; all of a warpgroup must run it (.aligned)", lanes);
    warpgroup_common(w, in, 0, 0);
    return RUN_NEXT;
}

/* PTX registers are unlimited: only the range of the count is checked. */
static int decode_setmaxnreg(decoder *d) {
    static const char *const actions[] = {"inc", "dec", NULL};
    if (take_one_of(d, actions) < 0) reject(d, "one of .inc and .dec is missing");
    need(d, "sync");
    need(d, "aligned");
    if (need_type(d) != TYPE_U32) reject(d, "the type must be .u32");
    int64_t count = constant(d, 0);
    if (count < 24 || count > 256 || count % 8)
        reject(d, "the count is %lld; it must be a multiple of 8 from 24 to 256", (long long)count);
    d->in->run = set_registers;
    return 1;
}

/* When nothing else runs, time advances, so that sleeping warps wake up. */
static run_result sleep_turn(warp *w, const instr *in, uint32_t lanes) {
    machine *m = machine_of(w);
    if (m->idle > SLEEPS_BEFORE_SKIPPING) m->slept += r32(w, in->s[0])[__builtin_ctz(lanes)];
    return RUN_YIELD;
}

static int decode_nanosleep(decoder *d) {
    if (need_type(d) != TYPE_U32) reject(d, "the type must be .u32");
    d->in->s[0] = source(d, 0, TYPE_U32);
    d->in->run = sleep_turn;
    return 1;
}

static run_result nothing(warp *w, const instr *in, uint32_t lanes) {
    (void)w, (void)in, (void)lanes;
    return RUN_NEXT;
}

static int decode_pmevent(decoder *d) {
    take(d, "mask");
    constant(d, 0);
    d->in->run = nothing;
    return 1;
}

const opcode_entry grid_opcodes[] = {{"griddepcontrol", decode_griddepcontrol},
                                     {"setmaxnreg", decode_setmaxnreg},
                                     {"nanosleep", decode_nanosleep},
                                     {"pmevent", decode_pmevent},
                                     {0}};
