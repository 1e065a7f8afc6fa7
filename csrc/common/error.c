/* The error message of the calling thread. */
#include "common/error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char message[1024];

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

nvfp4_status fail(nvfp4_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    make_utf8(message);
    return status;
}

const char *nvfp4_last_error(void) {
    return message;
}

void clear_error(void) {
    message[0] = 0;
}
