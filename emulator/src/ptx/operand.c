/* Constant expressions (PTX ISA, chapter 4) and the operands of instructions (chapter 6). */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "ptx/syntax.h"

#define MAX_NESTING 60

static void enter(parser *p) {
    if (++p->nesting > MAX_NESTING) syntax_error(p, p->now.line, "this is nested too deeply");
}

/* ---- constant expressions ---- */

static constant_value of_integer(int64_t bits, int is_unsigned) {
    return (constant_value){.bits = bits, .is_unsigned = is_unsigned};
}

static constant_value negated(constant_value v) {
    if (!v.is_float) return of_integer((int64_t)(0 - (uint64_t)v.bits), v.is_unsigned);
    v.value = -v.value;
    v.bits ^= v.is_float == 32 ? (int64_t)1 << 31 : INT64_MIN;
    return v;
}

static constant_value unary(parser *p) {
    enter(p);
    constant_value v;
    if (take_mark(p, '-')) {
        v = negated(unary(p));
    } else if (take_mark(p, '+')) {
        v = unary(p);
    } else if (take_mark(p, '~')) {
        v = unary(p);
        v = of_integer(~v.bits, v.is_unsigned);
    } else if (take_mark(p, '!')) {
        v = of_integer(!unary(p).bits, 0);
    } else if (take_mark(p, '(')) {
        if (at_dot(p, "s64") || at_dot(p, "u64")) {
            int is_unsigned = at_dot(p, "u64");
            next_token(p);
            need_mark(p, ')');
            v = of_integer(unary(p).bits, is_unsigned);
        } else {
            v = constant_expression(p);
            need_mark(p, ')');
        }
    } else if (p->now.kind == TOKEN_WORD && p->now.length == 7 && !memcmp(p->now.start, "WARP_SZ", 7)) {
        next_token(p);
        v = of_integer(32, 0);
    } else {
        v = number_value(p);
    }
    p->nesting--;
    return v;
}

/* Binary operators by how tightly they bind. */
static const struct {
    int mark, level;
} operators[] = {
    {'*', 10},
    {'/', 10},
    {'%', 10},
    {'+', 9},
    {'-', 9},
    {MARK2('<', '<'), 8},
    {MARK2('>', '>'), 8},
    {'<', 7},
    {'>', 7},
    {MARK2('<', '='), 7},
    {MARK2('>', '='), 7},
    {MARK2('=', '='), 6},
    {MARK2('!', '='), 6},
    {'&', 5},
    {'^', 4},
    {'|', 3},
    {MARK2('&', '&'), 2},
    {MARK2('|', '|'), 1},
};

static int level_here(const parser *p) {
    if (p->now.kind != TOKEN_MARK) return 0;
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (operators[i].mark == p->now.mark) return operators[i].level;
    return 0;
}

static constant_value apply(parser *p, int mark, constant_value a, constant_value b) {
    if (a.is_float || b.is_float) syntax_error(p, p->now.line, "constant expressions of floating-point numbers");
    int is_unsigned = a.is_unsigned || b.is_unsigned;
    uint64_t x = (uint64_t)a.bits, y = (uint64_t)b.bits;
    int less = is_unsigned ? x < y : a.bits < b.bits, more = is_unsigned ? x > y : a.bits > b.bits;
    if ((mark == '/' || mark == '%') && !y) syntax_error(p, p->now.line, "a division by zero");
    /* a quotient that does not fit wraps, as other results do */
    int wraps = !is_unsigned && b.bits == -1;
    switch (mark) {
    case '*':
        return of_integer((int64_t)(x * y), is_unsigned);
    case '/':
        return of_integer(is_unsigned ? (int64_t)(x / y) : wraps ? (int64_t)(0 - x) : a.bits / b.bits, is_unsigned);
    case '%':
        return of_integer(is_unsigned ? (int64_t)(x % y) : wraps ? 0 : a.bits % b.bits, is_unsigned);
    case '+':
        return of_integer((int64_t)(x + y), is_unsigned);
    case '-':
        return of_integer((int64_t)(x - y), is_unsigned);
    case MARK2('<', '<'):
        return of_integer(y > 63 ? 0 : (int64_t)(x << y), a.is_unsigned);
    case MARK2('>', '>'):
        return of_integer(a.is_unsigned ? (y > 63 ? 0 : (int64_t)(x >> y)) : a.bits >> (y > 63 ? 63 : y),
                          a.is_unsigned);
    case '<':
        return of_integer(less, 0);
    case '>':
        return of_integer(more, 0);
    case MARK2('<', '='):
        return of_integer(!more, 0);
    case MARK2('>', '='):
        return of_integer(!less, 0);
    case MARK2('=', '='):
        return of_integer(x == y, 0);
    case MARK2('!', '='):
        return of_integer(x != y, 0);
    case '&':
        return of_integer((int64_t)(x & y), is_unsigned);
    case '^':
        return of_integer((int64_t)(x ^ y), is_unsigned);
    case '|':
        return of_integer((int64_t)(x | y), is_unsigned);
    case MARK2('&', '&'):
        return of_integer(x && y, 0);
    default:
        return of_integer(x || y, 0);
    }
}

