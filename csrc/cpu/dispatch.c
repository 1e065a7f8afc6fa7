/* cpu_gemm: the kernel of an instruction set. */
#include "gemm.h"
#include "threads.h"

nvfp4_status cpu_gemm(const gemm_problem *problem, cpu_isa isa, int threads) {
    (void)isa;
    if (threads <= 0) threads = threads_available();
    return reference_gemm(problem, threads);
}
