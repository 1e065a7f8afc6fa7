/* cpu_gemm, which chooses the kernel, the driver and the number of threads. */
#include "cpu/gemm.h"
#include "cpu/threads.h"

static const cpu_kernel *const kernels[CPU_ISA_COUNT] = {
    [CPU_PORTABLE] = &portable_kernel,
#if defined(__x86_64__)
    [CPU_AVX2] = &avx2_kernel,
    [CPU_AVX512VNNI] = &avx512vnni_kernel,
    [CPU_AMX] = &amx_kernel,
#endif
};

static const cpu_kernel *const w4a16_kernels[CPU_ISA_COUNT] = {
    [CPU_PORTABLE] = &w4a16_portable_kernel,
#if defined(__x86_64__)
    [CPU_AVX2] = &w4a16_avx2_kernel,
    [CPU_AVX512VNNI] = &w4a16_avx512_kernel,
    [CPU_AMX] = &w4a16_amx_kernel,
#endif
};

const cpu_kernel *cpu_kernel_for(int32_t a_type, int32_t is_nn, cpu_isa isa) {
    if (a_type == VALUES_E2M1) return kernels[isa];
    /* amx.c has tiles of bf16 alone, and no product A . B */
    if (isa == CPU_AMX && (a_type == NVFP4_FP16 || is_nn)) isa = CPU_AVX512VNNI;
    return w4a16_kernels[isa];
}

/* vectors.c adds in another order along K than blocked.c, so a batch-invariant product takes blocked.c for every M. */
nvfp4_status cpu_gemm(const gemm_problem *p, cpu_isa isa, int threads, int batch_invariant) {
    if (p->m == 0 || p->n == 0 || p->l == 0) return NVFP4_OK;
    if (threads <= 0) threads = threads_available();
    /* A second thread is worth waking for some 20 us of work. */
    double products = (double)p->m * (double)p->n * (double)p->k * (double)p->l;
    if (threads > 1 + products * 0x1p-21) threads = (int)(1 + products * 0x1p-21);
    const cpu_kernel *kernel = cpu_kernel_for(p->a_type, p->product_kind == PRODUCT_GEMM_NN, isa);
    if (!kernel || p->k == 0) return reference_gemm(p, NULL, threads);
    nvfp4_status status;
    if (p->product_kind == PRODUCT_GEMM_NN)
        status = nn_gemm(p, NULL, kernel, threads);
    else if (min_int(p->m, p->n) <= kernel->max_vectors && !batch_invariant)
        status = vectors_gemm(p, kernel, threads);
    else
        status = blocked_gemm(p, NULL, kernel, threads);
    trim_scratch();
    return status;
}
