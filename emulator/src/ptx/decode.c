/* The decoder. Hands each statement to the family that claims its opcode, and gives families the modifiers, operands
 * and slots. A modifier or operand that no family takes rejects the module. */
#define _GNU_SOURCE /* asprintf */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "machine/machine.h"
#include "ptx/syntax.h"

/* Weak, so that a program can link the parser with some of the families, as tests of single families do. */
#define X(table) extern const opcode_entry table[] __attribute__((weak));
OPCODE_TABLES(X)
#undef X

_Noreturn void reject(decoder *d, const char *reason, ...) {
    char said[800];
    va_list list;
    va_start(list, reason);
    vsnprintf(said, sizeof said, reason, list);
    va_end(list);
    char *message;
    const statement *s = d->statement;
    int made =
        s ? asprintf(&message, "%s:%d: `%.400s`: %s", d->module->file, s->line, s->text, said)
          : asprintf(&message, "%s:%d: %s: %s", d->module->file, d->function->line, function_title(d->function), said);
    d->state->error = made < 0 ? NULL : message;
    longjmp(d->state->escape, 1);
}

void *decode_alloc(decoder *d, size_t bytes) {
    return arena_alloc(d->module->arena, bytes);
}

/* ---- modifiers ---- */

static int find_modifier(const decoder *d, const char *name) {
    for (int i = 0; i < d->statement->modifier_count; i++)
        if (!(d->taken >> i & 1) && !strcmp(d->statement->modifiers[i], name)) return i;
    return -1;
}

int has_modifier(const decoder *d, const char *name) {
    return find_modifier(d, name) >= 0;
}

int take(decoder *d, const char *name) {
    int i = find_modifier(d, name);
    if (i < 0) return 0;
    d->taken |= 1u << i;
    return 1;
}

void need(decoder *d, const char *name) {
    if (!take(d, name)) reject(d, "the modifier .%s is missing", name);
}

int take_one_of(decoder *d, const char *const *names) {
    for (int i = 0; names[i]; i++)
        if (take(d, names[i])) return i;
    return -1;
}

ptx_type take_type(decoder *d) {
    for (int i = 0; i < d->statement->modifier_count; i++) {
        if (d->taken >> i & 1) continue;
        ptx_type type = type_of_name(d->statement->modifiers[i]);
        if (type == TYPE_NONE) continue;
        d->taken |= 1u << i;
        return type;
    }
    return TYPE_NONE;
}

ptx_type need_type(decoder *d) {
    ptx_type type = take_type(d);
    if (type == TYPE_NONE) reject(d, "the type is missing");
    return type;
}

ptx_space take_space(decoder *d) {
    static const struct {
        const char *name;
        ptx_space space;
    } spaces[] = {
        {"global", SPACE_GLOBAL}, {"shared", SPACE_SHARED},      {"shared::cta", SPACE_SHARED},
        {"local", SPACE_LOCAL},   {"const", SPACE_CONST},        {"shared::cluster", SPACE_SHARED_CLUSTER},
        {"param", SPACE_PARAM},   {"param::entry", SPACE_PARAM}, {"param::func", SPACE_PARAM},
    };
    for (int i = 0; i < d->statement->modifier_count; i++)
        for (size_t k = 0; k < sizeof spaces / sizeof *spaces && !(d->taken >> i & 1); k++)
            if (!strcmp(d->statement->modifiers[i], spaces[k].name)) {
                d->taken |= 1u << i;
                return spaces[k].space;
            }
    return SPACE_NONE;
}

/* ---- slots ---- */

static ptx_type slot_type(ptx_type type) {
    int bits = type_bits(type);
    return type == TYPE_PRED ? TYPE_PRED : bits <= 32 ? TYPE_B32 : bits == 64 ? TYPE_B64 : TYPE_B128;
}

static uint32_t slot_bytes(ptx_type type) {
    switch (slot_type(type)) {
    case TYPE_PRED:
        return 4;
    case TYPE_B32:
        return 4 * WARP_LANES;
    case TYPE_B64:
        return 8 * WARP_LANES;
    default:
        return 16 * WARP_LANES;
    }
}

uint32_t new_slot(entry *e, ptx_type type) {
    uint32_t bytes = slot_bytes(type);
    uint32_t slot = (uint32_t)align_up(e->register_bytes, bytes);
    e->register_bytes = slot + bytes;
    return slot;
}

