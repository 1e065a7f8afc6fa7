/* Variables (PTX ISA, chapter 5): registers, parameters and memory, with alignment, dimensions and initial values. */
#include <stdlib.h>
#include <string.h>

#include "ptx/syntax.h"

#define MAX_DIMENSIONS 8
#define MAX_BYTES      ((int64_t)1 << 31)
#define MAX_REGISTERS  (1 << 24)

typedef struct declaration {
    ptx_space space;
    ptx_type type;
    int vector;
    int64_t align;
    int dimensions;
    int64_t dimension[MAX_DIMENSIONS]; /* the first may be 0: open */
} declaration;

static const struct {
    const char *name;
    ptx_space space;
} spaces[] = {
    {"reg", SPACE_REG},     {"param", SPACE_PARAM},   {"const", SPACE_CONST},        {"global", SPACE_GLOBAL},
    {"local", SPACE_LOCAL}, {"shared", SPACE_SHARED}, {"shared::cta", SPACE_SHARED},
};

int at_space(const parser *p) {
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        if (at_dot(p, spaces[i].name)) return 1;
    return 0;
}

static ptx_space take_declared_space(parser *p) {
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        if (take_dot(p, spaces[i].name)) return spaces[i].space;
    unexpected(p, "a state space");
}

void skip_parentheses(parser *p) {
    int depth = 0, line = p->now.line;
    do {
        if (p->now.kind == TOKEN_END) syntax_error(p, line, "the parenthesis is not closed");
        depth += at_mark(p, '(') - at_mark(p, ')');
        next_token(p);
    } while (depth > 0);
}

static int64_t take_alignment(parser *p) {
    int line = p->now.line;
    int64_t align = integer_expression(p);
    if (align < 1 || align > 1 << 20 || (align & (align - 1)))
        syntax_error(p, line, "an alignment of %lld is not a power of two", (long long)align);
    return align;
}

/* .ptr .global .align 16: what a kernel's parameter points to. No effect here. */
static void skip_pointee(parser *p) {
    while (p->now.kind == TOKEN_DOT) {
        if (at_space(p))
            next_token(p);
        else if (take_dot(p, "align"))
            take_alignment(p);
        else
            unexpected(p, "what the parameter points to");
    }
}

/* Everything between the state space and the name. */
static void parse_qualifiers(parser *p, declaration *d) {
    d->vector = 1;
    while (p->now.kind == TOKEN_DOT) {
        char word[16] = {0};
        if (p->now.length < sizeof word) memcpy(word, p->now.start, p->now.length);
        int line = p->now.line;
        if (take_dot(p, "align")) {
            d->align = take_alignment(p);
        } else if (take_dot(p, "attribute")) {
            skip_parentheses(p);
        } else if (take_dot(p, "ptr")) {
            skip_pointee(p);
        } else if (!strcmp(word, "v2") || !strcmp(word, "v4") || !strcmp(word, "v8")) {
            d->vector = word[1] - '0';
            next_token(p);
        } else if (type_of_name(word) != TYPE_NONE && d->type == TYPE_NONE) {
            d->type = type_of_name(word);
            next_token(p);
        } else if (!strcmp(word, "texref") || !strcmp(word, "samplerref") || !strcmp(word, "surfref")) {
            syntax_error(p, line, "textures, samplers and surfaces are not emulated");
        } else {
            unexpected(p, "a type");
        }
    }
    if (d->type == TYPE_NONE) unexpected(p, "a type");
    int bits = type_bits(d->type);
    if (d->type == TYPE_PRED ? d->space != SPACE_REG || d->vector > 1 : bits < 8 || d->vector * bits > 256)
        syntax_error(p, p->now.line, "a variable cannot have this type here");
}

