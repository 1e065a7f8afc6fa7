/* The error of the calling thread. */
#include "common/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { ARGUMENT_BYTES = 64, TEXT_BYTES = 1024, MESSAGE_BYTES = ARGUMENT_BYTES + 2 * TEXT_BYTES + 8 };

typedef struct error_texts {
    char argument[ARGUMENT_BYTES], value[TEXT_BYTES], rule[TEXT_BYTES];
} error_texts;

static _Thread_local nvfp4_status last_status;
static _Thread_local error_texts last; /* with marks */
static _Thread_local error_texts said; /* in some words, as error_in left it */
static _Thread_local char message[MESSAGE_BYTES];

const error_words c_words = {{
    NULL,
    "flags",
    "lacks NVFP4_NO_TRANSPOSE_B",
    "has NVFP4_NO_TRANSPOSE_B",
    "must not have it",
    "must have it",
    "flags",
    "NVFP4_AUTO",
}};

/* Bytes of the UTF-8 character at s; 0: it is none. */
static int character_bytes(const unsigned char *s) {
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (*s < 0x80) return 1;
    int count = *s < 0xC0 ? 0 : *s < 0xE0 ? 2 : *s < 0xF0 ? 3 : *s < 0xF8 ? 4 : 0;
    unsigned code = *s & (0x7Fu >> count);
    for (int i = 1; i < count; i++) {
        if ((s[i] & 0xC0) != 0x80) return 0;
        code = code << 6 | (s[i] & 0x3Fu);
    }
    return code < least[count] || code > 0x10FFFF || code >> 11 == 0x1B ? 0 : count; /* 0x1B: surrogates */
}

/* A message may quote a text that is cut inside a character, or a file name in another encoding. */
static void make_utf8(char *text) {
    for (int count; *text; text += count)
        if ((count = character_bytes((unsigned char *)text)) == 0) *text = '?', count = 1;
}

static void print(char *text, size_t size, const char *format, va_list arguments) {
    vsnprintf(text, size, format, arguments);
    make_utf8(text);
}

nvfp4_status fail(nvfp4_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print(last.value, sizeof last.value, format, arguments);
    va_end(arguments);
    last.rule[0] = 0;
    return error_end(status, "");
}

void error_value(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print(last.value, sizeof last.value, format, arguments);
    va_end(arguments);
}

void error_rule(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print(last.rule, sizeof last.rule, format, arguments);
    va_end(arguments);
}

void error_no_rule(void) {
    last.rule[0] = 0;
}

nvfp4_status error_end(nvfp4_status status, const char *argument) {
    snprintf(last.argument, sizeof last.argument, "%s", argument);
    last_status = status;
    return status;
}

void clear_error(void) {
    last.argument[0] = last.value[0] = last.rule[0] = 0;
    last_status = NVFP4_OK;
}

/* The number of the mark at s; 0: there is none. */
static int mark_at(const char *s) {
    const int number = strncmp(s, "\xEF\xB7", 2) == 0 ? (unsigned char)s[2] - 0x90 : 0;
    return number > 0 && number < ERROR_WORDS ? number : 0;
}

/* Copies a text with its marks replaced by words, if there are any. */
static void say(const error_words *words, const char *text, char *out, size_t size) {
    size_t length = 0;
    while (*text) {
        const int mark = words ? mark_at(text) : 0;
        const char one[2] = {*text, 0}, *word = mark ? words->mark[mark] : one;
        const size_t bytes = strlen(word);
        if (length + bytes >= size) break;
        memcpy(out + length, word, bytes);
        length += bytes;
        text += mark ? 3 : 1;
    }
    out[length] = 0;
}

void error_in(const error_words *words, nvfp4_error *error) {
    say(words, last.argument, said.argument, sizeof said.argument);
    say(words, last.value, said.value, sizeof said.value);
    say(words, last.rule, said.rule, sizeof said.rule);
    *error = (nvfp4_error){last_status, said.argument, said.value, said.rule};
}

const char *error_message_in(const error_words *words) {
    nvfp4_error e;
    error_in(words, &e);
    snprintf(message, sizeof message, "%s%s%s%s%s", e.argument, *e.argument ? ": " : "", e.value, *e.rule ? "; " : "",
             e.rule);
    return message;
}

void nvfp4_last_error_data(nvfp4_error *error) {
    error_in(&c_words, error);
}

const char *nvfp4_last_error(void) {
    return error_message_in(&c_words);
}
