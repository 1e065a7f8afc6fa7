/* Compares the numbers that nvfp4.h has for its users with those of backends.def, and with those of common/format.h and
 * common/activations.h, which kernels include instead. tests/core/test_c_core.py compares the lists of names. */
#include "nvfp4.h"

#define SAME(x, y, message) _Static_assert((int)(x) == (int)(y), message)

enum {
    ROW_AUTO,
#define NVFP4_BACKEND(ID, ...) ROW_##ID,
#include "backends.def"
};
#define NVFP4_BACKEND(ID, ...)                                                                                         \
    SAME(NVFP4_BACKEND_##ID, ROW_##ID, "nvfp4.h: NVFP4_BACKEND_" #ID " is not the number of its row in backends.def");
#include "backends.def"

#define DTYPES(X) X(NONE) X(UINT8) X(E2M1X2) X(E4M3) X(FP16) X(BF16) X(FP32) X(INT32) X(INT64)
#define OTHERS(X) X(128X4) X(LINEAR) X(AMAX6) X(FOUR_OVER_SIX) X(SEARCH) X(SILU) X(GELU_TANH) X(RELU2) X(SWIGLU)

#define PUBLIC(name) PUBLIC_##name = NVFP4_##name,
enum { DTYPES(PUBLIC) OTHERS(PUBLIC) };

/* In the block the enums of the two files hide those of nvfp4.h. */
__attribute__((unused)) static void compare_numbers(void) {
#undef NVFP4_COMMON_FORMAT_H
#undef NVFP4_COMMON_ACTIVATIONS_H
#include "common/activations.h"
#include "common/format.h"
#define EQUAL(name) SAME(NVFP4_##name, PUBLIC_##name, "nvfp4.h: NVFP4_" #name " is another number for kernels");
    DTYPES(EQUAL)
    OTHERS(EQUAL)
    SAME(sizeof(nvfp4_dtype) + sizeof(nvfp4_layout), 2 * sizeof(int), "enums are ints");
    SAME(sizeof(nvfp4_block_scale) + sizeof(nvfp4_activation), 2 * sizeof(int), "enums are ints");
}
