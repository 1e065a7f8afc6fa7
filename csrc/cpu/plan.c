/* The CPU as a backend: one candidate, the fastest kernel that the CPU runs or the one that NVFP4_CPU names. */
#include "cpu/cpu.h"
#include "plan/gemm_backend.h"

static const char *const reasons[CPU_ISA_COUNT] = {
    [CPU_PORTABLE] = "the CPU has no vector instructions that a faster kernel needs",
    [CPU_AVX2] = "the CPU has AVX2 but not AVX-512 VNNI",
    [CPU_AVX512VNNI] = "the CPU has AVX-512 VNNI but not AMX",
    [CPU_AMX] = "the CPU has AMX tiles for bf16",
};

static int32_t candidates(const device_props *props, const gemm_traits *traits, gemm_candidate *out) {
    (void)props, (void)traits;
    cpu_isa isa;
    if (cpu_isa_detect(&isa)) return 0;
    *out = (gemm_candidate){.name = cpu_isa_name(isa),
                            .backend = NVFP4_BACKEND_CPU,
                            .kernel = isa,
                            .split_k = 1,
                            .reason = cpu_isa_is_forced() ? "NVFP4_CPU asks for it" : reasons[isa]};
    return 1;
}

static nvfp4_status reject(const device_props *props, const gemm_traits *traits) {
    (void)props, (void)traits;
    cpu_isa isa;
    return cpu_isa_detect(&isa);
}

static nvfp4_status run_host(const product_problem *p, const gemm_candidate *c, int32_t threads) {
    return cpu_gemm(&p->gemm, (cpu_isa)c->kernel, threads, c->batch_invariant);
}

static nvfp4_status run_grouped(const product_problem *p, const gemm_candidate *c, int32_t threads) {
    return cpu_grouped_gemm(&p->grouped, (cpu_isa)c->kernel, threads, c->batch_invariant);
}

static const gemm_planner gemm = {.a_types = TAKES_E2M1 | TAKES_16_BIT,
                                  .takes_by_batch = 1,
                                  .candidates = candidates,
                                  .reject = reject,
                                  .run_host = run_host};
static const gemm_planner gemm_nn = {
    .a_types = TAKES_16_BIT, .takes_by_batch = 1, .candidates = candidates, .reject = reject, .run_host = run_host};
static const gemm_planner grouped = {.a_types = TAKES_E2M1 | TAKES_16_BIT,
                                     .takes_by_batch = 1,
                                     .candidates = candidates,
                                     .reject = reject,
                                     .run_host = run_grouped};
static const gemm_planner grouped_nn = {
    .a_types = TAKES_16_BIT, .takes_by_batch = 1, .candidates = candidates, .reject = reject, .run_host = run_grouped};

const gemm_backend cpu_backend = {BACKEND_ROW(cpu), .planners = {[PRODUCT_GEMM] = &gemm,
                                                                 [PRODUCT_GEMM_NN] = &gemm_nn,
                                                                 [PRODUCT_GROUPED] = &grouped,
                                                                 [PRODUCT_GROUPED_NN] = &grouped_nn}};
