/* Tokens of PTX text (PTX ISA, chapter 4): words, numbers, directives and modifiers, strings. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "ptx/syntax.h"

static int is_word_start(int c) {
    return isalpha(c) || c == '_' || c == '$' || c == '%';
}

static int is_word(int c) {
    return isalnum(c) || c == '_' || c == '$';
}

static int here(const parser *p, int offset) {
    return (unsigned char)p->at[offset];
}

_Noreturn void syntax_error(parser *p, int line, const char *reason, ...) {
    char said[600], *message;
    va_list list;
    va_start(list, reason);
    vsnprintf(said, sizeof said, reason, list);
    va_end(list);
    /* the line of the source, which the token at hand or the lexer stands near */
    const char *start = p->now.start ? p->now.start : p->at;
    int distance = p->now.start ? p->now.line - line : p->line - line;
    const char *begin = start;
    if (!*begin && begin > p->text) begin--;
    while (begin > p->text && (begin[-1] != '\n' || distance-- > 0)) begin--;
    while (*begin == ' ' || *begin == '\t') begin++;
    size_t length = strcspn(begin, "\n\r");
    if (length > 160) length = 160;
    char shown[161];
    for (size_t i = 0; i < length; i++) shown[i] = isprint((unsigned char)begin[i]) ? begin[i] : ' ';
    shown[length] = 0;
    if (asprintf(&message, "%s:%d: `%s`: %s", p->module->file, line, shown, said) < 0) message = NULL;
    p->error = message;
    longjmp(p->escape, 1);
}

const char *token_text(parser *p) {
    const token *t = &p->now;
    if (t->kind == TOKEN_END) return "the end of the file";
    size_t length = t->length > 60 ? 60 : t->length;
    char *text = arena_alloc(p->arena, length + 4);
    snprintf(text, length + 4, "`%s%.*s`", t->kind == TOKEN_DOT ? "." : "", (int)length, t->start);
    for (char *c = text; *c; c++)
        if (!isprint((unsigned char)*c)) *c = '?';
    return text;
}

_Noreturn void unexpected(parser *p, const char *wanted) {
    syntax_error(p, p->now.line, "expected %s, not %s", wanted, token_text(p));
}

static void skip_space(parser *p) {
    for (;;) {
        int c = here(p, 0);
        if (c == '\n') {
            p->line++;
            p->at++;
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
            p->at++;
        } else if (c == '/' && here(p, 1) == '/') {
            p->at += strcspn(p->at, "\n");
        } else if (c == '/' && here(p, 1) == '*') {
            const char *end = strstr(p->at + 2, "*/");
            if (!end) {
                p->now.start = NULL;
                syntax_error(p, p->line, "the comment does not end");
            }
            for (; p->at < end + 2; p->at++) p->line += *p->at == '\n';
        } else {
            return;
        }
    }
}

static void lex_number(parser *p) {
    token *t = &p->now;
    t->kind = TOKEN_NUMBER;
    const char *c = p->at;
    int hex = c[0] == '0' && c[1] && strchr("xXfFdD", c[1]);
    while (
        is_word((unsigned char)*c) || (!hex && *c == '.' && isdigit((unsigned char)c[1])) ||
        (!hex && (*c == '+' || *c == '-') && (c[-1] == 'e' || c[-1] == 'E') && memchr(p->at, '.', (size_t)(c - p->at))))
        c++;
    if (!hex && *c == '.' && !is_word((unsigned char)c[1])) c++; /* "1." */
    p->at = c;
}

void next_token(parser *p) {
    token *t = &p->now;
    p->ended = p->at;
    skip_space(p);
    t->start = p->at;
    t->line = p->line;
    t->mark = 0;
    int c = here(p, 0);
    if (!c) {
        t->kind = TOKEN_END;
    } else if (is_word_start(c) && (c != '%' || is_word(here(p, 1)))) {
        t->kind = TOKEN_WORD;
        do p->at++;
        while (is_word(here(p, 0)));
    } else if (isdigit(c)) {
        lex_number(p);
    } else if (c == '.' && is_word(here(p, 1))) {
        t->kind = TOKEN_DOT;
        t->start = ++p->at;
        for (;;) {
            if (is_word(here(p, 0)))
                p->at++;
            else if (here(p, 0) == ':' && here(p, 1) == ':' && is_word(here(p, 2)))
                p->at += 2;
            else
                break;
        }
    } else if (c == '"') {
        t->kind = TOKEN_STRING;
        for (p->at++; here(p, 0) != '"'; p->at++) {
            if (here(p, 0) == '\\' && here(p, 1) && here(p, 1) != '\n') p->at++;
            if (!here(p, 0) || here(p, 0) == '\n') syntax_error(p, t->line, "the string does not end");
        }
        p->at++;
    } else {
        static const char *const pairs[] = {"<<", ">>", "<=", ">=", "==", "!=", "&&", "||"};
        t->kind = TOKEN_MARK;
        t->mark = c;
        p->at++;
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
            if (c == pairs[i][0] && here(p, 0) == pairs[i][1]) {
                t->mark = MARK2(c, here(p, 0));
                p->at++;
                break;
            }
    }
    t->length = (size_t)(p->at - t->start);
}