static uint64_t fill_hash(const struct fill *f) {
    uint64_t h = f->bits[0] * 0x9e3779b97f4a7c15u ^ f->bits[1] * 0xc2b2ae3d27d4eb4fu ^ (uint64_t)f->type << 56;
    for (const char *c = f->special; c && *c; c++) h = (h ^ (unsigned char)*c) * 0x100000001b3u;
    return h ^ h >> 29;
}

static int same_fill(const struct fill *a, const struct fill *b) {
    return a->type == b->type && a->bits[0] == b->bits[0] && a->bits[1] == b->bits[1] && !a->special == !b->special &&
           (!a->special || !strcmp(a->special, b->special));
}

static void grow_fills(decoder *d) {
    decoder_state *s = d->state;
    entry *e = d->entry;
    s->fill_capacity = s->fill_capacity ? 2 * s->fill_capacity : 64;
    s->table_capacity = 4 * s->fill_capacity;
    struct fill *fills = decode_alloc(d, (size_t)s->fill_capacity * sizeof *fills);
    if (e->fill_count) memcpy(fills, e->fills, (size_t)e->fill_count * sizeof *fills);
    e->fills = fills;
    s->fill_table = decode_alloc(d, (size_t)s->table_capacity * sizeof *s->fill_table);
    for (int i = 0; i < e->fill_count; i++) {
        uint64_t at = fill_hash(&fills[i]);
        while (s->fill_table[at % (uint64_t)s->table_capacity]) at++;
        s->fill_table[at % (uint64_t)s->table_capacity] = i + 1;
    }
}

/* The slot that holds this value from a warp's start on; equal ones share it. */
static uint32_t filled_slot(decoder *d, struct fill fill) {
    entry *e = d->entry;
    decoder_state *s = d->state;
    fill.type = slot_type(fill.type);
    if (e->fill_count == s->fill_capacity) grow_fills(d);
    uint64_t at = fill_hash(&fill);
    for (int i; (i = s->fill_table[at % (uint64_t)s->table_capacity]) != 0; at++)
        if (same_fill(&fill, &e->fills[i - 1])) return e->fills[i - 1].slot;
    fill.slot = new_slot(e, fill.type);
    if (fill.special) {
        fill.scope = special_scope(fill.special);
        fill.special = arena_text(d->module->arena, fill.special, strlen(fill.special));
    }
    e->fills[e->fill_count++] = fill;
    s->fill_table[at % (uint64_t)s->table_capacity] = e->fill_count;
    return fill.slot;
}

uint32_t hidden_register(decoder *d, const char *name, ptx_type type) {
    for (struct hidden *h = d->state->hidden; h; h = h->next)
        if (!strcmp(h->name, name)) return h->slot;
    struct hidden *h = decode_alloc(d, sizeof *h);
    *h = (struct hidden){.next = d->state->hidden, .name = name, .slot = new_slot(d->entry, type)};
    d->state->hidden = h;
    return h->slot;
}

/* ---- values ---- */

static uint32_t immediate_slot(decoder *d, const operand *o, ptx_type type) {
    int bits = type_bits(type), wants_float = type == TYPE_F32 || type == TYPE_F64;
    struct fill fill = {.type = type, .bits = {(uint64_t)o->bits, o->bits < 0 ? UINT64_MAX : 0}};
    if (o->is_float) {
        fill.bits[1] = 0;
        float single = (float)o->value;
        if (bits == 64 && o->is_float == 32) {
            memcpy(fill.bits, &o->value, 8);
        } else if (bits == 32 && o->is_float == 64) {
            uint32_t single_bits;
            memcpy(&single_bits, &single, 4);
            fill.bits[0] = single_bits;
        } else if (bits != o->is_float) {
            reject(d, "a floating-point literal cannot be of type .%s", type_name(type));
        }
    } else if (wants_float) {
        reject(d, "an integer cannot be of type .%s: a literal 0%c, or a decimal point, is needed", type_name(type),
               type == TYPE_F32 ? 'f' : 'd');
    }
    if (bits < 128) fill.bits[1] = 0;
    if (bits < 64) fill.bits[0] &= ((uint64_t)1 << bits) - 1;
    return filled_slot(d, fill);
}

struct special_reads {
    run_function *run; /* of the instruction itself */
    struct special_read {
        struct special_read *next;
        const char *name;
        uint32_t slot;
        int is_wide;
    } *first;
};

