/* Control flow (PTX ISA, "Control Flow Instructions" and "Miscellaneous Instructions"): bra, brx.idx, call, ret,
 * exit, trap, brkpt. Functions that programs call without defining them are in system_calls.c.
 *
 * Parameters of functions and the .param variables of a call are in the thread's local memory; a call copies between
 * them. Each function has one set of registers and one piece of local memory. A function that can be called again
 * before it returns is marked recursive at layout: the call saves both in its call node and the return restores
 * them. */
#include "control/control.h"

#include <stdlib.h>

#include "ptx/syntax.h"

#define MAX_DEPTH 4096

/* ---- branches ---- */

static run_result run_bra(warp *w, const instr *in, uint32_t lanes) {
    jump(w, lanes, in->target);
    return RUN_JUMP;
}

static int decode_bra(decoder *d) {
    take(d, "uni");
    d->in->target = label_target(d, 0);
    d->in->run = run_bra;
    return 1;
}

static run_result run_brx(warp *w, const instr *in, uint32_t lanes) {
    const int32_t *targets = in->extra;
    const uint32_t *index = r32(w, in->s[0]);
    FOR_LANES(lane, lanes)
    if (index[lane] >= in->vector)
        fault(w, in, (int)lane, "the index is %u, and there are %u targets", index[lane], in->vector);
    while (lanes) {
        uint32_t first = index[__builtin_ctz(lanes)], same = 0;
        FOR_LANES(lane, lanes) same |= (uint32_t)(targets[index[lane]] == targets[first]) << lane;
        jump(w, same, targets[first]);
        lanes &= ~same;
    }
    return RUN_JUMP;
}

static int decode_brx(decoder *d) {
    need(d, "idx");
    take(d, "uni");
    d->in->s[0] = source(d, 0, TYPE_U32);
    const operand *list = operand_at(d, 1);
    if (list->kind != OPERAND_VECTOR) reject(d, "operand 2 must name a list of .branchtargets");
    d->in->vector = (uint32_t)list->count;
    int32_t *targets = decode_alloc(d, (size_t)list->count * sizeof *targets);
    for (int i = 0; i < list->count; i++) targets[i] = label_target_of(d, &list->items[i]);
    d->in->extra = targets;
    d->in->run = run_brx;
    return 1;
}

/* ---- where parameters are ---- */

static uint8_t *local_memory(const warp *w, uint32_t lane) {
    uint64_t thread = (uint64_t)w->index * WARP_LANES + lane;
    return w->cta->local + thread * (uint64_t)w->cta->grid->launch.entry->local_bytes;
}

static uint8_t *register_bytes(const warp *w, const call_place *p, uint32_t lane) {
    uint32_t size = p->bits > 64 ? 16 : p->bits > 32 ? 8 : 4;
    return w->registers + p->slot + lane * size;
}

void call_read(const warp *w, const call_place *p, uint32_t lane, void *data) {
    if (!p->is_register)
        memcpy(data, local_memory(w, lane) + p->offset, p->bytes);
    else if (p->bits == 1)
        *(uint8_t *)data = *predicate(w, p->slot) >> lane & 1;
    else
        memcpy(data, register_bytes(w, p, lane), p->bytes);
}

void call_write(warp *w, const call_place *p, uint32_t lane, const void *data) {
    if (!p->is_register) {
        memcpy(local_memory(w, lane) + p->offset, data, p->bytes);
    } else if (p->bits == 1) {
        set_predicate(w, p->slot, 1u << lane, (uint32_t)*(const uint8_t *)data << lane);
    } else {
        if (p->bits < 32) memset(register_bytes(w, p, lane), 0, 4);
        memcpy(register_bytes(w, p, lane), data, p->bytes);
    }
}

static call_place place_of_variable(const variable *v, int64_t local_base) {
    int bits = type_bits(v->type);
    if (v->space == SPACE_REG)
        return (call_place){.is_register = 1, .bits = bits, .slot = v->slot, .bytes = (uint32_t)(bits + 7) / 8};
    return (call_place){.offset = v->address + local_base, .bytes = (uint32_t)v->bytes};
}

/* ---- recursion ---- */