static constant_value binary(parser *p, constant_value left, int lowest) {
    for (int level; (level = level_here(p)) >= lowest && level;) {
        int mark = p->now.mark;
        next_token(p);
        constant_value right = unary(p);
        while (level_here(p) > level) right = binary(p, right, level + 1);
        left = apply(p, mark, left, right);
    }
    return left;
}

constant_value constant_term(parser *p) {
    return binary(p, unary(p), 9);
}

constant_value constant_expression(parser *p) {
    constant_value v = binary(p, unary(p), 1);
    if (!at_mark(p, '?')) return v;
    enter(p);
    next_token(p);
    constant_value yes = constant_expression(p);
    need_mark(p, ':');
    constant_value no = constant_expression(p);
    p->nesting--;
    return v.bits ? yes : no;
}

int64_t integer_expression(parser *p) {
    int line = p->now.line;
    constant_value v = constant_term(p);
    if (v.is_float) syntax_error(p, line, "expected an integer");
    return v.bits;
}

/* ---- names ---- */

void add_symbol(parser *p, symbol *s) {
    s->scope = p->scope;
    s->next_in_scope = p->scope->symbols;
    p->scope->symbols = s;
    symbol **top = s->kind == SYMBOL_RANGE ? &s->name->range : &s->name->symbol;
    s->outer = *top;
    *top = s;
}

/* "%r12" may be register 12 of %r<20>: the prefix and the number. */
static void split_name(parser *p, name *n) {
    n->split = 1;
    size_t at = n->length;
    while (at > 0 && n->text[at - 1] >= '0' && n->text[at - 1] <= '9') at--;
    size_t digits = n->length - at;
    if (!at || !digits || digits > 8 || (digits > 1 && n->text[at] == '0')) return;
    n->number = (uint32_t)strtoul(n->text + at, NULL, 10);
    n->prefix = intern(p, n->text, at);
}

symbol *find_symbol(parser *p, name *n) {
    if (!n->split) split_name(p, n);
    symbol *found = n->symbol, *range = n->prefix ? n->prefix->range : NULL;
    while (range && n->number >= range->count) range = range->outer;
    if (!range || (found && found->scope->depth >= range->scope->depth)) return found;
    /* a register of a range comes into being when it is first named */
    variable *v = arena_alloc(p->arena, sizeof *v);
    *v = *range->variable;
    v->name = n->text;
    *p->last_variable = v;
    p->last_variable = &v->next;
    symbol *s = arena_alloc(p->arena, sizeof *s);
    s->kind = SYMBOL_VARIABLE;
    s->name = n;
    s->variable = v;
    scope *here = p->scope; /* it belongs to the scope of the range, which may be further out */
    symbol **top = &n->symbol;
    while (*top && (*top)->scope->depth > range->scope->depth) top = &(*top)->outer;
    s->outer = *top;
    *top = s;
    p->scope = range->scope;
    s->scope = p->scope;
    s->next_in_scope = p->scope->symbols;
    p->scope->symbols = s;
    p->scope = here;
    return s;
}

