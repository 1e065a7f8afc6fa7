/* What the two front ends, the Python module and the torch operators, share: words for the numbers of nvfp4.h, shapes
 * of results, and the competition's views. Errors are messages in nvfp4_last_error(), as everywhere. */
#ifndef NVFP4_FRONTEND_H
#define NVFP4_FRONTEND_H

#include "nvfp4.h"

nvfp4_status layout_from_name(const char *name, int32_t *layout);                     /* "128x4", "linear" */
nvfp4_status block_scale_from_name(const char *name, int32_t *block_scale);           /* "amax6", "four_over_six" */
nvfp4_status backend_from_name(const char *name, int32_t *backend);                   /* "auto", "cpu", ... */
nvfp4_status dtype_from_name(const char *argument, const char *name, int32_t *dtype); /* of a result */

/* Fills dtype, device, shape and dense strides of a result that is still to be allocated; data is NULL. */
/* The dtype of a result where the caller names none: that of a 16-bit a, else fp16. */
int32_t default_out_dtype(const nvfp4_gemm_args *args);
nvfp4_status gemm_result(const nvfp4_gemm_args *args, int32_t dtype, nvfp4_tensor *out);
nvfp4_status quantize_results(const nvfp4_tensor *x, int32_t layout, nvfp4_tensor *data, nvfp4_tensor *scale);
/* x: gate_up. */
nvfp4_status silu_mul_quantize_results(const nvfp4_tensor *x, int32_t layout, nvfp4_tensor *data, nvfp4_tensor *scale);
nvfp4_status dequantize_result(const nvfp4_tensor *data, int32_t dtype, nvfp4_tensor *x);
void scale_result(const nvfp4_tensor *x, nvfp4_tensor *scale); /* float32 [1] */
nvfp4_status swizzle_result(const nvfp4_tensor *linear, nvfp4_tensor *swizzled);
/* Three-dimensional swizzled scales hold L batches, others one. */
nvfp4_status unswizzle_result(const nvfp4_tensor *swizzled, int64_t rows, int64_t columns, nvfp4_tensor *linear);

/* Takes a, b, scale_a, scale_b and out as the competition shapes them, checks that they are views of the memory that
 * they claim to be, and turns them into gemm's. */
nvfp4_status gemm_of_views(nvfp4_gemm_args *args);

/* If the pending message is about argument `from`, makes it speak of `to`: the name that the caller knows. */
void rename_argument(const char *from, const char *to);
void rename_views(void); /* gemm's names to custom_kernel's */

#endif
