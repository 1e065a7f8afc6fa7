/* From the syntax tree to an entry that can run: addresses of global variables, the functions that the entry
 * reaches, the layout of its registers, shared and local memory. */
#define _GNU_SOURCE /* asprintf */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "machine/machine.h"
#include "ptx/syntax.h"

static char *message(const char *format, ...) __attribute__((format(printf, 1, 2)));
static char *message(const char *format, ...) {
    char *text;
    va_list list;
    va_start(list, format);
    if (vasprintf(&text, format, list) < 0) text = NULL;
    va_end(list);
    return text;
}

/* ---- names ---- */

function *find_function(const module *m, const char *name) {
    for (const struct alias *a = m->aliases; a; a = a->next)
        if (!strcmp(a->name, name)) {
            name = a->target; /* of a function, not of another alias */
            break;
        }
    for (function *f = m->functions; f; f = f->next)
        if (f->name == name) return f;
    for (function *f = m->functions; f; f = f->next)
        if (!strcmp(f->name, name)) return f;
    return NULL;
}

variable *module_variable(const module *m, const char *name) {
    for (variable *v = m->variables; v; v = v->next)
        if (!v->replaced && !strcmp(v->name, name)) return v;
    return NULL;
}

/* ---- global variables ---- */

static int in_memory(const variable *v) {
    return (v->space == SPACE_GLOBAL || v->space == SPACE_CONST) && !v->is_extern;
}

static int relocate(const module *m, const variable *v, const struct relocation *r, char **error) {
    const variable *target = module_variable(m, r->symbol);
    const function *f = target ? NULL : find_function(m, r->symbol);
    if ((!target && !f) || (target && !in_memory(target))) {
        *error = message("%s: the initial value of `%s` names `%s`, which is no variable of .global or .const memory "
                         "and no function of this file",
                         m->file, v->name, r->symbol);
        return -1;
    }
    uint64_t address = target ? (uint64_t)target->address : (uint64_t)(uintptr_t)f;
    address += (uint64_t)r->addend;
    if (r->mask != UINT64_MAX) {
        address &= r->mask;
        address >>= r->mask ? __builtin_ctzll(r->mask) : 0;
    } else if (r->bytes < 8) {
        *error =
            message("%s: `%s` has room for %d bytes of the address of `%s`", m->file, v->name, r->bytes, r->symbol);
        return -1;
    }
    memcpy((uint8_t *)(uintptr_t)v->address + r->offset, &address, (size_t)(r->bytes < 8 ? r->bytes : 8));
    return 0;
}

int place_globals(module *m, char **error) {
    for (variable *v = m->variables; v; v = v->next) {
        if (!in_memory(v)) continue;
        void *memory = device_allocate((size_t)v->bytes);
        if (!memory) {
            *error = message("%s: there is no memory for `%s`, %lld bytes", m->file, v->name, (long long)v->bytes);
            return -1;
        }
        v->address = (int64_t)(uintptr_t)memory;
        if (v->initial)
            memcpy(memory, v->initial, (size_t)v->bytes);
        else
            memset(memory, 0, (size_t)v->bytes);
    }
    for (const variable *v = m->variables; v; v = v->next)
        for (const struct relocation *r = v->relocations; r; r = r->next)
            if (in_memory(v) && relocate(m, v, r, error)) return -1;
    return 0;
}

void free_globals(module *m) {
    for (variable *v = m->variables; v; v = v->next)
        if (in_memory(v) && v->address) device_free((void *)(uintptr_t)v->address);
}

/* ---- which functions an entry reaches ---- */

const operand *call_target(const statement *s) {
    if (strcmp(s->opcode, "call") || !s->operand_count) return NULL;
    int at = s->operands[0].kind == OPERAND_VECTOR;
    return at < s->operand_count ? &s->operands[at] : NULL;
}

typedef struct reach {
    module *module;
    entry *entry;
    int capacity;
    int indirect;   /* something is called through a register */
    uint8_t *calls; /* calls[i * capacity + j]: function i calls j */
    uint8_t *taken; /* the address of function i is a value */
} reach;

static int index_of(const entry *e, const function *original) {
    for (int i = 0; i < e->function_count; i++)
        if (e->functions[i]->original == original) return i;
    return -1;
}

static int add_function(reach *r, function *original) {
    entry *e = r->entry;
    int i = index_of(e, original);
    if (i >= 0) return i;
    function *copy = original;
    if (!original->is_entry) { /* its registers are this entry's */
        copy = arena_alloc(r->module->arena, sizeof *copy);
        *copy = *original;
    }
    e->functions[e->function_count] = copy;
    return e->function_count++;
}

static void scan_operand(reach *r, int caller, const operand *o, int is_callee);

static void scan_items(reach *r, int caller, const operand *o) {
    for (int i = 0; i < o->count; i++) scan_operand(r, caller, &o->items[i], 0);
}

