/* Warp collectives (PTX ISA 9.7.9.6 shfl.sync; 9.7.13.2 bar.warp.sync; 9.7.13.9 to 9.7.13.14 vote.sync, match.sync,
 * activemask, redux.sync, elect.sync).
 *
 * Each lane names its members. Lanes of a fragment may name different sets. Each set runs once all its members that
 * have not exited are here; until then it waits as a fragment of its own. */
#include "memory/memory.h"
#include "scalar/lanes.h"

enum { POISON_WORD = -1 };

typedef struct collective {
    uint32_t members; /* slot */
    uint32_t source;  /* slot of what is voted on, matched, shuffled, reduced */
    int source_negated;
    int mode;
    int absolute, nan;
    int votes, predicate_result; /* the source, and the result, are predicates */
} collective;

typedef void group_function(warp *w, const instr *in, uint32_t group, uint32_t members);

/* The lanes of `lanes` that name these members. */
static uint32_t naming(const uint32_t *named, uint32_t members, uint32_t lanes) {
    uint32_t other = 0, group = 0;
    for (int i = 0; i < WARP_LANES; i++) other |= named[i] ^ members;
    if (!other) return lanes;
    FOR_LANES(i, lanes) group |= (uint32_t)(named[i] == members) << i;
    return group;
}

/* The slots of an instruction's operands, as far as it has them. */
enum { SOURCES = 3, OPERANDS = 5 };
static int operands_of(const instr *in, uint32_t slots[OPERANDS]) {
    const collective *c = in->extra;
    const uint32_t all[OPERANDS] = {c->source, in->s[1], in->s[2], in->d, in->d2};
    memcpy(slots, all, sizeof all);
    return in->type == TYPE_B64 ? 8 : 4; /* of a lane of the first */
}

/* Members that have come to several instructions, which differ in their operands only (text: "the same qualifiers and
 * the same membermask"; hardware does the same). Each instruction is run with the values of all members, which the
 * registers of the others' lanes hold for that long. */
static void work_together(warp *w, const instr *in, uint32_t group, meeting *others, int count, uint32_t members,
                          group_function *work) {
    uint64_t values[SOURCES][WARP_LANES] = {{0}};
    uint8_t kept[OPERANDS][WARP_LANES * 8];
    uint32_t slots[OPERANDS], all = members & w->live;
    others[count] = (meeting){in, group}; /* at most 31 others */
    for (int i = 0; i <= count; i++) {
        int bytes = operands_of(others[i].in, slots);
        for (int k = 0; k < SOURCES; k++) {
            if (slots[k] == NO_SLOT) continue;
            FOR_LANES(lane, others[i].lanes) {
                if (((const collective *)others[i].in->extra)->votes)
                    values[k][lane] = *predicate(w, slots[k]) >> lane & 1;
                else
                    memcpy(&values[k][lane], w->registers + slots[k] + lane * (uint32_t)(k ? 4 : bytes),
                           (size_t)(k ? 4 : bytes));
            }
        }
    }
    for (int i = 0; i <= count; i++) {
        const collective *c = others[i].in->extra;
        uint32_t foreign = ~others[i].lanes;
        int bytes = operands_of(others[i].in, slots);
        /* a predicate is a mask: source of a vote, d2, and d of a vote that is no ballot */
        const int sizes[OPERANDS] = {c->votes ? 0 : bytes, 4, 4, c->predicate_result ? 0 : 4, 0};
        for (int k = 0; k < OPERANDS; k++)
            if (slots[k] != NO_SLOT)
                memcpy(kept[k], w->registers + slots[k], sizes[k] ? (size_t)(WARP_LANES * sizes[k]) : 4);
        for (int k = 0; k < SOURCES; k++) FOR_LANES(lane, all & foreign) {
                if (slots[k] == NO_SLOT) continue;
                if (sizes[k])
                    memcpy(w->registers + slots[k] + lane * (uint32_t)sizes[k], &values[k][lane], (size_t)sizes[k]);
                else
                    set_predicate(w, slots[k], 1u << lane, (uint32_t)values[k][lane] << lane);
            }
        work(w, others[i].in, all, members);
        for (int k = 0; k < OPERANDS; k++) {
            if (slots[k] == NO_SLOT) continue;
            uint32_t mask;
            memcpy(&mask, kept[k], sizeof mask);
            if (!sizes[k]) set_predicate(w, slots[k], foreign, mask);
            for (uint32_t lane = 0; sizes[k] && lane < WARP_LANES; lane++)
                if (foreign >> lane & 1)
                    memcpy(w->registers + slots[k] + lane * (uint32_t)sizes[k], kept[k] + lane * (uint32_t)sizes[k],
                           (size_t)sizes[k]);
        }
    }
}

