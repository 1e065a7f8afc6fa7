/* A grid of one warp behind a product of groups, launched as its dependent, that does not wait for it: it changes the
 * ends of the groups again and again, while CTAs read them. */
#include <stdint.h>

enum { CHANGES = 400 };

struct changing_ends {
    volatile int32_t *ends; /* which hold the last change when the grid ends */
    const int32_t *values;  /* of every second change, then of the others */
    int64_t groups;
};

extern "C" __global__ void change_ends(const __grid_constant__ changing_ends p) {
    for (int i = 0; i < CHANGES; i++)
        for (int64_t e = threadIdx.x; e < p.groups; e += 32) p.ends[e] = p.values[i % 2 * p.groups + e];
}
