/* Modules, functions and statements (PTX ISA, chapters 4, 5, 7 and 11): text to the syntax tree of ptx.h.
 *
 * The parser knows directives and the form of statements, but no instruction. It binds the names of variables, since
 * it knows the scopes. Any other name is a label of this scope or an enclosing one, or a function. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "ptx/syntax.h"

#define MAX_MODIFIERS 32
#define MAX_OPERANDS  32
#define MAX_SCOPES    200

/* ---- scopes ---- */

static void open_scope(parser *p) {
    scope *s = arena_alloc(p->arena, sizeof *s);
    s->outer = p->scope;
    s->depth = p->scope ? p->scope->depth + 1 : 0;
    s->local_bytes = p->scope ? p->scope->local_bytes : 0;
    if (s->depth > MAX_SCOPES) syntax_error(p, p->now.line, "more than %d scopes in each other", MAX_SCOPES);
    p->scope = s;
}

static void close_scope(parser *p) {
    scope *s = p->scope;
    for (symbol *y = s->symbols; y; y = y->next_in_scope) {
        symbol **top = y->kind == SYMBOL_RANGE ? &y->name->range : &y->name->symbol;
        while (*top != y) top = &(*top)->outer;
        *top = y->outer;
    }
    for (reference *r = s->references, *next; r; r = next) {
        next = r->next;
        struct label *l = r->name->label;
        while (l && l->scope != s) l = l->shadowed;
        if (l) {
            r->operand->name = l->name;
        } else { /* further out */
            r->next = s->outer->references;
            s->outer->references = r;
        }
    }
    p->scope = s->outer;
}

static void add_label(parser *p, name *n, int line) {
    for (struct label *l = n->label; l; l = l->shadowed)
        if (l->scope == p->scope) syntax_error(p, line, "the label `%s` is there twice", n->text);
    struct label *l = arena_alloc(p->arena, sizeof *l);
    /* a copy of the name, so that labels of the same name in different scopes differ as pointers */
    l->name = arena_text(p->arena, n->text, n->length);
    l->statement = p->function->statement_count;
    l->scope = p->scope;
    l->shadowed = n->label;
    n->label = l;
    l->of = n;
    l->next = p->function->labels;
    p->function->labels = l;
}

/* ---- statements ---- */

/* The text from `start` to `end` on one line, without comments. */
static const char *one_line(parser *p, const char *start, const char *end) {
    char *text = arena_alloc(p->arena, (size_t)(end - start) + 1), *out = text;
    for (const char *c = start; c < end;) {
        if (c[0] == '/' && c[1] == '/') {
            while (c < end && *c != '\n') c++;
        } else if (c[0] == '/' && c[1] == '*') {
            for (c += 2; c < end && (c[0] != '*' || c[1] != '/'); c++) {
            }
            c += 2;
        } else if (isspace((unsigned char)*c)) {
            if (out > text && out[-1] != ' ') *out++ = ' ';
            c++;
        } else {
            *out++ = *c++;
        }
    }
    while (out > text && out[-1] == ' ') out--;
    *out = 0;
    return text;
}

static statement *new_statement(parser *p) {
    function *f = p->function;
    if (f->statement_count == p->statement_capacity) {
        int capacity = p->statement_capacity ? 2 * p->statement_capacity : 64;
        statement *grown = arena_alloc(p->arena, (size_t)capacity * sizeof *grown);
        if (f->statement_count) memcpy(grown, f->statements, (size_t)f->statement_count * sizeof *grown);
        f->statements = grown;
        p->statement_capacity = capacity;
    }
    return &f->statements[f->statement_count++];
}

static void parse_guard(parser *p, statement *s) {
    if (!take_mark(p, '@')) return;
    s->guard_negated = take_mark(p, '!');
    int line = p->now.line;
    name *n = take_word(p, "a predicate");
    symbol *y = find_symbol(p, n);
    if (!y || y->kind != SYMBOL_VARIABLE || y->variable->space != SPACE_REG || y->variable->type != TYPE_PRED)
        syntax_error(p, line, "`%s` is no predicate", n->text);
    s->guard = y->variable;
}

