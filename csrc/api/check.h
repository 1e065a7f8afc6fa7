/* The rules a call must keep, one function a rule, and what is left of the call once they hold.
 *
 * Data pointers may be NULL, as they are for torch's fake tensors: the rules about addresses (alignment, overlap) are
 * then skipped. check_gemm_data_present rejects such a call before it runs. */
#ifndef NVFP4_API_CHECK_H
#define NVFP4_API_CHECK_H

#include "common/problem.h"
#include "nvfp4.h"

/* Bytes of the 128x4 layout of rows x columns scales, one batch. */
int64_t swizzled_bytes(int64_t rows, int64_t columns);
/* Bytes of one element (one packed pair). */
int64_t dtype_bytes(int32_t dtype);

nvfp4_status check_flags(uint32_t flags);
nvfp4_status check_gemm(const nvfp4_gemm_args *args, gemm_problem *problem);
nvfp4_status check_gemm_data_present(const nvfp4_gemm_args *args);

/* The same rules both ways; output_is_x says which of x and data, scale is written. */
nvfp4_status check_quantize(const nvfp4_quantize_args *args, int output_is_x, quantize_problem *problem);

nvfp4_status check_rms_norm_quantize(const nvfp4_rms_norm_quantize_args *args, norm_problem *problem);
nvfp4_status check_silu_mul_quantize(const nvfp4_quantize_args *args, quantize_problem *problem);

nvfp4_status check_amax_scale(const nvfp4_amax_scale_args *args, amax_problem *problem);

nvfp4_status check_swizzle(const nvfp4_tensor *linear, const nvfp4_tensor *swizzled, int output_is_linear,
                           swizzle_problem *problem);

#endif
