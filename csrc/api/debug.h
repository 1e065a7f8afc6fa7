/* Hooks of debug builds (NVFP4_DUMP=1 in the environment of setup.py). */
#ifndef NVFP4_API_DEBUG_H
#define NVFP4_API_DEBUG_H

#include "nvfp4.h"

#ifdef NVFP4_DUMP
/* From now on every product of sm100 kernels on this context writes an sm100_dump (csrc/kernels/common/dump.h): what
 * the CTA of that index holds when it has multiplied its k_block of that number, which counts blocks of 64 along K from
 * 0 on through the CTA's part of K and then through its tiles. memory: of the device, nvfp4_dump_bytes() bytes on 8,
 * zeros; NULL ends it. A product that has no such CTA or k_block leaves `complete` zero. Not while another thread
 * calls. */
size_t nvfp4_dump_bytes(void);
void nvfp4_dump(nvfp4_context *context, void *memory, int32_t cta, int32_t k_block);
/* From now on each CTA of the sm90 and sm100 GEMM kernels on this device records where and when it ran. memory: of the
 * device, a placement_record (csrc/kernels/common/placement.h) and the CTAs that it has room for; NULL ends it. */
nvfp4_status nvfp4_placement(nvfp4_context *context, int32_t device, void *memory);
#endif

#endif