static void parse_dimensions(parser *p, declaration *d) {
    d->dimensions = 0;
    while (take_mark(p, '[')) {
        int line = p->now.line;
        if (d->dimensions == MAX_DIMENSIONS) syntax_error(p, line, "more than %d dimensions", MAX_DIMENSIONS);
        int64_t size = 0;
        if (!at_mark(p, ']')) {
            size = integer_expression(p);
            if (size < 0 || size > MAX_BYTES || (size == 0 && d->dimensions))
                syntax_error(p, line, "an array of %lld elements", (long long)size);
        } else if (d->dimensions) {
            unexpected(p, "the size of the dimension");
        }
        need_mark(p, ']');
        d->dimension[d->dimensions++] = size;
    }
}

static int64_t element_bytes(const declaration *d) {
    int bits = type_bits(d->type);
    return (bits < 8 ? 8 : bits) / 8;
}

/* Bytes of one element of dimension `level`. */
static int64_t stride(parser *p, const declaration *d, int level) {
    int64_t bytes = element_bytes(d) * d->vector;
    for (int i = level + 1; i < d->dimensions; i++)
        if (__builtin_mul_overflow(bytes, d->dimension[i], &bytes) || bytes > MAX_BYTES)
            syntax_error(p, p->now.line, "the variable is too large");
    return bytes;
}

/* ---- initial values ---- */

typedef struct initializer {
    variable *v;
    const declaration *d;
    int64_t capacity; /* of v->initial */
} initializer;

static uint8_t *initial_at(parser *p, initializer *in, int64_t offset, int64_t bytes) {
    if (!in->v->is_open && offset + bytes > in->v->bytes)
        syntax_error(p, p->now.line, "more initial values than `%s` holds", in->v->name);
    if (offset + bytes > MAX_BYTES) syntax_error(p, p->now.line, "the variable is too large");
    if (offset + bytes > in->capacity) {
        int64_t capacity = align_up(offset + bytes, 64) * 2;
        uint8_t *grown = arena_alloc(p->arena, (size_t)capacity);
        if (in->capacity) memcpy(grown, in->v->initial, (size_t)in->capacity);
        in->v->initial = grown;
        in->capacity = capacity;
    }
    if (in->v->is_open && offset + bytes > in->v->bytes) in->v->bytes = offset + bytes;
    return in->v->initial + offset;
}

/* symbol, symbol + offset, generic(symbol) */
static void symbol_value(parser *p, struct relocation *r) {
    name *n = take_word(p, "an initial value");
    if (n->length == 7 && !strcmp(n->text, "generic") && take_mark(p, '(')) {
        r->generic = 1;
        n = take_word(p, "a name");
        if (at_mark(p, '+') || at_mark(p, '-')) r->addend = integer_expression(p);
        need_mark(p, ')');
    }
    r->symbol = n->text;
    if (at_mark(p, '+') || at_mark(p, '-'))
        r->addend = (int64_t)((uint64_t)r->addend + (uint64_t)integer_expression(p));
}

static void add_relocation(parser *p, initializer *in, int64_t offset, uint64_t mask) {
    struct relocation *r = arena_alloc(p->arena, sizeof *r);
    r->offset = offset;
    r->bytes = (int)element_bytes(in->d);
    r->mask = mask;
    symbol_value(p, r);
    r->next = in->v->relocations;
    in->v->relocations = r;
}

static void scalar_value(parser *p, initializer *in, int64_t offset) {
    int64_t bytes = element_bytes(in->d);
    int line = p->now.line;
    uint8_t *at = initial_at(p, in, offset, bytes);
    if (p->now.kind == TOKEN_WORD && (p->now.length != 7 || memcmp(p->now.start, "WARP_SZ", 7))) {
        add_relocation(p, in, offset, UINT64_MAX);
        return;
    }
    constant_value v = constant_expression(p);
    if (take_mark(p, '(')) { /* mask(symbol) */
        add_relocation(p, in, offset, (uint64_t)v.bits);
        need_mark(p, ')');
        return;
    }
    int64_t bits[2] = {v.bits, v.is_unsigned || v.bits >= 0 ? 0 : -1};
    if (in->d->type == TYPE_F32 || in->d->type == TYPE_F64) {
        double value = v.is_float ? v.value : (double)v.bits;
        float single = (float)value;
        if (in->d->type == TYPE_F64 && v.is_float != 64) memcpy(bits, &value, sizeof value);
        if (in->d->type == TYPE_F32 && v.is_float != 32) memcpy(bits, &single, sizeof single);
    } else if (v.is_float && v.is_float != 8 * bytes) {
        syntax_error(p, line, "this floating-point number is no initial value for .%s", type_name(in->d->type));
    }
    memcpy(at, bits, (size_t)bytes);
}