void skip_line(parser *p) {
    int line = p->now.line;
    while (p->now.kind != TOKEN_END && p->now.line == line) {
        if (p->line == line) {
            const char *end = p->at + strcspn(p->at, "\n");
            /* a comment may hide the end of the line, and a string a comment: neither occurs in .loc and .file */
            p->at = end;
        }
        next_token(p);
    }
}

void skip_braces(parser *p) {
    int depth = 0, line = p->now.line;
    do {
        if (p->now.kind == TOKEN_END) syntax_error(p, line, "the section does not end");
        depth += at_mark(p, '{') - at_mark(p, '}');
        next_token(p);
    } while (depth > 0);
}

static uint32_t hash_text(const char *text, size_t length) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    return hash ^ hash >> 15;
}

static void grow_names(parser *p) {
    uint32_t capacity = p->names_capacity ? p->names_capacity * 4 : 4096;
    name **table = arena_alloc(p->arena, capacity * sizeof *table);
    for (uint32_t i = 0; i < p->names_capacity; i++)
        for (name *n = p->names[i], *next; n; n = next) {
            next = n->next;
            n->next = table[n->hash % capacity];
            table[n->hash % capacity] = n;
        }
    p->names = table;
    p->names_capacity = capacity;
}

name *intern(parser *p, const char *text, size_t length) {
    if (p->names_count >= p->names_capacity) grow_names(p);
    uint32_t hash = hash_text(text, length);
    name **bucket = &p->names[hash % p->names_capacity];
    for (name *n = *bucket; n; n = n->next)
        if (n->hash == hash && n->length == length && !memcmp(n->text, text, length)) return n;
    name *n = arena_alloc(p->arena, sizeof *n + length + 1);
    n->hash = hash;
    n->length = length;
    memcpy(n->text, text, length);
    n->next = *bucket;
    *bucket = n;
    p->names_count++;
    return n;
}

name *take_word(parser *p, const char *wanted) {
    if (p->now.kind != TOKEN_WORD) unexpected(p, wanted);
    name *n = intern(p, p->now.start, p->now.length);
    next_token(p);
    return n;
}

int at_mark(const parser *p, int mark) {
    return p->now.kind == TOKEN_MARK && p->now.mark == mark;
}

int take_mark(parser *p, int mark) {
    if (!at_mark(p, mark)) return 0;
    next_token(p);
    return 1;
}

void need_mark(parser *p, int mark) {
    char wanted[] = {'`', (char)mark, '`', 0};
    if (!take_mark(p, mark)) unexpected(p, wanted);
}

int at_dot(const parser *p, const char *word) {
    return p->now.kind == TOKEN_DOT && strlen(word) == p->now.length && !memcmp(p->now.start, word, p->now.length);
}

int take_dot(parser *p, const char *word) {
    if (!at_dot(p, word)) return 0;
    next_token(p);
    return 1;
}

/* 0f and 0d with the bits in hexadecimal. */
static int bits_literal(parser *p, const char *text, size_t length, constant_value *v) {
    int is_double = (text[1] | 32) == 'd';
    size_t digits = is_double ? 16 : 8;
    if (text[0] != '0' || (text[1] | 32) != (is_double ? 'd' : 'f')) return 0;
    if (length != digits + 2) syntax_error(p, p->now.line, "a literal 0%c needs %zu digits", text[1], digits);
    for (size_t i = 2; i < length; i++)
        if (!isxdigit((unsigned char)text[i])) unexpected(p, "hexadecimal digits");
    v->bits = (int64_t)strtoull(text + 2, NULL, 16);
    v->is_float = is_double ? 64 : 32;
    if (is_double) {
        memcpy(&v->value, &v->bits, sizeof v->value);
    } else {
        uint32_t bits = (uint32_t)v->bits;
        float single;
        memcpy(&single, &bits, sizeof single);
        v->value = single;
    }
    return 1;
}

constant_value number_value(parser *p) {
    constant_value v = {0};
    char text[72], *end;
    if (p->now.kind != TOKEN_NUMBER) unexpected(p, "a number");
    size_t length = p->now.length;
    if (length >= sizeof text) syntax_error(p, p->now.line, "the number is too long");
    memcpy(text, p->now.start, length);
    text[length] = 0;
    if (length >= 2 && bits_literal(p, text, length, &v)) {
        next_token(p);
        return v;
    }
    int is_hex = (text[1] | 32) == 'x', is_binary = (text[1] | 32) == 'b' && text[0] == '0';
    if (!is_hex && !is_binary && strpbrk(text, ".eE")) {
        v.value = strtod(text, &end);
        if (*end) unexpected(p, "a floating-point number");
        memcpy(&v.bits, &v.value, sizeof v.bits);
        v.is_float = 64;
        next_token(p);
        return v;
    }
    if (text[length - 1] == 'U' || text[length - 1] == 'u') {
        text[--length] = 0;
        v.is_unsigned = 1;
    }
    unsigned long long bits = is_binary ? strtoull(text + 2, &end, 2)
                                        : strtoull(text, &end,
                                                   is_hex           ? 16
                                                   : text[0] == '0' ? 8
                                                                    : 10);
    if (*end || end == text || (is_binary && length < 3)) unexpected(p, "a number");
    v.bits = (int64_t)bits;
    if (v.bits < 0) v.is_unsigned = 1;
    next_token(p);
    return v;
}
