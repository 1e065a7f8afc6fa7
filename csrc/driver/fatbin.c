/* Puts the fat binaries into the library. The build writes fatbins.inc, which says FATBIN(name, "file", "archs") for
 * each and defines FATBIN_ARCHS; without NVFP4_CUDA this file compiles to an empty table. */
#include "driver/fatbin.h"

#include <stddef.h>

#ifdef NVFP4_CUDA

#define FATBIN(name, file, archs)                                                                                      \
    __asm__(".pushsection .rodata\n"                                                                                   \
            ".balign 64\n"                                                                                             \
            "fatbin_" #name ":\n"                                                                                      \
            ".incbin \"" file "\"\n"                                                                                   \
            "fatbin_" #name "_end:\n"                                                                                  \
            ".byte 0\n"                                                                                                \
            ".popsection\n");                                                                                          \
    extern const unsigned char fatbin_##name[] __attribute__((visibility("hidden")));                                  \
    extern const unsigned char fatbin_##name##_end[] __attribute__((visibility("hidden")));
#include "fatbins.inc"
#undef FATBIN

#define FATBIN(name, file, archs) {fatbin_##name, fatbin_##name##_end, #name, archs},
const nvfp4_fatbin nvfp4_fatbins[] = {
#include "fatbins.inc"
    {NULL, NULL, NULL, NULL},
};
#undef FATBIN

#else

#define FATBIN_ARCHS ""
const nvfp4_fatbin nvfp4_fatbins[] = {{NULL, NULL, NULL, NULL}};

#endif

const int nvfp4_fatbin_count = (int)(sizeof nvfp4_fatbins / sizeof nvfp4_fatbins[0]) - 1;
const char nvfp4_fatbin_archs[] = FATBIN_ARCHS;