static run_result run_special_reads(warp *w, const instr *in, uint32_t lanes) {
    for (const struct special_read *r = in->special_reads->first; r; r = r->next) FOR_LANES(lane, lanes) {
            uint64_t value = special_read(w, r->name, (int)lane);
            if (r->is_wide)
                r64(w, r->slot)[lane] = value;
            else
                r32(w, r->slot)[lane] = (uint32_t)value;
        }
    return in->special_reads->run(w, in, lanes);
}

static uint32_t special_slot(decoder *d, const char *name, ptx_type type) {
    int bits = type_bits(type);
    if (!special_exists(name)) reject(d, "`%s` is neither a declared register nor a special one that is known", name);
    int is_predicate = !strcmp(name, "%is_explicit_cluster");
    if (is_predicate ? bits != 1 : bits != 32 && bits != 64)
        reject(d, "`%s` cannot be read as .%s", name, type_name(type));
    if (!strcmp(name, "%reserved_smem_offset_1")) d->entry->uses_scratch = 1;
    if (!special_is_dynamic(name)) return filled_slot(d, (struct fill){.type = type, .special = name});
    if (!d->in->special_reads) d->in->special_reads = decode_alloc(d, sizeof *d->in->special_reads);
    struct special_read *r = decode_alloc(d, sizeof *r);
    *r = (struct special_read){d->in->special_reads->first, name, new_slot(d->entry, type), bits == 64};
    d->in->special_reads->first = r;
    return r->slot;
}

/* The address of a variable or function, as a value. */
static uint32_t symbol_slot(decoder *d, const operand *o, int64_t offset, ptx_type type) {
    int bits = type_bits(type);
    if (bits != 32 && bits != 64) reject(d, "an address cannot be of type .%s", type_name(type));
    struct fill fill = {.type = type};
    const variable *v = o->reg;
    char special[48];
    if (!v) {
        const function *f = find_function(d->module, o->name);
        if (!f) reject(d, "`%s` is no variable and no function", o->name);
        fill.bits[0] = (uint64_t)(uintptr_t)f->original + (uint64_t)offset;
    } else {
        if (v->replaced) v = v->replaced;
        int64_t address = (int64_t)((uint64_t)v->address + (uint64_t)offset);
        switch (v->space) {
        case SPACE_SHARED:
            if (address < 0 || address > UINT32_MAX) reject(d, "the address is outside shared memory");
            snprintf(special, sizeof special, "shared:%lld", (long long)address);
            fill.special = special;
            break;
        case SPACE_PARAM:
            if (v->is_kernel_parameter) {
                snprintf(special, sizeof special, "param:%lld", (long long)address);
                fill.special = special;
                break;
            } /* fall through */
        case SPACE_LOCAL:
            fill.bits[0] = LOCAL_WINDOW + (uint64_t)address + (uint64_t)d->function->local_base;
            break;
        case SPACE_GLOBAL:
        case SPACE_CONST:
            if (v->is_extern) reject(d, "`%s` is declared .extern, and nothing defines it", v->name);
            fill.bits[0] = (uint64_t)address;
            break;
        default:
            reject(d, "`%s` has no address", v->name);
        }
    }
    if (bits == 32) fill.bits[0] &= UINT32_MAX;
    return filled_slot(d, fill);
}

/* ---- operands ---- */

int operand_count(const decoder *d) {
    return d->statement->operand_count;
}

const operand *operand_at(decoder *d, int index) {
    if (index < 0 || index >= d->statement->operand_count) reject(d, "operand %d is missing", index + 1);
    d->operands_taken |= 1u << index;
    return &d->statement->operands[index];
}

static uint32_t register_slot(decoder *d, const operand *o, ptx_type type) {
    const variable *v = o->reg;
    if (o->name) reject(d, "the selector .%s is not known here", o->name);
    int has = type_bits(v->type), wants = type_bits(type);
    if ((v->type == TYPE_PRED) != (type == TYPE_PRED))
        reject(d, v->type == TYPE_PRED ? "`%s` is a predicate" : "`%s` is no predicate", v->name);
    /* there are no instructions on 8 bits but moves, which take wider registers for them */
    if (has != wants && !(wants <= 8 && has <= 32))
        reject(d, "`%s` has %d bits, .%s has %d", v->name, has, type_name(type), wants);
    return v->slot;
}