void add_reference(parser *p, operand *o, name *n, int line) {
    reference *r = arena_alloc(p->arena, sizeof *r);
    *r = (reference){.next = p->scope->references, .operand = o, .name = n, .line = line};
    p->scope->references = r;
}

/* ---- operands ---- */

#define MAX_ITEMS 264

static void parse_list(parser *p, operand *o, int close, int is_call) {
    int line = p->now.line, count = 0;
    operand items[MAX_ITEMS];
    reference *seen = p->scope->references;
    next_token(p);
    o->kind = OPERAND_VECTOR;
    while (!at_mark(p, close)) {
        if (count == MAX_ITEMS) syntax_error(p, line, "more than %d elements", MAX_ITEMS);
        items[count] = (operand){0};
        parse_operand(p, &items[count++], is_call);
        if (!take_mark(p, ',')) break;
        if (at_mark(p, close)) unexpected(p, "an operand");
    }
    need_mark(p, close);
    o->count = count;
    o->items = arena_alloc(p->arena, (size_t)count * sizeof *o);
    memcpy(o->items, items, (size_t)count * sizeof *o);
    /* unresolved names point at the elements: from now on at the copies */
    for (reference *r = p->scope->references; r != seen; r = r->next)
        if (r->operand >= items && r->operand < items + count) r->operand = o->items + (r->operand - items);
}

static int64_t address_offset(parser *p) {
    int64_t offset = 0;
    while (at_mark(p, '+') || at_mark(p, '-')) {
        int minus = take_mark(p, '-'), line = p->now.line;
        if (!minus) next_token(p);
        constant_value v = binary(p, unary(p), 10);
        if (v.is_float) syntax_error(p, line, "an offset must be an integer");
        offset = (int64_t)((uint64_t)offset + (minus ? 0 - (uint64_t)v.bits : (uint64_t)v.bits));
    }
    return offset;
}

static void parse_address(parser *p, operand *o) {
    int line = p->now.line, count = 0;
    operand items[8];
    reference *seen = p->scope->references;
    next_token(p);
    o->kind = OPERAND_ADDRESS;
    do {
        if (count == 8) syntax_error(p, line, "too many elements in an address");
        items[count] = (operand){0};
        parse_operand(p, &items[count++], 0);
        if (count == 1 && items[0].kind != OPERAND_IMMEDIATE) o->bits = address_offset(p);
    } while (take_mark(p, ','));
    need_mark(p, ']');
    if (items[0].kind == OPERAND_SYMBOL) { /* the name took it */
        o->bits = (int64_t)((uint64_t)o->bits + (uint64_t)items[0].bits);
        items[0].bits = 0;
    }
    o->count = count;
    o->items = arena_alloc(p->arena, (size_t)count * sizeof *o);
    memcpy(o->items, items, (size_t)count * sizeof *o);
    for (reference *r = p->scope->references; r != seen; r = r->next)
        if (r->operand >= items && r->operand < items + count) r->operand = o->items + (r->operand - items);
}

/* A suffix that touches the word before it. */
static int touching_dot(const parser *p) {
    return p->now.kind == TOKEN_DOT && p->now.start == p->ended + 1;
}

static void register_operand(parser *p, operand *o, variable *v) {
    *o = (operand){.kind = OPERAND_REGISTER, .reg = v, .negated = o->negated};
    int line = p->now.line;
    if (touching_dot(p)) {
        const char *suffix = p->now.start;
        size_t length = p->now.length;
        if (v->vector > 1) {
            const char *found = length == 1 ? strchr("xyzwrgba", suffix[0]) : NULL;
            int element = found && *found ? (int)(found - "xyzwrgba") % 4 : 4;
            if (element >= v->vector) syntax_error(p, line, "`%s` has no such element", v->name);
            o->reg = v->elements[element];
        } else if (length >= 2 && length <= 5 && (suffix[0] == 'b' || suffix[0] == 'h') &&
                   strspn(suffix + 1, "01234567") + 1 >= length) { /* of a video instruction */
            o->name = arena_text(p->arena, suffix, length);
        } else {
            unexpected(p, "the end of the operand");
        }
        next_token(p);
    } else if (v->vector > 1) { /* the whole of it is the list of its elements */
        o->kind = OPERAND_VECTOR;
        o->count = v->vector;
        o->items = arena_alloc(p->arena, (size_t)v->vector * sizeof *o);
        for (int i = 0; i < v->vector; i++) o->items[i] = (operand){.kind = OPERAND_REGISTER, .reg = v->elements[i]};
    }
}