/* Copies the function's registers in these lanes between the register file and a copy of the function's part of it. */
static void copy_registers(const call_target_places *f, uint8_t *to, const uint8_t *from, uint32_t lanes) {
    for (int i = 0; i < f->register_count; i++) {
        uint32_t at = f->registers[i].offset, size = f->registers[i].lane_bytes;
        if (!size) {
            uint32_t old, new;
            memcpy(&old, to + at, 4);
            memcpy(&new, from + at, 4);
            old = (old & ~lanes) | (new & lanes);
            memcpy(to + at, &old, 4);
            continue;
        }
        FOR_LANES(lane, lanes) memcpy(to + at + lane * size, from + at + lane * size, size);
    }
}

static void keep_activation(warp *w, call_node *n, const call_target_places *t, uint32_t lanes) {
    const function *f = t->function;
    size_t registers = f->registers_end - f->registers_begin, local = (size_t)f->local_bytes;
    if (!n->saved) n->saved = malloc(registers + WARP_LANES * local + 1);
    if (!n->saved) abort();
    uint8_t *saved = n->saved;
    copy_registers(t, saved, w->registers + f->registers_begin, lanes);
    FOR_LANES(lane, lanes)
    memcpy(saved + registers + lane * local, local_memory(w, lane) + f->local_base, local);
}

static void bring_back(warp *w, const call_node *n, const call_target_places *t, uint32_t lanes) {
    const function *f = t->function;
    size_t registers = f->registers_end - f->registers_begin, local = (size_t)f->local_bytes;
    const uint8_t *saved = n->saved;
    copy_registers(t, w->registers + f->registers_begin, saved, lanes);
    FOR_LANES(lane, lanes)
    memcpy(local_memory(w, lane) + f->local_base, saved + registers + lane * local, local);
}

/* ---- calls and returns ---- */

static call_node *node_for(warp *w, const instr *in, uint32_t lanes) {
    const fragment *f = w->current;
    int32_t pc = (int32_t)(in - f->function->code) + 1;
    call_node *n = w->calls;
    while (n && (n->parent != f->stack || n->function != f->function || n->pc != pc)) n = n->next;
    if (!n) {
        int depth = f->stack ? f->stack->depth + 1 : 1;
        if (depth > MAX_DEPTH) fault(w, in, -1, "calls are nested deeper than %d", MAX_DEPTH);
        n = calloc(1, sizeof *n);
        if (!n) abort();
        *n = (call_node){.parent = f->stack, .function = f->function, .pc = pc, .depth = depth, .next = w->calls};
        w->calls = n;
    }
    n->lanes |= lanes;
    return n;
}

static void leave_node(warp *w, call_node *n, uint32_t lanes) {
    n->lanes &= ~lanes;
    if (n->lanes) return;
    call_node **at = &w->calls;
    while (*at != n) at = &(*at)->next;
    *at = n->next;
    free(n->saved);
    free(n);
}

void call_nodes_free(warp *w) {
    while (w->calls) {
        call_node *n = w->calls;
        w->calls = n->next;
        free(n->saved);
        free(n);
    }
}

/* Reads everything before it writes: source and destination overlap where a function calls itself. */
static void gather(const warp *w, const call_place *places, int count, uint32_t lanes, uint32_t bytes, uint8_t *out) {
    FOR_LANES(lane, lanes) {
        uint8_t *at = out + lane * bytes;
        for (int i = 0; i < count; at += places[i++].bytes) call_read(w, &places[i], lane, at);
    }
}

static void scatter(warp *w, const call_place *places, int count, uint32_t lanes, uint32_t bytes, const uint8_t *from) {
    FOR_LANES(lane, lanes) {
        const uint8_t *at = from + lane * bytes;
        for (int i = 0; i < count; at += places[i++].bytes) call_write(w, &places[i], lane, at);
    }
}

static void enter_function(warp *w, const instr *in, const call_target_places *callee, uint32_t lanes) {
    const call_plan *plan = in->extra;
    call_node *n = node_for(w, in, lanes);
    if (callee->function->recursive) keep_activation(w, n, callee, lanes);
    if (plan->argument_bytes) {
        uint8_t *values = malloc((size_t)plan->argument_bytes * WARP_LANES);
        if (!values) abort();
        gather(w, plan->arguments, plan->argument_count, lanes, plan->argument_bytes, values);
        scatter(w, callee->parameters, plan->argument_count, lanes, plan->argument_bytes, values);
        free(values);
    }
    jump_function(w, lanes, callee->function, 0, n);
}

