/* Puts the images into the library. The build writes images.inc, which says IMAGE(source, arch, "file", bytes) for each
 * and defines IMAGE_ARCHS and IMAGE_TOOLKIT; without NVFP4_CUDA this file compiles to an empty table. */
#include "driver/image.h"

#include <stdlib.h>
#include <string.h>

#include "common/error.h"
#include "driver/lzma.h"

#ifdef NVFP4_CUDA

#define IMAGE(source, arch, file, bytes)                                                                               \
    __asm__(".pushsection .rodata\n"                                                                                   \
            "image_" #source "_" #arch ":\n"                                                                           \
            ".incbin \"" file "\"\n"                                                                                   \
            "image_" #source "_" #arch "_end:\n"                                                                       \
            ".byte 0\n"                                                                                                \
            ".popsection\n");                                                                                          \
    extern const unsigned char image_##source##_##arch[] __attribute__((visibility("hidden")));                        \
    extern const unsigned char image_##source##_##arch##_end[] __attribute__((visibility("hidden")));
#include "images.inc"
#undef IMAGE

#define IMAGE(source, arch, file, bytes)                                                                               \
    {image_##source##_##arch, image_##source##_##arch##_end, bytes, #source, #arch},
const nvfp4_image nvfp4_images[] = {
#include "images.inc"
    {NULL, NULL, 0, NULL, NULL},
};
#undef IMAGE

#else

#define IMAGE_ARCHS   ""
#define IMAGE_TOOLKIT 12090
const nvfp4_image nvfp4_images[] = {{NULL, NULL, 0, NULL, NULL}};

#endif

const int nvfp4_image_count = (int)(sizeof nvfp4_images / sizeof nvfp4_images[0]) - 1;
const char nvfp4_image_archs[] = IMAGE_ARCHS;
const int nvfp4_image_toolkit = IMAGE_TOOLKIT;

int image_fitness(const char *arch, int32_t compute_capability) {
    const int machine_code = !strncmp(arch, "sm_", 3);
    char *suffix;
    const int made_for = (int)strtol(strchr(arch, '_') + 1, &suffix, 10);
    const int same_major = made_for / 10 == compute_capability / 10;
    const int runs = *suffix == 'a'                   ? made_for == compute_capability
                     : *suffix == 'f' || machine_code ? same_major && made_for <= compute_capability
                                                      : made_for <= compute_capability;
    return runs ? 1000 * machine_code + 2 * made_for + (*suffix != 0) : 0;
}

nvfp4_status image_unpack(const nvfp4_image *image, unsigned char **unpacked) {
    unsigned char *made = malloc(image->bytes);
    if (!made) return fail(NVFP4_OUT_OF_MEMORY, "no memory to load the GPU code");
    if (!lzma_decode(image->start, (size_t)(image->end - image->start), made, image->bytes)) {
        free(made);
        return fail(NVFP4_DRIVER, "the GPU code of this build is damaged: %s for %s cannot be unpacked", image->source,
                    image->arch);
    }
    *unpacked = made;
    return NVFP4_OK;
}
