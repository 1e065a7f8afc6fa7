/* Division rounded up as a constant expression, for C, C++ and device code; of non-negative numbers. */
#ifndef NVFP4_COMMON_CEIL_DIV_H
#define NVFP4_COMMON_CEIL_DIV_H

#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))

#endif
