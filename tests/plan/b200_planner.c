/* The plans that plan_choose takes with the sm100 backend alone, on the B200 of the model. Reads lines of M N K L RANK;
 * prints how many candidates there are and the modelled time of the one at that rank. tests/plan/test_model_b200.py
 * compiles it with the planner and benchmarks/c_model.c. */
#include "plan/choose.h"
#include <stdio.h>
extern const gemm_backend sm100_backend;
const gemm_backend *const gemm_backends[GEMM_BACKENDS] = {[NVFP4_BACKEND_SM100] = &sm100_backend};
extern const device_props b200_props;
void contiguous_traits(int64_t m, int64_t n, int64_t k, int64_t l, int32_t a_type, gemm_traits *out);
int main(void) {
    long long m, n, k, l;
    int rank;
    while (scanf("%lld %lld %lld %lld %d", &m, &n, &k, &l, &rank) == 5) {
        plan_query query;
        memset(&query, 0, sizeof query);
        query.props = b200_props;
        contiguous_traits(m, n, k, l, VALUES_E2M1, &query.traits);
        query.backends = 1u << NVFP4_BACKEND_SM100;
        query.rank = rank;
        const plan_answer *answer = plan_choose(&query);
        printf("%d %.17g\n", answer->candidates, answer->taken.modelled_us);
    }
}
