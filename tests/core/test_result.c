/* Texts that say what sizes a result has: all texts of the table are read, others are rejected at the place where they
 * are wrong, and sizes follow from them. Prints "N passed, N failed". */
#include <stdio.h>
#include <string.h>

#include "bindings/result.h"

static int passed, failed;

static void expect(int holds, const char *rule) {
    passed += holds != 0;
    failed += holds == 0;
    if (!holds) printf("FAILED: %s (%s)\n", rule, nvfp4_last_error());
}

/* The rest of the text, from where it is wrong, as the error message ends. */
static void check_wrong(const operation *op, const char *text, const char *rest) {
    result_sizes sizes;
    char end[80];
    snprintf(end, sizeof end, "wrong at '%s'", rest);
    const nvfp4_status status = parse_sizes(op, text, &sizes);
    const char *message = nvfp4_last_error(), *found = strstr(message, end);
    expect(status == NVFP4_INVALID && found && strlen(found) == strlen(end), text);
}

static void check_texts(void) {
    result_sizes s;
    const operation *quantize = &operation_quantize, *grouped = &operation_grouped_quantize;
    expect(parse_results() == NVFP4_OK, "the texts of the table");
    expect(parse_sizes(quantize, "[*batch_of(scale), 3, round_up(2 * columns_of(x) // 16, 4)]", &s) == NVFP4_OK &&
               s.batch == 1 + 3 && s.count == 2 && s.size[0].of == SIZE_NUMBER && s.size[0].times == 3 &&
               s.size[1].of == SIZE_COLUMNS && s.size[1].index == 0 && s.size[1].times == 2 && s.size[1].over == 16 &&
               s.size[1].round_up == 4,
           "a size with everything");
    expect(parse_sizes(grouped, "[128 * group_blocks(sorted_rows(rows, x), ends)]", &s) == NVFP4_OK && s.count == 1 &&
               s.batch == 0 && s.size[0].of == SIZE_SORTED_ROWS && s.size[0].times == 128 && s.size[0].rows_of == 0 &&
               s.size[0].ends == 1 + 2 && s.size[0].index == 3,
           "blocks of groups");
    check_wrong(quantize, "", "");
    check_wrong(quantize, "[rows_of(x)", "");
    check_wrong(quantize, "[]", "]");
    check_wrong(quantize, "[rows_of(x)] ", " ");
    check_wrong(quantize, "[rows_of(y)]", "y)]");
    check_wrong(quantize, "[rows_of(xx)]", "xx)]");
    check_wrong(quantize, "[rows_off(x)]", "rows_off(x)]");
    check_wrong(quantize, "[rows_of(x), rows_of(x), rows_of(x)]", ", rows_of(x)]");
    check_wrong(quantize, "[0 * rows_of(x)]", " * rows_of(x)]");
    check_wrong(quantize, "[rows_of(x) // 0]", "]");
    check_wrong(quantize, "[rows_of(x) / 2]", " / 2]");
    check_wrong(quantize, "[1234567890]", "0]");
    check_wrong(quantize, "[round_up(rows_of(x))]", ")]");
    check_wrong(quantize, "[group_blocks(rows_of(x))]", ")]");
    check_wrong(quantize, "[rows]", "rows]");
    check_wrong(&operation_unswizzle, "[row, columns]", "row, columns]");
}

static nvfp4_tensor tensor(nvfp4_dtype dtype, int32_t ndim, int64_t l, int64_t rows, int64_t columns) {
    const int64_t shape[3] = {l, rows, columns};
    nvfp4_tensor t = {.dtype = dtype, .device = NVFP4_HOST, .ndim = ndim};
    memcpy(t.shape, shape + 3 - ndim, (size_t)ndim * sizeof *shape);
    return t;
}

static int has_shape(const nvfp4_tensor *t, nvfp4_dtype dtype, int32_t ndim, int64_t l, int64_t rows, int64_t columns) {
    const nvfp4_tensor expected = tensor(dtype, ndim, l, rows, columns);
    return t->dtype == dtype && t->ndim == ndim && !t->data &&
           !memcmp(t->shape, expected.shape, (size_t)ndim * sizeof *t->shape);
}

static void check_sizes(void) {
    front_call call = {.out_dtype = NVFP4_NONE};
    nvfp4_quantize_args *q = &call.args.quantize;
    operation_quantize.defaults(&call.args);
    q->x = tensor(NVFP4_BF16, 3, 5, 129, 80);
    expect(describe_result(&operation_quantize, 0, &call) == NVFP4_OK &&
               describe_result(&operation_quantize, 1, &call) == NVFP4_OK,
           "results of quantize");
    expect(has_shape(&q->data, NVFP4_UINT8, 3, 5, 129, 40) && has_shape(&q->scale, NVFP4_E4M3, 3, 5, 256, 8),
           "batches");
    q->scale_layout = NVFP4_LINEAR;
    expect(describe_result(&operation_quantize, 1, &call) == NVFP4_OK && has_shape(&q->scale, NVFP4_E4M3, 3, 5, 129, 5),
           "the other shape");
    q->x.shape[0] = INT64_MAX;
    expect(describe_result(&operation_quantize, 0, &call) == NVFP4_INVALID &&
               !strncmp(nvfp4_last_error(), "x: dimension 0 is 9223372036854775807; must be", 46),
           "a batch that no tensor has");
    q->x = tensor(NVFP4_BF16, 1, 0, 0, 80);
    expect(describe_result(&operation_quantize, 0, &call) == NVFP4_INVALID &&
               !strcmp(nvfp4_last_error(), "x: has 1 dimensions; must have 2, or 3 with a leading batch"),
           "a vector");

    nvfp4_grouped_gemm_args *g = &call.args.grouped_gemm;
    operation_grouped_gemm.defaults(&call.args);
    g->a = tensor(NVFP4_FP16, 2, 0, 7, 64);
    g->b = (nvfp4_tensor){.dtype = NVFP4_UINT8, .device = NVFP4_HOST, .ndim = 4, .shape = {3, 2, 48, 32}};
    expect(describe_result(&operation_grouped_gemm, 0, &call) == NVFP4_OK &&
               has_shape(&g->out, NVFP4_FP16, 2, 0, 7, 96),
           "parts, without rows");
    g->rows = tensor(NVFP4_INT32, 1, 0, 0, 0);
    call.out_dtype = NVFP4_FP32;
    expect(describe_result(&operation_grouped_gemm, 0, &call) == NVFP4_OK &&
               has_shape(&g->out, NVFP4_FP32, 2, 0, 0, 96),
           "no rows, in the caller's type");
    g->b.shape[1] = INT64_MAX;
    expect(describe_result(&operation_grouped_gemm, 0, &call) == NVFP4_INVALID &&
               !strncmp(nvfp4_last_error(), "b: gives a result with a dimension of 9223372036854775807", 57),
           "more columns than can be counted");
}

int main(void) {
    check_texts();
    check_sizes();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
