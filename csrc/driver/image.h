/* The device code inside this library: for each .cu file some images, each for one architecture, compressed. A build for
 * the CPU alone has none. */
#ifndef NVFP4_DRIVER_IMAGE_H
#define NVFP4_DRIVER_IMAGE_H

#include <stddef.h>
#include <stdint.h>

#include "nvfp4.h"

typedef struct nvfp4_image {
    const unsigned char *start, *end; /* the image as lzma.h decodes it */
    size_t bytes;                     /* of what cuLibraryLoadData takes: a cubin, or PTX that ends with a zero byte */
    const char *source;               /* the .cu file, by its folder and stem: "sm80_gemm" */
    const char *arch;                 /* "sm_90a": a cubin; "compute_90": PTX, which the driver compiles */
} nvfp4_image;

extern const nvfp4_image nvfp4_images[]; /* ends with start = NULL */
extern const int nvfp4_image_count;

/* Every architecture that some file has an image for, each once; "" for a build without CUDA. */
extern const char nvfp4_image_archs[];

/* The version of the compiler, 1000 * major + 10 * minor, as CUDA counts; that of the oldest one without CUDA. Cubins
 * run on every driver of its major version and later ones ("minor version compatibility", CUDA's guide to it). */
extern const int nvfp4_image_toolkit;

/* How well an architecture suits a GPU of compute capability 10*major + minor; 0: it does not run there. Machine code is
 * better than PTX, and newer is better than older. sm_80 runs on its major version from 8.0 on, sm_90a on 9.0 alone,
 * sm_100f on its major version from 10.0 on; compute_80 runs on 8.0 and all later GPUs, and with a letter where machine
 * code of this letter runs. */
int image_fitness(const char *arch, int32_t compute_capability);

/* Writes what cuLibraryLoadData takes to *unpacked, malloc'd. */
nvfp4_status image_unpack(const nvfp4_image *image, unsigned char **unpacked);

#endif