static run_result run_call(warp *w, const instr *in, uint32_t lanes) {
    const call_plan *plan = in->extra;
    enter_function(w, in, &plan->targets[0], lanes);
    return RUN_JUMP;
}

static int same_bytes(const call_place *a, int count, const call_place *b, int other) {
    if (count != other) return 0;
    for (int i = 0; i < count; i++)
        if (a[i].bytes != b[i].bytes) return 0;
    return 1;
}

static run_result run_call_indirect(warp *w, const instr *in, uint32_t lanes) {
    const call_plan *plan = in->extra;
    const uint64_t *address = r64(w, in->s[0]);
    while (lanes) {
        int lane = __builtin_ctz(lanes);
        uint64_t at = address[lane];
        const call_target_places *t = NULL;
        for (int i = 0; i < plan->target_count && !t; i++)
            if ((uint64_t)(uintptr_t)plan->targets[i].function->original == at) t = &plan->targets[i];
        if (!t) fault(w, in, lane, "there is no function at 0x%llx", (unsigned long long)at);
        if (!same_bytes(plan->arguments, plan->argument_count, t->parameters, t->parameter_count) ||
            !same_bytes(plan->results, plan->result_count, t->results, t->result_count))
            fault(w, in, lane, "the parameters of the call are not those of the function `%s` that it reaches",
                  function_title(t->function));
        uint32_t same = 0;
        FOR_LANES(other, lanes) same |= (uint32_t)(address[other] == at) << other;
        enter_function(w, in, t, same);
        lanes &= ~same;
    }
    return RUN_JUMP;
}

static run_result run_ret(warp *w, const instr *in, uint32_t lanes) {
    call_node *n = w->current->stack;
    if (!n) {
        exit_lanes(w, lanes);
        return RUN_JUMP;
    }
    const call_plan *plan = n->function->code[n->pc - 1].extra;
    const call_target_places *own = in->extra;
    uint8_t *values = NULL;
    if (plan->result_bytes) {
        values = malloc((size_t)plan->result_bytes * WARP_LANES);
        if (!values) abort();
        gather(w, own->results, plan->result_count, lanes, plan->result_bytes, values);
    }
    if (own->function->recursive) bring_back(w, n, own, lanes);
    if (values) scatter(w, plan->results, plan->result_count, lanes, plan->result_bytes, values);
    free(values);
    jump_function(w, lanes, n->function, n->pc, n->parent);
    leave_node(w, n, lanes);
    return RUN_JUMP;
}

/* ---- decoding calls ---- */

static call_place *places_of(decoder *d, const variable *first, int64_t base, int *count) {
    *count = 0;
    for (const variable *v = first; v; v = v->next_parameter) ++*count;
    call_place *places = decode_alloc(d, (size_t)*count * sizeof *places);
    int i = 0;
    for (const variable *v = first; v; v = v->next_parameter) places[i++] = place_of_variable(v, base);
    return places;
}

static call_target_places target_of(decoder *d, const function *f) {
    call_target_places t = {.function = f};
    t.parameters = places_of(d, f->parameters, f->local_base, &t.parameter_count);
    t.results = places_of(d, f->results, f->local_base, &t.result_count);
    if (!f->recursive) return t;
    for (const variable *v = f->variables; v; v = v->next) t.register_count++;
    t.registers = decode_alloc(d, (size_t)t.register_count * sizeof *t.registers);
    t.register_count = 0;
    for (const variable *v = f->variables; v; v = v->next) {
        int bits = type_bits(v->type);
        if (v->space != SPACE_REG || v->vector > 1) continue;
        t.registers[t.register_count++] = (kept_register){v->slot - f->registers_begin, bits == 1   ? 0
                                                                                        : bits > 64 ? 16
                                                                                        : bits > 32 ? 8
                                                                                                    : 4};
    }
    return t;
}

