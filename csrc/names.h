/* Words of the Python and torch interfaces to the numbers of nvfp4.h, each unknown word refused in a sentence. */
#ifndef NVFP4_NAMES_H
#define NVFP4_NAMES_H

#include "nvfp4.h"

nvfp4_status layout_from_name(const char *name, int32_t *layout);   /* "128x4", "linear" */
nvfp4_status backend_from_name(const char *name, int32_t *backend); /* "auto", "cpu", "sm80" */
nvfp4_status out_dtype_from_name(const char *name, int32_t *dtype); /* "float16", "bfloat16", "float32" */

#endif
