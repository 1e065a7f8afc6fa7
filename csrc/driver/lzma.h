/* A decoder of LZMA, the compression of the images in this library: that of `xz --format=raw --lzma1` and of Python's
 * lzma module with FORMAT_RAW. The format is that of the LZMA SDK's specification (7-zip.org/sdk.html). */
#ifndef NVFP4_DRIVER_LZMA_H
#define NVFP4_DRIVER_LZMA_H

#include <stddef.h>

/* The parameters with which build_backend/nvfp4_cuda.py compresses. */
enum { LZMA_LC = 3, LZMA_LP = 0, LZMA_PB = 2 };

/* Decodes `out_bytes` bytes. 1: done; 0: `in` is damaged or ends too early. Reads and writes within both arrays,
 * whatever `in` holds. */
int lzma_decode(const unsigned char *in, size_t in_bytes, unsigned char *out, size_t out_bytes);

#endif