uint32_t source_of(decoder *d, const operand *o, ptx_type type) {
    if (o->negated) reject(d, "`!` is not known here");
    switch (o->kind) {
    case OPERAND_REGISTER:
        return register_slot(d, o, type);
    case OPERAND_IMMEDIATE:
        return immediate_slot(d, o, type);
    case OPERAND_SPECIAL:
        return special_slot(d, o->name, type);
    case OPERAND_SYMBOL:
        return symbol_slot(d, o, o->bits, type);
    case OPERAND_SINK:
        reject(d, "`_` is no source");
    case OPERAND_ADDRESS:
        reject(d, "a memory operand is not known here");
    default:
        reject(d, "a vector is not known here");
    }
}

uint32_t source(decoder *d, int index, ptx_type type) {
    return source_of(d, operand_at(d, index), type);
}

uint32_t source_predicate(decoder *d, int index, int *negated) {
    operand o = *operand_at(d, index);
    *negated = o.negated;
    o.negated = 0;
    return source_of(d, &o, TYPE_PRED);
}

uint32_t destination_of(decoder *d, const operand *o, ptx_type type) {
    if (o->kind == OPERAND_SINK) return NO_SLOT;
    if (o->kind != OPERAND_REGISTER || o->negated) reject(d, "a register is needed to put the result in");
    return register_slot(d, o, type);
}

uint32_t destination(decoder *d, int index, ptx_type type) {
    return destination_of(d, operand_at(d, index), type);
}

uint32_t second_destination(decoder *d, int index, ptx_type type) {
    const operand *o = operand_at(d, index);
    d->state->second_taken |= 1u << index;
    return o->second ? destination_of(d, o->second, type) : NO_SLOT;
}

static const uint32_t *vector_slots(decoder *d, int index, ptx_type type, int *length,
                                    uint32_t (*slot_of)(decoder *, const operand *, ptx_type)) {
    const operand *o = operand_at(d, index);
    int is_vector = o->kind == OPERAND_VECTOR;
    *length = is_vector ? o->count : 1;
    uint32_t *slots = decode_alloc(d, (size_t)*length * sizeof *slots);
    for (int i = 0; i < *length; i++) slots[i] = slot_of(d, is_vector ? &o->items[i] : o, type);
    return slots;
}

const uint32_t *source_vector(decoder *d, int index, ptx_type type, int *length) {
    return vector_slots(d, index, type, length, source_of);
}

const uint32_t *destination_vector(decoder *d, int index, ptx_type type, int *length) {
    return vector_slots(d, index, type, length, destination_of);
}

uint32_t source_address(decoder *d, int index, int64_t *offset, int *bits) {
    const operand *o = operand_at(d, index);
    if (o->kind != OPERAND_ADDRESS) reject(d, "operand %d must be an address in brackets", index + 1);
    const operand *base = &o->items[0];
    *offset = o->bits;
    *bits = 64;
    if (base->kind == OPERAND_REGISTER) {
        *bits = type_bits(base->reg->type);
        if (*bits != 32 && *bits != 64) reject(d, "`%s` is no address: it has %d bits", base->reg->name, *bits);
        return source_of(d, base, base->reg->type);
    }
    if (base->kind == OPERAND_IMMEDIATE && !base->is_float) return source_of(d, base, TYPE_B64);
    if (base->kind != OPERAND_SYMBOL) reject(d, "operand %d is no address", index + 1);
    return symbol_slot(d, base, 0, TYPE_B64);
}

int is_constant(decoder *d, int index, int64_t *value) {
    if (index < 0 || index >= d->statement->operand_count) return 0;
    const operand *o = &d->statement->operands[index];
    if (o->kind != OPERAND_IMMEDIATE || o->is_float) return 0;
    operand_at(d, index);
    *value = o->bits;
    return 1;
}

int64_t constant(decoder *d, int index) {
    int64_t value;
    operand_at(d, index);
    if (!is_constant(d, index, &value)) reject(d, "operand %d must be an integer constant", index + 1);
    return value;
}

int32_t label_target_of(decoder *d, const operand *o) {
    if (o->kind == OPERAND_SYMBOL && !o->reg && !o->bits)
        for (const struct label *l = d->function->labels; l; l = l->next)
            if (l->name == o->name) return l->statement;
    reject(d, "`%s` is no label of this function", o->name ? o->name : "this");
}

int32_t label_target(decoder *d, int index) {
    return label_target_of(d, operand_at(d, index));
}

/* ---- statements ---- */

void decode_finish(decoder *d) {
    const statement *s = d->statement;
    for (int i = 0; i < s->modifier_count; i++)
        if (!(d->taken >> i & 1)) reject(d, "the modifier .%s is not known here", s->modifiers[i]);
    for (int i = 0; i < s->operand_count; i++) {
        if (!(d->operands_taken >> i & 1)) reject(d, "operand %d is one more than is known here", i + 1);
        if (s->operands[i].second && !(d->state->second_taken >> i & 1)) reject(d, "`|` is not known here");
    }
}