static void scan_operand(reach *r, int caller, const operand *o, int is_callee) {
    scan_items(r, caller, o);
    if (o->second) scan_operand(r, caller, o->second, 0);
    if (is_callee && o->kind == OPERAND_REGISTER) r->indirect = 1;
    if (o->kind != OPERAND_SYMBOL) return;
    if (o->reg) {
        variable *v = o->reg->replaced ? o->reg->replaced : o->reg;
        v->is_used = 1;
        return;
    }
    function *f = find_function(r->module, o->name);
    if (!f || f->is_entry) return;
    if (f->is_declaration && (!is_callee || is_system_function(f->name))) return;
    int callee = add_function(r, f);
    if (is_callee)
        r->calls[caller * r->capacity + callee] = 1;
    else
        r->taken[callee] = 1;
}

/* Functions whose addresses initial values hold: tables of functions and of virtual ones. */
static void add_from_tables(reach *r) {
    for (const variable *v = r->module->variables; v; v = v->next)
        for (const struct relocation *i = v->relocations; i; i = i->next) {
            function *f = module_variable(r->module, i->symbol) ? NULL : find_function(r->module, i->symbol);
            if (f && !f->is_entry && !f->is_declaration) r->taken[add_function(r, f)] = 1;
        }
}

static void scan_function(reach *r, int caller) {
    const function *f = r->entry->functions[caller];
    int was_indirect = r->indirect;
    for (int i = 0; i < f->statement_count; i++) {
        const statement *s = &f->statements[i];
        const operand *callee = call_target(s);
        for (int j = 0; j < s->operand_count; j++) scan_operand(r, caller, &s->operands[j], &s->operands[j] == callee);
        if (callee && callee->kind == OPERAND_REGISTER) r->calls[caller * r->capacity + r->capacity - 1] = 1;
    }
    if (r->indirect && !was_indirect) add_from_tables(r);
}

/* A function is recursive if calls lead from it to itself. */
static void mark_recursive(reach *r) {
    entry *e = r->entry;
    int n = e->function_count, *stack = calloc((size_t)n + 1, sizeof *stack);
    uint8_t *seen = calloc((size_t)n + 1, 1);
    if (!stack || !seen) abort();
    for (int from = 1; from < n; from++) {
        int depth = 0;
        memset(seen, 0, (size_t)n);
        stack[depth++] = from;
        while (depth) {
            const uint8_t *calls = &r->calls[stack[--depth] * r->capacity];
            int through_register = calls[r->capacity - 1];
            for (int to = 1; to < n; to++) {
                if (!calls[to] && !(through_register && r->taken[to])) continue;
                if (to == from) e->functions[from]->recursive = 1;
                if (seen[to] || to == from) continue;
                seen[to] = 1;
                stack[depth++] = to;
            }
        }
    }
    free(stack);
    free(seen);
}

static void collect_functions(module *m, entry *e, function *f) {
    reach r = {.module = m, .entry = e, .capacity = 2};
    for (const function *g = m->functions; g; g = g->next) r.capacity += !g->is_entry;
    e->functions = arena_alloc(m->arena, (size_t)r.capacity * sizeof *e->functions);
    r.calls = calloc((size_t)r.capacity, (size_t)r.capacity);
    r.taken = calloc((size_t)r.capacity, 1);
    if (!r.calls || !r.taken) abort();
    add_function(&r, f);
    for (int i = 0; i < e->function_count; i++) scan_function(&r, i);
    mark_recursive(&r);
    free(r.calls);
    free(r.taken);
}

/* ---- layout ---- */

static void place_registers(entry *e, function *f) {
    static const int sizes[] = {128, 64, 32, 1};
    f->registers_begin = e->register_bytes = (uint32_t)align_up(e->register_bytes, 512);
    for (int i = 0; i < 4; i++) /* the widest first, so that nothing lies between them */
        for (variable *v = f->variables; v; v = v->next) {
            int bits = type_bits(v->type);
            if (v->space != SPACE_REG || v->vector > 1) continue;
            if ((bits == 1 || bits > 32 ? bits : 32) == sizes[i]) v->slot = new_slot(e, v->type);
        }
    f->registers_end = e->register_bytes;
}

static void place_shared(entry *e, variable *v, int64_t *dynamic_align) {
    if (v->space != SPACE_SHARED || v->replaced) return;
    if (v->is_extern) {
        if (v->align > *dynamic_align) *dynamic_align = v->align;
        return;
    }
    v->address = align_up(SHARED_BASE + e->static_shared, v->align);
    e->static_shared = v->address + v->bytes - SHARED_BASE;
}