/* Runs `work` for each group of lanes that name the same members. */
static run_result for_groups(warp *w, const instr *in, uint32_t lanes, group_function *work) {
    const collective *c = in->extra;
    const uint32_t *named = r32(w, c->members);
    uint32_t left = lanes, done = 0;
    while (left) {
        uint32_t first = (uint32_t)__builtin_ctz(left), members = named[first];
        uint32_t group = naming(named, members, left);
        left &= ~group;
        if (group & ~members)
            fault(w, in, __builtin_ctz(group & ~members),
                  "the lane is not in the mask of members 0x%08x that it names itself", members);
        if (!converge(w, in, members)) {
            if (!left && !done) return RUN_PARK;
            split_off(w, group);
            continue;
        }
        meeting others[WARP_LANES];
        int count = elsewhere(w, in, members, others);
        uint32_t all = group;
        for (int i = 0; i < count; i++) all |= others[i].lanes;
        if (all != (members & w->live))
            fault(w, in, (int)first, "lanes 0x%08x name the members 0x%08x, but others of them name another mask", all,
                  members);
        if (work && !count) work(w, in, group, members);
        if (work && count) work_together(w, in, group, others, count, members, work);
        if (count) elsewhere_done(w, in, members);
        done |= group;
    }
    return RUN_NEXT;
}

static collective *take_members(decoder *d, int index) {
    collective *c = decode_alloc(d, sizeof *c);
    c->members = source(d, index, TYPE_B32);
    c->source = NO_SLOT;
    d->in->extra = c;
    return c;
}

static void need_sync(decoder *d) {
    if (!take(d, "sync")) reject(d, "the form without .sync does not exist from sm_70 on");
}

/* ---- shfl ---- */

enum { SHFL_UP, SHFL_DOWN, SHFL_BFLY, SHFL_IDX };

/* The lane to read from, and whether it lies in the segment. */
static inline uint32_t shuffle_from(int mode, uint32_t lane, uint32_t b, uint32_t c, int *inside) {
    uint32_t segment = c >> 8 & 31, least = lane & segment, clamp = c & 31;
    int32_t most = (int32_t)(least | (clamp & ~segment)), from;
    b &= 31;
    switch (mode) {
    case SHFL_UP:
        from = (int32_t)lane - (int32_t)b;
        *inside = from >= most;
        break;
    case SHFL_DOWN:
        from = (int32_t)(lane + b);
        *inside = from <= most;
        break;
    case SHFL_BFLY:
        from = (int32_t)(lane ^ b);
        *inside = from <= most;
        break;
    default:
        from = (int32_t)(least | (b & ~segment));
        *inside = from <= most;
    }
    return *inside ? (uint32_t)from : lane;
}

static void shuffle(warp *w, const instr *in, uint32_t group, uint32_t members) {
    const collective *s = in->extra;
    uint32_t a[WARP_LANES], valid = 0, all = members & w->live;
    memcpy(a, r32(w, s->source), sizeof a);
    const uint32_t *b = r32(w, in->s[1]), *c = r32(w, in->s[2]);
    uint32_t result[WARP_LANES];
    FOR_LANES(i, group) {
        int inside;
        uint32_t from = shuffle_from(s->mode, i, b[i], c[i], &inside);
        valid |= (uint32_t)inside << i;
        result[i] = all >> from & 1 ? a[from] : (uint32_t)POISON_WORD;
    }
    if (in->d != NO_SLOT) FOR_LANES(i, group) r32(w, in->d)[i] = result[i];
    set_predicate(w, in->d2, group, valid);
}

static run_result run_shfl(warp *w, const instr *in, uint32_t lanes) {
    return for_groups(w, in, lanes, shuffle);
}

static int decode_shfl(decoder *d) {
    static const char *const modes[] = {"up", "down", "bfly", "idx", NULL};
    need_sync(d);
    int mode = take_one_of(d, modes);
    if (mode < 0) reject(d, "the mode is missing");
    need(d, "b32");
    collective *c = take_members(d, 4);
    c->mode = mode;
    d->in->d = destination(d, 0, TYPE_B32);
    d->in->d2 = second_destination(d, 0, TYPE_PRED);
    c->source = source(d, 1, TYPE_B32);
    d->in->s[1] = source(d, 2, TYPE_B32);
    d->in->s[2] = source(d, 3, TYPE_B32);
    d->in->run = run_shfl;
    return 1;
}