static void initial_list(parser *p, initializer *in, int level, int64_t offset) {
    int64_t step = stride(p, in->d, level);
    need_mark(p, '{');
    if (++p->nesting > 60) syntax_error(p, p->now.line, "this is nested too deeply");
    while (!at_mark(p, '}')) {
        if (at_mark(p, '{')) {
            initial_list(p, in, level + 1, offset);
            offset += step;
        } else {
            scalar_value(p, in, offset);
            offset += element_bytes(in->d);
        }
        if (!take_mark(p, ',')) break;
    }
    p->nesting--;
    need_mark(p, '}');
}

static void string_value(parser *p, initializer *in) {
    const char *c = p->now.start + 1, *end = p->now.start + p->now.length - 1;
    int64_t offset = 0;
    if (element_bytes(in->d) != 1) unexpected(p, "an initial value");
    for (; c < end; c++) {
        int byte = (unsigned char)*c;
        if (byte == '\\') {
            static const char letters[] = "ntr0\\\"", bytes[] = "\n\t\r\0\\\"";
            const char *found = strchr(letters, *++c);
            if (!found || !*found) syntax_error(p, p->now.line, "the string has an unknown escape");
            byte = bytes[found - letters];
        }
        *initial_at(p, in, offset++, 1) = (uint8_t)byte;
    }
    if (in->v->is_open || offset < in->v->bytes) *initial_at(p, in, offset, 1) = 0;
    next_token(p);
}

static void parse_initializer(parser *p, variable *v, const declaration *d) {
    if (v->space != SPACE_GLOBAL && v->space != SPACE_CONST)
        syntax_error(p, p->now.line, "only .global and .const variables have initial values");
    initializer in = {.v = v, .d = d};
    if (p->now.kind == TOKEN_STRING)
        string_value(p, &in);
    else if (at_mark(p, '{'))
        initial_list(p, &in, 0, 0);
    else
        scalar_value(p, &in, 0);
    if (v->is_open) v->bytes = align_up(v->bytes, stride(p, d, 0));
    int64_t bytes = v->bytes; /* the rest is zero */
    if (bytes > in.capacity) {
        uint8_t *all = arena_alloc(p->arena, (size_t)bytes);
        if (in.capacity) memcpy(all, v->initial, (size_t)in.capacity);
        v->initial = all;
    }
}

/* ---- declarations ---- */

static variable *new_variable(parser *p, const declaration *d, const char *name) {
    variable *v = arena_alloc(p->arena, sizeof *v);
    v->name = name;
    v->space = d->space;
    v->type = d->type;
    v->vector = d->vector;
    v->is_array = d->dimensions > 0;
    v->is_open = d->dimensions > 0 && d->dimension[0] == 0;
    v->align = d->align ? d->align : element_bytes(d) * d->vector;
    v->bytes = stride(p, d, -1);
    if (v->space == SPACE_LOCAL || v->space == SPACE_PARAM) {
        if (v->bytes > 1 << 24) syntax_error(p, p->now.line, "`%s` is too large for a thread", name);
    }
    return v;
}

/* Registers and function variables go to the function; .global and .const ones to the module, whatever their scope. */
static void keep_variable(parser *p, variable *v) {
    int of_module = !p->function || v->space == SPACE_GLOBAL || v->space == SPACE_CONST;
    variable ***last = of_module ? &p->last_global : &p->last_variable;
    **last = v;
    *last = &v->next;
    v->next = NULL;
    if (v->space != SPACE_LOCAL && v->space != SPACE_PARAM) return;
    /* those of scopes that exclude each other share their place */
    v->address = align_up(p->scope->local_bytes, v->align);
    p->scope->local_bytes = v->address + v->bytes;
    if (p->function->local_bytes < p->scope->local_bytes) p->function->local_bytes = p->scope->local_bytes;
}