static void parse_instruction(parser *p) {
    statement *s = new_statement(p);
    const char *start = p->now.start, *modifiers[MAX_MODIFIERS];
    operand operands[MAX_OPERANDS];
    s->line = p->now.line;
    parse_guard(p, s);
    s->opcode = take_word(p, "an instruction")->text;
    int is_call = !strcmp(s->opcode, "call");
    while (p->now.kind == TOKEN_DOT) {
        if (s->modifier_count == MAX_MODIFIERS) syntax_error(p, s->line, "more than %d modifiers", MAX_MODIFIERS);
        modifiers[s->modifier_count++] = intern(p, p->now.start, p->now.length)->text;
        next_token(p);
    }
    reference *seen = p->scope->references;
    while (!at_mark(p, ';')) {
        if (s->operand_count == MAX_OPERANDS) syntax_error(p, s->line, "more than %d operands", MAX_OPERANDS);
        operands[s->operand_count] = (operand){0};
        parse_operand(p, &operands[s->operand_count++], is_call);
        if (!take_mark(p, ',')) break;
        if (at_mark(p, ';')) unexpected(p, "an operand");
    }
    if (!at_mark(p, ';')) unexpected(p, "`,` or `;`");
    s->text = one_line(p, start, p->at);
    next_token(p);
    s->modifiers = arena_alloc(p->arena, (size_t)s->modifier_count * sizeof *s->modifiers);
    memcpy(s->modifiers, modifiers, (size_t)s->modifier_count * sizeof *modifiers);
    s->operands = arena_alloc(p->arena, (size_t)s->operand_count * sizeof *operands);
    memcpy(s->operands, operands, (size_t)s->operand_count * sizeof *operands);
    for (reference *r = p->scope->references; r != seen; r = r->next)
        if (r->operand >= operands && r->operand < operands + s->operand_count)
            r->operand = s->operands + (r->operand - operands);
}

/* `name: .branchtargets a, b;` and `name: .calltargets f, g;` name a list; `name: .callprototype ...;` says how a call
 * through a register passes its parameters, which the function that it reaches says too. */
static void parse_named_list(parser *p, name *n) {
    symbol *y = arena_alloc(p->arena, sizeof *y);
    y->name = n;
    if (take_dot(p, "callprototype")) {
        int line = p->now.line;
        y->kind = SYMBOL_PROTOTYPE;
        while (!at_mark(p, ';')) {
            if (p->now.kind == TOKEN_END) syntax_error(p, line, "the prototype does not end");
            next_token(p);
        }
    } else {
        next_token(p);
        y->kind = SYMBOL_TARGETS;
        operand *list = arena_alloc(p->arena, sizeof *list);
        list->kind = OPERAND_VECTOR;
        int capacity = 0;
        do {
            int line = p->now.line;
            name *target = take_word(p, "a target");
            if (list->count == capacity) {
                capacity = capacity ? 2 * capacity : 16;
                operand *grown = arena_alloc(p->arena, (size_t)capacity * sizeof *grown);
                for (int i = 0; i < list->count; i++) grown[i] = list->items[i];
                for (reference *r = p->scope->references; r; r = r->next)
                    if (list->count && r->operand >= list->items && r->operand < list->items + list->count)
                        r->operand = grown + (r->operand - list->items);
                list->items = grown;
            }
            operand *o = &list->items[list->count++];
            *o = (operand){.kind = OPERAND_SYMBOL, .name = target->text};
            add_reference(p, o, target, line);
        } while (take_mark(p, ','));
        y->targets = list;
    }
    need_mark(p, ';');
    add_symbol(p, y);
}

static void skip_pragma(parser *p) {
    next_token(p);
    do {
        if (p->now.kind != TOKEN_STRING) unexpected(p, "a string");
        next_token(p);
    } while (take_mark(p, ','));
    need_mark(p, ';');
}