/* The list in parentheses: .param variables, registers, or constants of the type that the function says. */
static call_place *places_in_list(decoder *d, const operand *list, const variable *formal, int is_result,
                                  uint32_t *bytes) {
    call_place *places = decode_alloc(d, (size_t)list->count * sizeof *places);
    for (int i = 0; i < list->count; i++, formal = formal ? formal->next_parameter : NULL) {
        const operand *o = &list->items[i];
        const variable *v = o->reg;
        if (o->kind == OPERAND_REGISTER && !o->negated && !o->name)
            places[i] = place_of_variable(v, 0);
        else if (o->kind == OPERAND_SYMBOL && v && v->space == SPACE_PARAM && !v->is_kernel_parameter && !o->bits)
            places[i] = place_of_variable(v, d->function->local_base);
        else if (o->kind == OPERAND_IMMEDIATE && !is_result && formal && !formal->is_array)
            places[i] = (call_place){.is_register = 1,
                                     .bits = type_bits(formal->type),
                                     .slot = source_of(d, o, formal->type),
                                     .bytes = (uint32_t)formal->bytes};
        else
            reject(d, "parameter %d of the call is no .param variable, register or constant", i + 1);
        *bytes += places[i].bytes;
    }
    return places;
}

static int is_list_of_functions(const operand *o) {
    return o->kind == OPERAND_VECTOR && o->count && o->items[0].kind == OPERAND_SYMBOL && !o->items[0].reg;
}

static int decode_call(decoder *d) {
    take(d, "uni");
    instr *in = d->in;
    call_plan *plan = decode_alloc(d, sizeof *plan);
    in->extra = plan;
    int count = operand_count(d), at = 0;
    const operand *results = NULL, *arguments = NULL;
    if (count && operand_at(d, 0)->kind == OPERAND_VECTOR) results = operand_at(d, at++);
    const operand *callee = operand_at(d, at++);
    if (at < count && operand_at(d, at)->kind == OPERAND_VECTOR && !is_list_of_functions(operand_at(d, at)))
        arguments = operand_at(d, at++);
    const function *f = callee->kind == OPERAND_SYMBOL && !callee->reg ? find_function(d->module, callee->name) : NULL;
    if (!f && callee->kind != OPERAND_REGISTER) reject(d, "what is called is no function and no register");
    if (!f && at < count) operand_at(d, at++); /* the prototype or the list of targets: the functions say the same */
    if (results) plan->results = places_in_list(d, results, NULL, 1, &plan->result_bytes);
    if (arguments) plan->arguments = places_in_list(d, arguments, f ? f->parameters : NULL, 0, &plan->argument_bytes);
    plan->result_count = results ? results->count : 0;
    plan->argument_count = arguments ? arguments->count : 0;
    plan->targets = decode_alloc(d, (size_t)d->entry->function_count * sizeof *plan->targets);
    if (!f) {
        in->s[0] = source_of(d, callee, TYPE_B64);
        in->run = run_call_indirect;
        for (int i = 1; i < d->entry->function_count; i++)
            plan->targets[plan->target_count++] = target_of(d, d->entry->functions[i]);
        return 1;
    }
    call_target_places t = target_of(d, f);
    if (f->is_declaration) {
        in->run = system_call(f->name, t.parameter_count);
    } else {
        for (int i = 1; i < d->entry->function_count; i++)
            if (d->entry->functions[i]->original == f) t = target_of(d, d->entry->functions[i]);
        in->run = run_call;
    }
    if (!in->run || f->is_entry) reject(d, "`%s` cannot be called", f->name);
    if (!same_bytes(plan->arguments, plan->argument_count, t.parameters, t.parameter_count) ||
        !same_bytes(plan->results, plan->result_count, t.results, t.result_count))
        reject(d, "the parameters are not those of `%s`", f->name);
    plan->targets[plan->target_count++] = t;
    return 1;
}

static int decode_ret(decoder *d) {
    take(d, "uni");
    call_target_places *own = decode_alloc(d, sizeof *own);
    *own = target_of(d, d->function);
    d->in->extra = own;
    d->in->run = run_ret;
    return 1;
}

/* ---- ends ---- */

static run_result run_exit(warp *w, const instr *in, uint32_t lanes) {
    (void)in;
    exit_lanes(w, lanes);
    return RUN_JUMP;
}

static int decode_exit(decoder *d) {
    d->in->run = run_exit;
    return 1;
}

static run_result run_trap(warp *w, const instr *in, uint32_t lanes) {
    fault(w, in, __builtin_ctz(lanes), "the program stops itself with `%s`", in->name);
}

static int decode_trap(decoder *d) {
    d->in->run = run_trap;
    return 1;
}

const opcode_entry control_opcodes[] = {
    {"bra", decode_bra},   {"brx", decode_brx},   {"call", decode_call},  {"ret", decode_ret},
    {"exit", decode_exit}, {"trap", decode_trap}, {"brkpt", decode_trap}, {0},
};
