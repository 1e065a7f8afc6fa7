/* Shared by half.c and half_vector.c. */
#ifndef EMULATOR_HALF_H
#define EMULATOR_HALF_H

#include "machine/machine.h"

enum { HALVES = 2 * WARP_LANES }; /* in a register of a warp */

#define NAN_HALF 0x7fff
/* .ftz asks whether the result would be subnormal if exponents had no end: below this, 2^-14 is not reached by rounding
 * to 11 bits, though it may be by rounding to the subnormals' grid. (So on an H200.) Only f16 has .ftz. */
#define TINY_F16 (0x1p-14f * (1 - 0x1p-12f))

typedef enum { HALF_ADD, HALF_SUB, HALF_MUL, HALF_FMA } half_operation;
enum { HALF_FTZ = 1, HALF_SAT = 2, HALF_RELU = 4, HALF_OOB = 8, HALF_KEEP_NAN = 16, HALF_XOR_SIGN = 32 }; /* modes */

/* All halves of the registers a, b, c (where the upper ones are zero, they stay it); 0: some need more than fp32. */
int half_vector(half_operation op, uint32_t mode, int brain, const uint16_t *a, const uint16_t *b, const uint16_t *c,
                uint16_t *out);

#endif