static int take_linkage(parser *p) {
    if (take_dot(p, "extern")) return 'e';
    if (take_dot(p, "visible") || take_dot(p, "weak") || take_dot(p, "common")) return 'v';
    return 0;
}

static int is_colon_next(const parser *p) {
    const char *c = p->at;
    while (isspace((unsigned char)*c)) c++;
    return c[0] == ':';
}

static void parse_body(parser *p) {
    int depth = p->scope->depth;
    need_mark(p, '{');
    open_scope(p);
    while (p->scope->depth > depth) {
        int line = p->now.line;
        if (at_mark(p, '{')) {
            next_token(p);
            open_scope(p);
        } else if (at_mark(p, '}')) {
            close_scope(p); /* before what follows is read, which may be another function's */
            next_token(p);
        } else if (take_mark(p, ';')) {
        } else if (at_mark(p, '@') && p->at[0] == '@') { /* @@DWARF, as old compilers wrote it */
            skip_line(p);
        } else if (at_dot(p, "loc") || at_dot(p, "file")) {
            skip_line(p);
        } else if (at_dot(p, "pragma")) {
            skip_pragma(p);
        } else if (p->now.kind == TOKEN_DOT) {
            int linkage = take_linkage(p);
            if (!at_space(p)) unexpected(p, "a declaration");
            parse_variables(p, linkage);
        } else if (p->now.kind == TOKEN_WORD && is_colon_next(p)) {
            name *n = take_word(p, "a label");
            next_token(p);
            if (at_dot(p, "branchtargets") || at_dot(p, "calltargets") || at_dot(p, "callprototype"))
                parse_named_list(p, n);
            else
                add_label(p, n, line);
        } else if (p->now.kind == TOKEN_WORD || at_mark(p, '@')) {
            parse_instruction(p);
        } else if (p->now.kind == TOKEN_END) {
            syntax_error(p, line, "the body of `%s` does not end", p->function->name);
        } else {
            unexpected(p, "an instruction");
        }
    }
}

/* ---- functions ---- */

static variable *parse_parameters(parser *p) {
    variable *first = NULL, **last = &first;
    need_mark(p, '(');
    while (!at_mark(p, ')')) {
        variable *v = parse_parameter(p);
        *last = v;
        last = &v->next_parameter;
        if (!take_mark(p, ',')) break;
    }
    need_mark(p, ')');
    return first;
}

static void take_numbers(parser *p, int *out, int most) {
    int given[3] = {1, 1, 1}, count = 0, line = p->now.line;
    do {
        if (count == most) syntax_error(p, line, "more than %d numbers", most);
        int64_t value = integer_expression(p);
        if (value < 0 || value > INT32_MAX) syntax_error(p, line, "%lld is out of range", (long long)value);
        given[count++] = (int)value;
    } while (take_mark(p, ','));
    memcpy(out, given, (size_t)most * sizeof *out);
}

static void parse_function_directives(parser *p, function *f) {
    int ignored[3];
    while (p->now.kind == TOKEN_DOT) {
        if (take_dot(p, "maxntid"))
            take_numbers(p, f->maxntid, 3);
        else if (take_dot(p, "reqntid"))
            take_numbers(p, f->reqntid, 3);
        else if (take_dot(p, "reqnctapercluster"))
            take_numbers(p, f->reqnctapercluster, 3);
        else if (take_dot(p, "minnctapersm"))
            take_numbers(p, &f->minnctapersm, 1);
        else if (take_dot(p, "maxnreg"))
            take_numbers(p, &f->maxnreg, 1);
        else if (take_dot(p, "explicitcluster"))
            f->explicitcluster = 1;
        else if (take_dot(p, "maxnctapersm") || take_dot(p, "maxclusterrank") || take_dot(p, "abi_preserve") ||
                 take_dot(p, "abi_preserve_control"))
            take_numbers(p, ignored, 1);
        else if (take_dot(p, "noreturn") || take_dot(p, "unique"))
            continue;
        else if (at_dot(p, "pragma"))
            skip_pragma(p);
        else if (take_dot(p, "attribute"))
            skip_parentheses(p);
        else /* .blocksareclusters too: the launch would count clusters, not blocks */
            unexpected(p, "a directive of a function that is known here");
    }
}

