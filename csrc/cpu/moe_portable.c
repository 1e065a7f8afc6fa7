/* Rows of the steps around experts in C. */
#pragma GCC optimize("no-trapping-math")
#include "cpu/moe.h"

#define load_row  load_floats
#define store_row store_floats
#include "cpu/moe_rows.h"

const moe_kernel moe_portable = {.gated = gated_row, .combine = combine_row};
