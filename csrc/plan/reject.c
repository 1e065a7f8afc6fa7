/* Errors of backends that have no candidates. */
#include "plan/reject.h"

#include "common/error.h"

nvfp4_status reject_shared_memory(const char *backend, const kernel_entry *kernels, int32_t count,
                                  const device_props *props) {
    int32_t least = INT32_MAX;
    for (int32_t i = 0; i < count; i++)
        if (kernels[i].shared_bytes < least) least = kernels[i].shared_bytes;
    if (least <= props->shared_per_block) return NVFP4_OK;
    return fail(NVFP4_UNSUPPORTED, "the %s kernels need %d bytes of shared memory or more; the GPU has %d a CTA",
                backend, least, props->shared_per_block);
}

nvfp4_status reject_tiles(const char *backend, const gemm_traits *t) {
    return fail(NVFP4_UNSUPPORTED,
                "the product of M = %lld, N = %lld, L = %lld has more tiles than the %s kernels count, which is %d",
                (long long)t->m, (long long)t->n, (long long)t->l, backend, INT32_MAX);
}