/* a[3]: the address of an element. */
static int64_t element_offset(parser *p, const variable *v) {
    int line = p->now.line;
    constant_value index = constant_expression(p);
    if (index.is_float) syntax_error(p, line, "an index must be an integer");
    need_mark(p, ']');
    return (int64_t)((uint64_t)index.bits * (uint64_t)(type_bits(v->type) / 8 * v->vector));
}

static void word_operand(parser *p, operand *o) {
    int line = p->now.line;
    if (p->now.length == 1 && p->now.start[0] == '_') {
        next_token(p);
        o->kind = OPERAND_SINK;
        return;
    }
    if (p->now.length == 7 && !memcmp(p->now.start, "WARP_SZ", 7)) {
        o->kind = OPERAND_IMMEDIATE;
        o->bits = constant_expression(p).bits;
        return;
    }
    name *n = take_word(p, "an operand");
    symbol *s = find_symbol(p, n);
    if (s && s->kind == SYMBOL_TARGETS) {
        *o = *s->targets;
        return;
    }
    if (s && s->kind == SYMBOL_VARIABLE && s->variable->space == SPACE_REG) {
        register_operand(p, o, s->variable);
        return;
    }
    if (!s && n->text[0] == '%') {
        o->kind = OPERAND_SPECIAL;
        o->name = n->text;
        if (touching_dot(p)) {
            char text[96];
            int length = snprintf(text, sizeof text, "%s.%.*s", n->text, (int)p->now.length, p->now.start);
            if (length >= (int)sizeof text) syntax_error(p, line, "there is no such register");
            o->name = intern(p, text, (size_t)length)->text;
            next_token(p);
        }
        return;
    }
    o->kind = OPERAND_SYMBOL;
    o->name = n->text;
    if (s && s->kind == SYMBOL_VARIABLE) o->reg = s->variable;
    if (!s) add_reference(p, o, n, line);
    o->bits = o->reg && take_mark(p, '[') ? element_offset(p, o->reg) : 0;
    o->bits = (int64_t)((uint64_t)o->bits + (uint64_t)address_offset(p));
}

/* `!` negates a predicate, or a constant. */
static int is_name_next(const parser *p) {
    const char *c = p->at + strspn(p->at, " \t");
    return (isalpha((unsigned char)*c) || strchr("_$%", *c)) && *c && strncmp(c, "WARP_SZ", 7) != 0;
}

void parse_operand(parser *p, operand *o, int is_call) {
    enter(p);
    if (at_mark(p, '{')) {
        parse_list(p, o, '}', 0);
    } else if (at_mark(p, '[')) {
        parse_address(p, o);
    } else if (is_call && at_mark(p, '(')) {
        parse_list(p, o, ')', 0);
    } else if (p->now.kind == TOKEN_WORD) {
        word_operand(p, o);
    } else if (at_mark(p, '!') && is_name_next(p)) {
        next_token(p);
        if (p->now.kind != TOKEN_WORD) unexpected(p, "a predicate");
        word_operand(p, o);
        if (o->kind != OPERAND_REGISTER) syntax_error(p, p->now.line, "`!` must stand before a predicate");
        o->negated = 1;
    } else if (p->now.kind == TOKEN_NUMBER || at_mark(p, '-') || at_mark(p, '+') || at_mark(p, '~') ||
               at_mark(p, '!') || at_mark(p, '(')) {
        constant_value v = constant_expression(p);
        o->kind = OPERAND_IMMEDIATE;
        o->bits = v.bits;
        o->value = v.is_float ? v.value : (double)v.bits;
        o->is_float = v.is_float;
    } else {
        unexpected(p, "an operand");
    }
    if (at_mark(p, '|') && o->kind != OPERAND_IMMEDIATE) {
        next_token(p);
        o->second = arena_alloc(p->arena, sizeof *o);
        parse_operand(p, o->second, 0);
    }
    p->nesting--;
}
