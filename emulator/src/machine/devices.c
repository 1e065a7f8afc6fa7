/* The devices that can be emulated, with the values that cudaGetDeviceProperties gives on real ones. */
#include "machine/machine.h"

static const device devices[] = {
    {.key = "sm_100",
     .name = "Emulated B200",
     .cc = 100,
     .sm_count = 148,
     .shared_per_block = 232448,
     .shared_per_sm = 233472,
     .shared_reserved = 1024,
     .threads_per_sm = 2048,
     .ctas_per_sm = 32,
     .registers_per_sm = 65536,
     .l2_bytes = 132644864,
     .memory_bytes = (int64_t)180 << 30,
     .cluster_max = 8},
    {.key = "sm_90",
     .name = "Emulated H200",
     .cc = 90,
     .sm_count = 132,
     .shared_per_block = 232448,
     .shared_per_sm = 233472,
     .shared_reserved = 1024,
     .threads_per_sm = 2048,
     .ctas_per_sm = 32,
     .registers_per_sm = 65536,
     .l2_bytes = 62914560,
     .memory_bytes = (int64_t)141 << 30,
     .cluster_max = 8},
    {.key = "sm_80",
     .name = "Emulated A100",
     .cc = 80,
     .sm_count = 108,
     .shared_per_block = 166912,
     .shared_per_sm = 167936,
     .shared_reserved = 1024,
     .threads_per_sm = 2048,
     .ctas_per_sm = 32,
     .registers_per_sm = 65536,
     .l2_bytes = 41943040,
     .memory_bytes = (int64_t)80 << 30,
     .cluster_max = 1},
    {.key = "sm_120",
     .name = "Emulated RTX 5090",
     .cc = 120,
     .sm_count = 170,
     .shared_per_block = 101376,
     .shared_per_sm = 102400,
     .shared_reserved = 1024,
     .threads_per_sm = 1536,
     .ctas_per_sm = 24,
     .registers_per_sm = 65536,
     .l2_bytes = 100663296,
     .memory_bytes = (int64_t)32 << 30,
     .cluster_max = 8},
};

const device *device_by_key(const char *key) {
    if (!key || !*key) return &devices[0];
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (!strcmp(devices[i].key, key)) return &devices[i];
    return NULL;
}