/* Offsets of a kernel's parameters in the block that a launch brings; parameters of a function live in local memory. */
static void place_parameters(parser *p, function *f) {
    int64_t bytes = 0;
    for (variable *v = f->parameters; v; v = v->next_parameter) {
        if (!f->is_entry) continue;
        if (v->space != SPACE_PARAM) syntax_error(p, f->line, "a kernel's parameters must be .param");
        v->is_kernel_parameter = 1;
        v->next = v->next_parameter;
        v->address = align_up(bytes, v->align);
        bytes = v->address + v->bytes;
        if (bytes > 1 << 20) syntax_error(p, f->line, "the parameters of `%s` are too large", f->name);
    }
    if (f->is_entry && f->results) syntax_error(p, f->line, "a kernel has no results");
    for (int which = 0; which < 2 && !f->is_entry; which++)
        for (variable *v = which ? f->results : f->parameters; v; v = v->next_parameter) {
            *p->last_variable = v;
            p->last_variable = &v->next;
            if (v->space != SPACE_PARAM) continue;
            v->address = align_up(f->local_bytes, v->align);
            f->local_bytes = v->address + v->bytes;
        }
}

static void parse_function(parser *p, int is_entry) {
    static function none;
    p->function = &none; /* the parameters' names are not the module's */
    open_scope(p);
    variable *results = at_mark(p, '(') ? parse_parameters(p) : NULL;
    int line = p->now.line;
    name *n = take_word(p, "the name of a function");
    function *f = n->function;
    if (!f) {
        f = arena_alloc(p->arena, sizeof *f);
        f->name = n->text;
        f->in = p->module;
        f->is_declaration = 1;
        f->is_entry = is_entry;
        f->original = f;
        n->function = f;
        *p->last_function = f;
        p->last_function = &f->next;
    }
    variable *parameters = at_mark(p, '(') ? parse_parameters(p) : NULL;
    function directives = {0};
    parse_function_directives(p, &directives);
    if (at_mark(p, '{') && !f->is_declaration) syntax_error(p, line, "`%s` is defined twice", f->name);
    if (f->is_declaration) {
        memcpy(f->maxntid, directives.maxntid, sizeof f->maxntid);
        memcpy(f->reqntid, directives.reqntid, sizeof f->reqntid);
        memcpy(f->reqnctapercluster, directives.reqnctapercluster, sizeof f->reqnctapercluster);
        f->minnctapersm = directives.minnctapersm;
        f->maxnreg = directives.maxnreg;
        f->explicitcluster = directives.explicitcluster;
        f->parameters = parameters;
        f->results = results;
        f->line = line;
    }
    if (at_mark(p, '{')) {
        f->is_declaration = 0;
        p->function = f;
        p->statement_capacity = 0;
        p->last_variable = &f->variables;
        place_parameters(p, f);
        p->scope->local_bytes = f->local_bytes;
        parse_body(p);
    } else {
        need_mark(p, ';');
    }
    for (struct label *l = f->labels; l; l = l->next) l->of->label = NULL;
    close_scope(p);
    p->function = NULL;
}

/* ---- modules ---- */

/* Written for 9.0. Unknown instructions of 9.1 are rejected. */
enum { NEWEST_VERSION = 91 };

static void parse_version(parser *p) {
    int line = p->now.line;
    constant_value v = number_value(p);
    p->module->version = (int)(v.value * 10 + 0.5);
    if (v.is_float != 64 || p->module->version < 10)
        syntax_error(p, line, "this is no version of PTX: major.minor, from 1.0 on");
    if (p->module->version > NEWEST_VERSION)
        syntax_error(p, line, "version %g of PTX is not known: %d.%d is the newest that is", v.value,
                     NEWEST_VERSION / 10, NEWEST_VERSION % 10);
}

