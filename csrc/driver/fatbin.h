/* The device code inside this library: one fat binary for every .cu file. A build for the CPU alone has none. */
#ifndef NVFP4_DRIVER_FATBIN_H
#define NVFP4_DRIVER_FATBIN_H

typedef struct nvfp4_fatbin {
    const unsigned char *start, *end; /* what cuLibraryLoadData takes, and the byte after it */
    const char *name;                 /* of the .cu file: "sm80_gemm" */
    const char *archs;                /* "sm_80 sm_89 ... compute_90": code for some GPUs, PTX for later ones */
} nvfp4_fatbin;

extern const nvfp4_fatbin nvfp4_fatbins[]; /* ends with start = NULL */
extern const int nvfp4_fatbin_count;

/* Every architecture that some fat binary has code for, each once; "" for a build without CUDA. */
extern const char nvfp4_fatbin_archs[];

#endif