static void bind(parser *p, name *n, variable *v, int line) {
    symbol *before = n->symbol;
    if (before && before->scope == p->scope) {
        variable *old = before->kind == SYMBOL_VARIABLE ? before->variable : NULL;
        if (!old || !(old->is_extern || v->is_extern) || old->space != v->space)
            syntax_error(p, line, "`%s` is declared twice", n->text);
        if (v->is_extern) return; /* the definition has been seen */
        before->variable = v;
        old->replaced = v;
        return;
    }
    symbol *s = arena_alloc(p->arena, sizeof *s);
    s->kind = SYMBOL_VARIABLE;
    s->name = n;
    s->variable = v;
    add_symbol(p, s);
}

static void split_vector(parser *p, variable *v) {
    if (v->space != SPACE_REG || v->vector < 2) return;
    v->elements = arena_alloc(p->arena, (size_t)v->vector * sizeof *v->elements);
    for (int i = 0; i < v->vector; i++) {
        variable *element = arena_alloc(p->arena, sizeof *element);
        *element = *v;
        element->vector = 1;
        element->elements = NULL;
        element->next = NULL;
        *p->last_variable = element;
        p->last_variable = &element->next;
        v->elements[i] = element;
    }
}

/* .reg .b32 %r<10> */
static void parse_range(parser *p, name *prefix, const declaration *d) {
    int line = p->now.line;
    next_token(p);
    int64_t count = integer_expression(p);
    need_mark(p, '>');
    if (d->space != SPACE_REG || count < 0 || count > MAX_REGISTERS || d->vector > 1)
        syntax_error(p, line, "such a list of %lld variables is not known", (long long)count);
    symbol *s = arena_alloc(p->arena, sizeof *s);
    s->kind = SYMBOL_RANGE;
    s->name = prefix;
    s->count = (uint32_t)count;
    s->variable = new_variable(p, d, prefix->text);
    add_symbol(p, s);
}

void parse_variables(parser *p, int linkage) {
    declaration d = {.space = take_declared_space(p)};
    if (!p->function && (d.space == SPACE_REG || d.space == SPACE_LOCAL || d.space == SPACE_PARAM))
        syntax_error(p, p->now.line, "this cannot be declared outside a function");
    parse_qualifiers(p, &d);
    do {
        int line = p->now.line;
        name *n = take_word(p, "a name");
        if (at_mark(p, '<')) {
            parse_range(p, n, &d);
            continue;
        }
        parse_dimensions(p, &d);
        if (d.space == SPACE_REG && d.dimensions) syntax_error(p, line, "registers have no dimensions");
        variable *v = new_variable(p, &d, n->text);
        v->is_extern = linkage == 'e' || (d.space == SPACE_SHARED && v->is_open);
        bind(p, n, v, line);
        if (take_mark(p, '=')) {
            v->is_extern = 0;
            parse_initializer(p, v, &d);
        }
        if (!v->bytes && !v->is_extern && v->is_open) syntax_error(p, line, "the size of `%s` is not given", n->text);
        keep_variable(p, v);
        split_vector(p, v);
    } while (take_mark(p, ','));
    need_mark(p, ';');
}

variable *parse_parameter(parser *p) {
    declaration d = {.space = take_declared_space(p)};
    int line = p->now.line;
    if (d.space != SPACE_REG && d.space != SPACE_PARAM) syntax_error(p, line, "a parameter is .param or .reg");
    parse_qualifiers(p, &d);
    if (d.vector > 1 && d.space == SPACE_REG) syntax_error(p, line, "a vector register cannot be a parameter");
    name *n = take_word(p, "a name");
    parse_dimensions(p, &d);
    variable *v = new_variable(p, &d, n->text);
    if (n->length != 1 || n->text[0] != '_') bind(p, n, v, line);
    return v;
}
