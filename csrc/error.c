/* The error sentence of the calling thread. */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char sentence[1024];

nvfp4_status fail(nvfp4_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return status;
}

const char *nvfp4_last_error(void) {
    return sentence;
}

void forget_error(void) {
    sentence[0] = 0;
}
