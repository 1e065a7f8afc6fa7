/* The error message of the calling thread. */
#ifndef NVFP4_COMMON_ERROR_H
#define NVFP4_COMMON_ERROR_H

#include "nvfp4.h"

/* Sets the message, returns status: `return fail(NVFP4_INVALID, "b: K is %lld but a has K = %lld", ...)`. */
__attribute__((format(printf, 2, 3))) nvfp4_status fail(nvfp4_status status, const char *format, ...);

/* Clears the message, before a callback that may set one. */
void clear_error(void);

#endif