/* Shared variables of the functions, and those of the module that one of them names. */
static void place_memory(module *m, entry *e) {
    int64_t dynamic_align = 16;
    for (variable *v = m->variables; v; v = v->next)
        if (v->is_used) place_shared(e, v, &dynamic_align);
    for (int i = 0; i < e->function_count; i++) {
        function *f = e->functions[i];
        for (variable *v = f->variables; v; v = v->next) place_shared(e, v, &dynamic_align);
        f->local_base = align_up(e->local_bytes, 256);
        e->local_bytes = f->local_base + f->local_bytes;
    }
    e->local_bytes = align_up(e->local_bytes, 16);
    e->dynamic_offset = align_up(SHARED_BASE + e->static_shared, dynamic_align);
    for (variable *v = m->variables; v; v = v->next)
        if (v->space == SPACE_SHARED && v->is_extern) v->address = e->dynamic_offset;
    for (int i = 0; i < e->function_count; i++)
        for (variable *v = e->functions[i]->variables; v; v = v->next)
            if (v->space == SPACE_SHARED && v->is_extern) v->address = e->dynamic_offset;
    for (const variable *v = e->function->parameters; v; v = v->next_parameter)
        e->parameter_bytes = v->address + v->bytes;
}

/* ---- what a kernel uses ---- */

static int is_modified(const statement *s, const char *name) {
    for (int i = 0; i < s->modifier_count; i++)
        if (!strcmp(s->modifiers[i], name)) return 1;
    return 0;
}

static void note_use(entry *e, const statement *s) {
    const char *op = s->opcode, *first = s->modifier_count ? s->modifiers[0] : "";
    if (!strcmp(op, "cp") && (is_modified(s, "bulk"))) e->uses_async_proxy = 1;
    if (!strcmp(op, "wgmma") && !strcmp(first, "mma_async")) e->uses_async_proxy = 1;
    if (!strcmp(op, "clusterlaunchcontrol")) e->uses_async_proxy = 1;
    if ((!strcmp(op, "st") || !strcmp(op, "red")) && (!strcmp(first, "async") || !strcmp(first, "bulk")))
        e->uses_async_proxy = 1;
    if (!strcmp(op, "tcgen05")) {
        e->uses_tcgen05 = 1;
        if (!strcmp(first, "mma") || !strcmp(first, "cp")) e->uses_async_proxy = 1;
    }
    if (!strcmp(op, "mapa") || !strcmp(op, "getctarank") || is_modified(s, "multicast::cluster") ||
        (!strcmp(op, "barrier") && !strcmp(first, "cluster")))
        e->uses_cluster = 1;
}

/* ---- entries ---- */

entry *build_entry(module *m, function *f, char **error) {
    entry *e = arena_alloc(m->arena, sizeof *e);
    decoder_state *state = arena_alloc(m->arena, sizeof *state);
    decoder *d = arena_alloc(m->arena, sizeof *d);
    e->function = f;
    e->in = m;
    *d = (decoder){.module = m, .entry = e, .state = state};
    if (setjmp(state->escape)) {
        *error = state->error;
        return NULL;
    }
    for (variable *v = m->variables; v; v = v->next) v->is_used = 0;
    collect_functions(m, e, f);
    place_memory(m, e);
    for (int i = 0; i < e->function_count; i++) {
        d->function = e->functions[i];
        if (d->function->is_declaration) {
            *error = message("%s:%d: `%s` is declared and called, but not defined in this file: files that need a "
                             "linker (-rdc=true) are not emulated",
                             m->file, d->function->line, function_title(d->function));
            return NULL;
        }
        place_registers(e, d->function);
    }
    for (int i = 0; i < e->function_count; i++) {
        d->function = e->functions[i];
        for (int j = 0; j < d->function->statement_count; j++) note_use(e, &d->function->statements[j]);
        decode_function_body(d);
    }
    e->uses_cluster |= f->explicitcluster || f->reqnctapercluster[0] != 0;
    return e;
}

static int is_reached(const module *m, const function *f) {
    for (const entry *e = m->entries; e; e = e->next)
        if (index_of(e, f) >= 0) return 1;
    return 0;
}

module *module_load(const char *text, const char *file, char **error) {
    module *m = parse_module(text, file, error);
    if (!m) return NULL;
    int failed = place_globals(m, error);
    for (function *f = m->functions; f && !failed; f = f->next) {
        if (!f->is_entry || f->is_declaration) continue;
        entry *e = build_entry(m, f, error);
        if (e) {
            e->next = m->entries;
            m->entries = e;
        }
        failed = !e;
    }
    /* functions that no kernel calls are decoded only to reject what is invalid */
    for (function *f = m->functions; f && !failed; f = f->next)
        if (!f->is_entry && !f->is_declaration && !is_reached(m, f)) failed = !build_entry(m, f, error);
    if (failed) {
        module_free(m);
        return NULL;
    }
    return m;
}

void module_free(module *m) {
    if (!m) return;
    free_globals(m);
    arena_destroy(m->arena);
}

entry *module_entry(module *m, const char *name, char **error) {
    for (entry *e = m->entries; e; e = e->next)
        if (!strcmp(e->function->name, name)) return e;
    *error = message("%s: there is no kernel `%s`", m->file, name);
    return NULL;
}