/* ---- vote ---- */

enum { VOTE_ALL, VOTE_ANY, VOTE_UNI, VOTE_BALLOT };

static void vote(warp *w, const instr *in, uint32_t group, uint32_t members) {
    const collective *c = in->extra;
    (void)members;
    uint32_t votes = *predicate(w, c->source);
    votes = (c->source_negated ? ~votes : votes) & group;
    if (c->mode == VOTE_BALLOT) {
        if (in->d == NO_SLOT) return;
        uint32_t *d = r32(w, in->d);
        LANES(i, group, { d[i] = votes; });
        return;
    }
    int yes = c->mode == VOTE_ALL ? votes == group : c->mode == VOTE_ANY ? votes != 0 : votes == group || !votes;
    set_predicate(w, in->d, group, yes ? group : 0);
}

static run_result run_vote(warp *w, const instr *in, uint32_t lanes) {
    return for_groups(w, in, lanes, vote);
}

static int decode_vote(decoder *d) {
    static const char *const modes[] = {"all", "any", "uni", "ballot", NULL};
    need_sync(d);
    int mode = take_one_of(d, modes);
    if (mode < 0) reject(d, "the mode is missing");
    need(d, mode == VOTE_BALLOT ? "b32" : "pred");
    collective *c = take_members(d, 2);
    c->mode = mode;
    c->votes = 1;
    c->predicate_result = mode != VOTE_BALLOT;
    d->in->d = destination(d, 0, mode == VOTE_BALLOT ? TYPE_B32 : TYPE_PRED);
    c->source = source_predicate(d, 1, &c->source_negated);
    d->in->run = run_vote;
    return 1;
}

/* ---- match ---- */

static void match(warp *w, const instr *in, uint32_t group, uint32_t members) {
    const collective *c = in->extra;
    (void)members;
    uint64_t value[WARP_LANES];
    uint32_t equal[WARP_LANES];
    FOR_LANES(i, group) value[i] = in->type == TYPE_B64 ? r64(w, c->source)[i] : r32(w, c->source)[i];
    FOR_LANES(i, group) {
        equal[i] = 0;
        FOR_LANES(other, group) equal[i] |= (uint32_t)(value[other] == value[i]) << other;
    }
    uint32_t all = equal[__builtin_ctz(group)] == group ? group : 0;
    if (in->d != NO_SLOT) FOR_LANES(i, group) r32(w, in->d)[i] = c->mode ? all : equal[i];
    set_predicate(w, in->d2, group, all);
}

static run_result run_match(warp *w, const instr *in, uint32_t lanes) {
    return for_groups(w, in, lanes, match);
}

static int decode_match(decoder *d) {
    static const char *const modes[] = {"any", "all", NULL};
    int mode = take_one_of(d, modes);
    if (mode < 0) reject(d, "the mode is missing");
    need_sync(d);
    d->in->type = need_type(d);
    if (d->in->type != TYPE_B32 && d->in->type != TYPE_B64) reject(d, "the type must be .b32 or .b64");
    collective *c = take_members(d, 2);
    c->mode = mode;
    d->in->d = destination(d, 0, TYPE_B32);
    if (mode) d->in->d2 = second_destination(d, 0, TYPE_PRED);
    c->source = source(d, 1, d->in->type);
    d->in->run = run_match;
    return 1;
}

/* ---- redux ---- */

enum { REDUX_ADD, REDUX_MIN, REDUX_MAX, REDUX_AND, REDUX_OR, REDUX_XOR };

static uint32_t redux_integer(const collective *c, ptx_type type, uint32_t a, uint32_t b) {
    int is_signed = type == TYPE_S32, less = is_signed ? (int32_t)a < (int32_t)b : a < b;
    switch (c->mode) {
    case REDUX_ADD:
        return a + b;
    case REDUX_MIN:
        return less ? a : b;
    case REDUX_MAX:
        return less ? b : a;
    case REDUX_AND:
        return a & b;
    case REDUX_OR:
        return a | b;
    default:
        return a ^ b;
    }
}

