/* The definition: out = epilogue(sum over k of a[m][k]*scale_a[m][k/16] * b[n][k]*scale_b[n][k/16]), or for
 * PRODUCT_GEMM_NN of a[m][k] * b[k][n]*scale_b[k][n/16]. a of 16 bits has no scales. Every product is exact in double;
 * so is the sum unless its terms are more than 2^53 apart. One rounding to fp32. */
#include "cpu/epilogue.h"
#include "cpu/gemm.h"
#include "cpu/operand.h"
#include "cpu/threads.h"

/* The value of element k of a row times its scale, if it has one: exact. */
static double element(const operand *x, int64_t row, int64_t k) {
    if (x->type != VALUES_E2M1) {
        uint16_t code;
        memcpy(&code, x->data + row * x->pitch + k * 2, 2);
        return x->type == NVFP4_FP16 ? fp16_decode(code) : bf16_decode(code);
    }
    uint8_t pair = x->data[row * x->pitch + k / 2];
    int code = k % 2 ? pair >> 4 : pair & 15;
    uint8_t scale = x->scale[scale_offset(x->scale_layout, x->scale_pitch, row, k / 16)];
    return 0.5 * e2m1_doubled[code] * e4m3_decode(scale);
}

typedef struct reference {
    const gemm_problem *problem;
    const float *row_scale;
} reference;

static void reference_row(void *context, int64_t task, int thread) {
    (void)thread;
    const reference *g = context;
    const gemm_problem *p = g->problem;
    int64_t batch = task / p->m, m = task % p->m;
    operand a = operand_a(p, batch), b = operand_b(p, batch);
    for (int64_t n = 0; n < p->n; n++) {
        double sum = 0.0;
        for (int64_t k = 0; k < p->k; k++)
            sum += element(&a, m, k) * (p->product_kind == PRODUCT_GEMM_NN ? element(&b, k, n) : element(&b, n, k));
        float rounded = (float)sum;
        epilogue(p, batch, (sums_tile){&rounded, m, n, 1, 1, 0, 0, g->row_scale});
    }
}

nvfp4_status reference_gemm(const gemm_problem *p, const float *row_scale, int threads) {
    reference g = {p, row_scale};
    parallel_for(threads, p->l * p->m, reference_row, &g);
    return NVFP4_OK;
}