typedef struct claim {
    struct claim *next;
    const char *opcode;
    decode_function *decode;
} claim;

#define CLAIM_BUCKETS 256
static claim *claims[CLAIM_BUCKETS];

static claim **claim_bucket(const char *opcode) {
    uint32_t h = 0;
    for (const char *c = opcode; *c; c++) h = h * 31 + (unsigned char)*c;
    return &claims[(h ^ h >> 8) % CLAIM_BUCKETS];
}

static void collect_claims(void) {
    static int done;
    if (done) return;
    done = 1;
    const opcode_entry *const tables[] = {
#define X(table) table,
        OPCODE_TABLES(X)
#undef X
    };
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const opcode_entry *e = tables[t]; e && e->opcode; e++) {
            claim *c = malloc(sizeof *c);
            if (!c) abort();
            claim **last = claim_bucket(e->opcode);
            while (*last) last = &(*last)->next;
            *c = (claim){NULL, e->opcode, e->decode};
            *last = c;
        }
}

static const char *mnemonic(decoder *d) {
    const statement *s = d->statement;
    size_t length = strlen(s->opcode) + 1;
    for (int i = 0; i < s->modifier_count; i++) length += strlen(s->modifiers[i]) + 1;
    char *name = decode_alloc(d, length), *at = name + sprintf(name, "%s", s->opcode);
    for (int i = 0; i < s->modifier_count; i++) at += sprintf(at, ".%s", s->modifiers[i]);
    return name;
}

/* Lanes of a warp meet where PTX has them wait for each other. */
static int lanes_meet(decoder *d) {
    return has_modifier(d, "sync") || has_modifier(d, "aligned") || !strcmp(d->statement->opcode, "bar");
}

/* What another lane can see or change. */
static int lanes_part(decoder *d) {
    static const char *const opcodes[] = {"ld", "ldu", "st", "atom", "red", "cp", "mbarrier", "tcgen05", NULL};
    if (has_modifier(d, "param") || has_modifier(d, "local") || has_modifier(d, "const") || lanes_meet(d)) return 0;
    for (int i = 0; opcodes[i]; i++)
        if (!strcmp(d->statement->opcode, opcodes[i])) return 1;
    return 0;
}

static void decode_statement(decoder *d, const statement *s, instr *in) {
    d->statement = s;
    d->in = in;
    *in = (instr){.guard = NO_SLOT, .d = NO_SLOT, .d2 = NO_SLOT, .line = s->line, .text = s->text};
    for (size_t i = 0; i < sizeof in->s / sizeof *in->s; i++) in->s[i] = NO_SLOT;
    in->name = mnemonic(d);
    d->taken = 0; /* a modifier is found once */
    in->lanes_meet = (uint8_t)lanes_meet(d);
    in->lanes_part = (uint8_t)lanes_part(d);
    if (s->guard) {
        in->guard = s->guard->slot;
        in->guard_negated = (uint8_t)s->guard_negated;
    }
    int claimed = 0;
    for (const claim *c = *claim_bucket(s->opcode); c; c = c->next) {
        if (strcmp(c->opcode, s->opcode)) continue;
        claimed = 1;
        d->taken = d->operands_taken = d->state->second_taken = 0;
        if (!c->decode(d)) continue;
        decode_finish(d);
        check_target(d);
        if (in->special_reads) {
            in->special_reads->run = in->run;
            in->run = run_special_reads;
        }
        return;
    }
    if (claimed) reject(d, "this form of `%s` is not known", s->opcode);
    reject(d, "the instruction `%s` is not known", s->opcode);
}

void decode_function_body(decoder *d) {
    function *f = d->function;
    collect_claims();
    f->length = f->statement_count + 1;
    f->code = decode_alloc(d, (size_t)f->length * sizeof *f->code);
    for (int i = 0; i < f->statement_count; i++) decode_statement(d, &f->statements[i], &f->code[i]);
    /* falling off the end returns */
    static const statement end = {.text = "}", .opcode = "ret"};
    statement *last = decode_alloc(d, sizeof *last);
    *last = end;
    last->line = f->statement_count ? f->statements[f->statement_count - 1].line + 1 : f->line;
    decode_statement(d, last, &f->code[f->statement_count]);
    d->statement = NULL;
}
