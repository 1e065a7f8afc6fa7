/* Shared by the files that load PTX: the arena, names, the lexer, the parser and the decoder's state. */
#ifndef EMULATOR_SYNTAX_H
#define EMULATOR_SYNTAX_H

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

#include "ptx/ptx.h"

/* ---- arena.c: memory that is freed together ---- */

typedef struct arena arena;
arena *arena_create(void);
void arena_destroy(arena *a);
void *arena_alloc(arena *a, size_t bytes); /* zeroed, aligned to 16 */
const char *arena_text(arena *a, const char *text, size_t length);

static inline int64_t align_up(int64_t value, int64_t align) {
    return (value + align - 1) / align * align;
}

/* ---- lex.c: tokens ---- */

typedef enum { TOKEN_END, TOKEN_WORD, TOKEN_DOT, TOKEN_NUMBER, TOKEN_STRING, TOKEN_MARK } token_kind;

typedef struct token {
    token_kind kind;
    const char *start; /* a TOKEN_DOT starts behind its dot: ".shared::cta" is "shared::cta" */
    size_t length;
    int line;
    int mark; /* of TOKEN_MARK: the character, or two of them: MARK2('<', '<') */
} token;
#define MARK2(a, b) ((a) << 8 | (b))

/* A constant, as written or computed. */
typedef struct constant_value {
    int64_t bits;
    double value;
    int is_float; /* 32, 64 */
    int is_unsigned;
} constant_value;

/* A name, stored once, with what it stands for in the scopes that are open. */
typedef struct name name;
typedef struct symbol symbol;
struct name {
    name *next;
    uint32_t hash;
    symbol *symbol;      /* innermost first */
    symbol *range;       /* it is the prefix of %r<10> */
    function *function;  /* of the module */
    struct label *label; /* while a scope is being closed */
    name *prefix;        /* "%r12": of "%r" ... */
    uint32_t number;     /* ... 12 */
    int split;           /* prefix and number have been looked for */
    size_t length;
    char text[];
};

struct symbol {
    enum { SYMBOL_VARIABLE, SYMBOL_RANGE, SYMBOL_TARGETS, SYMBOL_PROTOTYPE } kind;
    symbol *outer;         /* of the same name */
    symbol *next_in_scope; /* to take it back when the scope closes */
    struct scope *scope;
    name *name;
    variable *variable; /* a range: of which each register is a copy */
    uint32_t count;     /* registers of a range */
    const operand *targets;
};

/* A name that is no variable yet: a label further down, or a function. */
typedef struct reference {
    struct reference *next;
    operand *operand;
    name *name;
    int line;
} reference;

typedef struct scope {
    struct scope *outer;
    int depth;
    symbol *symbols;
    struct label *labels; /* chained by their own link */
    reference *references;
    int64_t local_bytes;
} scope;

typedef struct parser {
    const char *text, *at; /* of the lexer */
    int line;
    token now;         /* looked at, not taken */
    const char *ended; /* end of the last token taken */
    module *module;
    arena *arena;
    name **names;
    uint32_t names_capacity, names_count;
    scope *scope;
    function *function;
    variable **last_variable, **last_global;
    function **last_function;
    int statement_capacity, nesting;
    jmp_buf escape;
    char *error;
} parser;

/* "file:line: `source line`: reason", and gives up. */
_Noreturn void syntax_error(parser *p, int line, const char *reason, ...) __attribute__((format(printf, 3, 4)));
/* The token at hand is not what was expected. */
_Noreturn void unexpected(parser *p, const char *wanted);
void next_token(parser *p);
void skip_line(parser *p);   /* .loc and .file end with their line */
void skip_braces(parser *p); /* the token at hand is the opening one */
constant_value number_value(parser *p);
name *intern(parser *p, const char *text, size_t length);
name *take_word(parser *p, const char *wanted);
int at_mark(const parser *p, int mark);
int take_mark(parser *p, int mark);
void need_mark(parser *p, int mark);
int at_dot(const parser *p, const char *word);
int take_dot(parser *p, const char *word);
const char *token_text(parser *p);

/* ---- operand.c: constant expressions and operands ---- */

constant_value constant_expression(parser *p);
constant_value constant_term(parser *p); /* sums and products only: where < and > end it */
int64_t integer_expression(parser *p);
void parse_operand(parser *p, operand *o, int is_call);
symbol *find_symbol(parser *p, name *n);
void add_symbol(parser *p, symbol *s);
void add_reference(parser *p, operand *o, name *n, int line);

/* ---- declare.c: variables and their initial values ---- */

/* One declaration from the state space on, up to and with its semicolon. `linkage`: 'e'xtern, 'v'isible or 0. */
void parse_variables(parser *p, int linkage);
/* A formal parameter of a function or kernel; a prototype's may have no name. */
variable *parse_parameter(parser *p);
int at_space(const parser *p);
void skip_parentheses(parser *p);

/* ---- parse.c ---- */

/* NULL: *error says why. */
module *parse_module(const char *text, const char *file, char **error);

/* ---- decode.c: what it has for entry.c ---- */

typedef struct decoder_state {
    jmp_buf escape;
    char *error;
    uint32_t second_taken; /* bit i: what follows the bar of operand i */
    int fill_capacity;
    int *fill_table; /* hash table of indices into the entry's fills, + 1 */
    int table_capacity;
    struct hidden {
        struct hidden *next;
        const char *name;
        uint32_t slot;
    } *hidden;
} decoder_state;

/* Decodes d->function, whose registers have their slots. */
void decode_function_body(decoder *d);
uint32_t new_slot(entry *e, ptx_type type);
function *find_function(const module *m, const char *name);
/* Builds what module_entry returns. */
entry *build_entry(module *m, function *f, char **error);
/* Addresses and initial values of .global and .const variables. 0, or -1 and *error. */
int place_globals(module *m, char **error);
void free_globals(module *m);
/* target.c: rejects a statement that the file's .target lacks. decode.c calls it after the family. */
void check_target(decoder *d);
/* The callee of a call statement; NULL for any other statement. */
const operand *call_target(const statement *s);
int is_system_function(const char *name); /* control.c: vprintf and the like */

#endif