static void parse_target(parser *p) {
    do {
        int line = p->now.line;
        name *n = take_word(p, "a target");
        if (!strncmp(n->text, "sm_", 3)) {
            char *end;
            long sm = strtol(n->text + 3, &end, 10);
            if (sm < 10 || sm > 999 || (*end && strcmp(end, "a") && strcmp(end, "f")))
                syntax_error(p, line, "the target `%s` is not known", n->text);
            p->module->target = n->text;
            p->module->sm = (int)sm;
            p->module->suffix = *end;
        } else if (strcmp(n->text, "debug") && strcmp(n->text, "texmode_unified") &&
                   strcmp(n->text, "texmode_independent")) {
            syntax_error(p, line, "the target option `%s` is not known", n->text);
        }
    } while (take_mark(p, ','));
}

static void parse_alias(parser *p) {
    struct alias *a = arena_alloc(p->arena, sizeof *a);
    a->name = take_word(p, "the name of a function")->text;
    need_mark(p, ',');
    a->target = take_word(p, "the name of a function")->text;
    need_mark(p, ';');
    a->next = p->module->aliases;
    p->module->aliases = a;
}

static void parse_directive(parser *p) {
    if (take_dot(p, "version")) {
        parse_version(p);
    } else if (take_dot(p, "target")) {
        parse_target(p);
    } else if (take_dot(p, "address_size")) {
        if (integer_expression(p) != 64) syntax_error(p, p->now.line, "only 64-bit addresses are emulated");
    } else if (at_dot(p, "file") || at_dot(p, "loc") || (at_mark(p, '@') && p->at[0] == '@')) {
        skip_line(p);
    } else if (take_dot(p, "section")) {
        if (p->now.kind != TOKEN_DOT) unexpected(p, "the name of a section");
        next_token(p);
        if (!at_mark(p, '{')) unexpected(p, "`{`");
        skip_braces(p);
    } else if (at_dot(p, "pragma")) {
        skip_pragma(p);
    } else if (take_dot(p, "alias")) {
        parse_alias(p);
    } else if (take_mark(p, ';')) {
    } else if (p->now.kind == TOKEN_DOT) {
        int linkage = take_linkage(p);
        if (take_dot(p, "func")) {
            parse_function_directives(p, &(function){0});
            parse_function(p, 0);
        } else if (take_dot(p, "entry")) {
            parse_function(p, 1);
        } else if (at_space(p)) {
            parse_variables(p, linkage);
        } else {
            unexpected(p, "a directive that is known here");
        }
    } else {
        unexpected(p, "a directive");
    }
}

/* Names that are no labels must be functions. */
static void check_references(parser *p) {
    for (reference *r = p->scope->references; r; r = r->next) {
        const struct alias *a = p->module->aliases;
        while (a && a->name != r->name->text) a = a->next;
        if (!r->name->function && !a) {
            p->now.start = NULL;
            p->at = p->text;
            p->line = 1;
            for (int line = 1; line < r->line; line++) p->at = strchr(p->at, '\n') + 1;
            p->line = r->line;
            syntax_error(p, r->line, "`%s` is not declared", r->name->text);
        }
    }
}

module *parse_module(const char *text, const char *file, char **error) {
    arena *a = arena_create();
    parser *p = arena_alloc(a, sizeof *p);
    module *m = arena_alloc(a, sizeof *m);
    *p = (parser){.text = text, .at = text, .line = 1, .module = m, .arena = a};
    p->last_global = &m->variables;
    p->last_function = &m->functions;
    m->arena = a;
    m->file = arena_text(a, file, strlen(file));
    if (setjmp(p->escape)) {
        *error = p->error;
        arena_destroy(p->arena);
        return NULL;
    }
    open_scope(p);
    next_token(p);
    if (!at_dot(p, "version")) unexpected(p, "`.version`: this is not PTX");
    while (p->now.kind != TOKEN_END) parse_directive(p);
    if (!m->target) syntax_error(p, p->line, "there is no .target");
    check_references(p);
    return m;
}
