/* Rows of groups under an even routing, by which plans model products of groups: their ends are on the device. */
#ifndef NVFP4_PLAN_EVEN_ROUTING_H
#define NVFP4_PLAN_EVEN_ROUTING_H

#include <math.h>
#include <stdint.h>

#include "common/math.h"

/* How many groups have rows where `rows` rows fall on them by chance. */
static inline double groups_with_rows(double rows, double groups) {
    return groups * (1.0 - pow(1.0 - 1.0 / groups, rows));
}

/* The rows of a group in an eighth of the distribution, if it has `rows` on average: they scatter as Poisson's. */
enum { EIGHTHS = 8 };
static inline double rows_of_eighth(double rows, int32_t eighth) {
    static const double deviations[EIGHTHS] = {-1.534, -0.887, -0.489, -0.157, 0.157, 0.489, 0.887, 1.534};
    return max_double(1.0, rows + deviations[eighth] * sqrt(rows));
}

/* The turns in which CTAs or teams compute equal tiles, of which each has so many on average: whole ones while they are
 * few. */
static inline double turns_of(double each) {
    return max_double(1.0, each < 3.0 ? ceil(each - 0.05) : each + 0.5);
}

#endif
