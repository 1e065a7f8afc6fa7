/* Shared by the files of tensor-core arithmetic: the parameters of one instruction's sums, and the rule for one
 * output. */
#ifndef EMULATOR_TENSOR_RULE_H
#define EMULATOR_TENSOR_RULE_H

#include "tensor/arithmetic.h"

typedef struct {
    int fused;         /* products in one fused sum; the next sum takes the result as its C */
    int fraction_bits; /* what alignment keeps below the largest exponent */
    int result_bits;   /* mantissa bits of an fp32 result */
    bool via_f16;      /* fp8 converted to f16 and multiplied in two halves, C added last by an ordinary addition */
} sum_rule;

sum_rule tensor_sum_rule(const tensor_op *op);

/* Where product i of the instruction's sums sits along K. */
int tensor_k_of(const tensor_op *op, const sum_rule *rule, int i);

/* D[m][n] as a bit pattern, for C given as one. */
uint32_t tensor_element_result(const tensor_op *op, const sum_rule *rule, int m, int n, uint32_t c);

#define TENSOR_NAN_F32 0x7fffffffU
#define TENSOR_NAN_F16 0x7fffU

/* The smallest exponent that the hardware gives a number of the type, subnormals included. A zero's is -126. */
int tensor_smallest_exponent(tensor_element type, const sum_rule *rule);

bool tensor_is_integer(tensor_element type);

#endif
