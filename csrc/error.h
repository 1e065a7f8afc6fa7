/* The error sentence of the calling thread. */
#ifndef NVFP4_ERROR_H
#define NVFP4_ERROR_H

#include "nvfp4.h"

/* Keeps the sentence, returns status: `return fail(NVFP4_INVALID, "b: K is %lld but a has K = %lld", ...)`. */
__attribute__((format(printf, 2, 3))) nvfp4_status fail(nvfp4_status status, const char *format, ...);

/* Empties the sentence, before a callback that may leave one. */
void forget_error(void);

#endif