static uint32_t redux_float(const collective *c, uint32_t a, uint32_t b) {
    const uint32_t magnitude = 0x7fffffff, infinity = 0x7f800000, nan = 0x7fffffff;
    if (c->absolute) a &= magnitude, b &= magnitude;
    int a_nan = (a & magnitude) > infinity, b_nan = (b & magnitude) > infinity;
    if (a_nan || b_nan) return c->nan || (a_nan && b_nan) ? nan : a_nan ? b : a;
    /* in this order -0 is less than +0 */
    uint32_t ordered_a = a >> 31 ? ~a : a | 1u << 31, ordered_b = b >> 31 ? ~b : b | 1u << 31;
    return (ordered_a < ordered_b) == (c->mode == REDUX_MIN) ? a : b;
}

static void redux(warp *w, const instr *in, uint32_t group, uint32_t members) {
    const collective *c = in->extra;
    (void)members;
    const uint32_t *source = r32(w, c->source);
    uint32_t first = (uint32_t)__builtin_ctz(group), result = source[first];
    if (in->type == TYPE_F32) result = redux_float(c, result, result);
    FOR_LANES(i, group & (group - 1)) {
        result =
            in->type == TYPE_F32 ? redux_float(c, result, source[i]) : redux_integer(c, in->type, result, source[i]);
    }
    if (in->d == NO_SLOT) return;
    uint32_t *d = r32(w, in->d);
    LANES(i, group, { d[i] = result; });
}

static run_result run_redux(warp *w, const instr *in, uint32_t lanes) {
    return for_groups(w, in, lanes, redux);
}

static int decode_redux(decoder *d) {
    static const char *const modes[] = {"add", "min", "max", "and", "or", "xor", NULL};
    need_sync(d);
    int mode = take_one_of(d, modes);
    if (mode < 0) reject(d, "the operation is missing");
    ptx_type type = need_type(d);
    collective *c = take_members(d, 2);
    c->mode = mode;
    int ordered = mode == REDUX_MIN || mode == REDUX_MAX;
    if (type == TYPE_F32) {
        c->absolute = take(d, "abs");
        c->nan = take(d, "NaN");
    }
    if (!(type == TYPE_F32 && ordered) && !((type == TYPE_U32 || type == TYPE_S32) && mode <= REDUX_MAX) &&
        !(type == TYPE_B32 && mode >= REDUX_AND))
        reject(d, "there is no such operation on .%s", type_name(type));
    d->in->type = type;
    d->in->d = destination(d, 0, type);
    c->source = source(d, 1, type);
    d->in->run = run_redux;
    return 1;
}

/* ---- elect, activemask, bar.warp.sync ---- */

/* The ISA allows any member, but the same one each time for the same mask: here the lowest. */
static void elect(warp *w, const instr *in, uint32_t group, uint32_t members) {
    uint32_t leader = (uint32_t)__builtin_ctz(members & w->live);
    if (in->d != NO_SLOT) FOR_LANES(i, group) r32(w, in->d)[i] = leader;
    set_predicate(w, in->d2, group, 1u << leader);
}

static run_result run_elect(warp *w, const instr *in, uint32_t lanes) {
    return for_groups(w, in, lanes, elect);
}

static int decode_elect(decoder *d) {
    need(d, "sync");
    take_members(d, 1);
    d->in->d = destination(d, 0, TYPE_B32);
    d->in->d2 = second_destination(d, 0, TYPE_PRED);
    if (d->in->d2 == NO_SLOT) reject(d, "the predicate is missing");
    d->in->run = run_elect;
    return 1;
}

static run_result run_activemask(warp *w, const instr *in, uint32_t lanes) {
    if (in->d != NO_SLOT) FOR_LANES(i, lanes) r32(w, in->d)[i] = lanes;
    return RUN_NEXT;
}

static int decode_activemask(decoder *d) {
    need(d, "b32");
    d->in->d = destination(d, 0, TYPE_B32);
    d->in->run = run_activemask;
    return 1;
}

/* After it, every lane sees what the others did before it. */
static run_result run_bar_warp_sync(warp *w, const instr *in, uint32_t lanes) {
    run_result result = for_groups(w, in, lanes, NULL);
    if (result == RUN_NEXT) w->sync_time = machine_of(w)->now;
    return result;
}

static int decode_bar_warp(decoder *d) {
    if (!has_modifier(d, "warp")) return 0;
    take(d, "warp");
    need(d, "sync");
    take_members(d, 0);
    d->in->run = run_bar_warp_sync;
    return 1;
}

const opcode_entry warp_opcodes[] = {
    {"shfl", decode_shfl},   {"vote", decode_vote},    {"match", decode_match},           {"redux", decode_redux},
    {"elect", decode_elect}, {"bar", decode_bar_warp}, {"activemask", decode_activemask}, {0},
};
