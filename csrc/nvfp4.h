/* nvfp4: matrix products of NVFP4 data, C = alpha * (A . B^T) + beta * C + bias, or of 16-bit A without the
 * transposition, alpha * (A . B).
 *
 * The public C interface: this file alone, as C11 or C++17. It knows no Python and no torch. docs/c-api.md says how a
 * program is built with it, and what holds for threads, streams, workspaces and versions; examples/product.c is one.
 *
 * Format. A value is e2m1 (sign, 2 exponent bits, 1 mantissa bit: 0 .5 1 1.5 2 3 4 6); element 2i of a row is the
 * low nibble of byte i, element 2i+1 the high one. Every 16 values along K share one e4m3 scale; bit 7 of a scale
 * byte is not part of the format and is ignored, 0x7F is NaN. (OCP Microscaling formats v1.0, section 5.3.3 for
 * e2m1; OCP 8-bit floating point v1.0, section 5 for e4m3; PTX ISA 9.0, section 9.7.16.10.5 for the block of 16.)
 *
 * Scale layouts, of R rows and S = K/16 scale columns:
 *   NVFP4_LINEAR  [R, S], row-major.
 *   NVFP4_128X4   the tensor core's. Row r, column s at byte
 *                 ((r/128)*ceil(S/4) + s/4)*512 + (r%32)*16 + (r%128/32)*4 + s%4,
 *                 ceil(R/128)*ceil(S/4)*512 bytes in all. Bytes of padding may hold anything.
 *
 * Errors. Every function returns a status; anything but NVFP4_OK leaves a message in nvfp4_last_error() of the
 * calling thread that names the argument, the rule and the value, and nothing has been written.
 *
 * Threads. A context may be used by several threads at once; what one of them sets holds for calls that begin later.
 */
#ifndef NVFP4_H
#define NVFP4_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef NVFP4_LIBRARY /* tools/build_library.sh hides all other functions */
#pragma GCC visibility push(default)
#endif

#define NVFP4_VERSION  "0.3.0"
#define NVFP4_MAX_DIMS 6

typedef enum nvfp4_status {
    NVFP4_OK = 0,
    NVFP4_INVALID,       /* an argument breaks a rule */
    NVFP4_UNSUPPORTED,   /* the device or build cannot run this call */
    NVFP4_DRIVER,        /* libcuda is missing, too old, or reports an error */
    NVFP4_OUT_OF_MEMORY, /* host memory for scratch space could not be had */
} nvfp4_status;

typedef enum nvfp4_backend {
    NVFP4_AUTO = 0, /* the plan with the least modelled time of all that the device can run */
    NVFP4_BACKEND_CPU = 1,
    NVFP4_BACKEND_SM80 = 2,  /* any GPU of compute capability 8.0 or later */
    NVFP4_BACKEND_SM90 = 3,  /* compute capability 9.0 (H100, H200) */
    NVFP4_BACKEND_SM100 = 4, /* compute capability 10.0, 10.3 and 11.0 (B200, B300, Thor) */
    NVFP4_BACKEND_SM120 = 5, /* compute capability 12.0 and 12.1 (RTX 50, RTX PRO, GB10) */
} nvfp4_backend;

/* The library's kernels know the numbers of the next four enums without this header, by common/format.h and
 * common/activations.h; these are the same (csrc/api/header.c). */
#ifndef NVFP4_COMMON_FORMAT_H
#define NVFP4_COMMON_FORMAT_H
typedef enum nvfp4_dtype {
    NVFP4_NONE = 0, /* the argument is absent */
    NVFP4_UINT8,
    NVFP4_E2M1X2, /* two e2m1 values in a byte */
    NVFP4_E4M3,
    NVFP4_FP16,
    NVFP4_BF16,
    NVFP4_FP32,
    NVFP4_INT32,
    NVFP4_INT64,
} nvfp4_dtype;

typedef enum nvfp4_layout {
    NVFP4_128X4 = 0,
    NVFP4_LINEAR = 1,
} nvfp4_layout;

typedef enum nvfp4_block_scale {
    NVFP4_AMAX6 = 0,         /* amax / 6: the largest value of a block becomes 6 */
    NVFP4_FOUR_OVER_SIX = 1, /* amax / 6 or amax / 4, the one with the smaller error */
    NVFP4_SEARCH = 2,        /* the best of 13 scales */
} nvfp4_block_scale;
#endif

#ifndef NVFP4_COMMON_ACTIVATIONS_H
#define NVFP4_COMMON_ACTIVATIONS_H
typedef enum nvfp4_activation {
    NVFP4_SILU = 0,      /* silu(gate) * up */
    NVFP4_GELU_TANH = 1, /* gelu_tanh(gate) * up */
    NVFP4_RELU2 = 2,     /* relu(gate)^2 */
    NVFP4_SWIGLU = 3,    /* gate * sigmoid(alpha * gate) * (up + 1) */
} nvfp4_activation;
#endif

typedef enum nvfp4_flags {
    /* The bits of a row of the result depend neither on M nor on the row's place: one order of additions along K serves
     * every M of the same N, K and L on one device, whatever nvfp4_set_candidate or nvfp4_override_plan forces. */
    NVFP4_BATCH_INVARIANT = 1,
    /* A promise: no kernel that may still run when the product starts writes b or scale_b. It is true of the weights of
     * a model. Such kernels are the one before the product on the stream, and all that this one does not wait for.
     * Kernels of sm90, sm100 and sm120 then load b early; others ignore the flag. Bits of the result do not change. */
    NVFP4_CONSTANT_B = 2,
    /* C = alpha * (A . B) + beta * C + bias, for the gradient with respect to A: a is fp16 or bf16 [M, N] or [L, M, N],
     * b lies as for A . B^T, out and c are [M, K] or [L, M, K], bias has K elements and alpha one. N is any size; rows
     * of a are dense or a multiple of 16 bytes apart, its data is aligned to 2 bytes. The cpu and sm80 kernels take it,
     * those of sm90 with 128x4 scales and rows and batches of a and b on 16 bytes. */
    NVFP4_NO_TRANSPOSE_B = 4,
    /* The products of nvfp4_gated_grouped_quantize, which alone takes the flag, are rounded to bf16 and not to fp16. */
    NVFP4_BF16_PRODUCTS = 8,
    /* A promise, of nvfp4_grouped_gemm alone: no kernel that may still run when the product starts writes ends. It is
     * true of ends that nvfp4_moe_route has written where a product of gate and up lies between. With NVFP4_CONSTANT_B
     * too, kernels of sm90 then load b early. Bits of the result do not change. */
    NVFP4_CONSTANT_ENDS = 16,
} nvfp4_flags;

#define NVFP4_HOST (-1) /* nvfp4_tensor.device of host memory */

/* A strided tensor. Strides count elements (a packed pair of e2m1 values is one), as DLPack has it. */
typedef struct nvfp4_tensor {
    void *data;
    nvfp4_dtype dtype;
    int32_t device; /* NVFP4_HOST or a CUDA ordinal */
    int32_t ndim;
    int64_t shape[NVFP4_MAX_DIMS];
    int64_t stride[NVFP4_MAX_DIMS];
} nvfp4_tensor;

typedef struct nvfp4_context nvfp4_context;

/* Makes a context. Opens nothing: the CUDA driver is opened by the first call that needs it. Reads the environment
 * (NVFP4_BACKEND, NVFP4_LIBCUDA; NVFP4_CPU with the first context of a process), which no other call does. */
nvfp4_status nvfp4_create(nvfp4_context **context);
void nvfp4_destroy(nvfp4_context *context);

/* The error message of the calling thread's last failure, in UTF-8; "" if there was none. */
const char *nvfp4_last_error(void);

/* The same failure as data: `argument: value; rule` is its message. Texts are UTF-8, never NULL, and stay valid until
 * the thread's next call. */
typedef struct nvfp4_error {
    nvfp4_status status;
    const char *argument; /* which one breaks a rule; "": the failure is of none. By its name in these structs, except
                           * `gate_up` for x of silu_mul_quantize, `scale` for the scales that swizzle and unswizzle
                           * read, and `E` for the length of ends of moe_route */
    const char *value;    /* what it is: "K is 40" */
    const char *rule;     /* what it must be: "must be a multiple of 16"; "" where the value says it */
} nvfp4_error;
void nvfp4_last_error_data(nvfp4_error *error);

/* The place and the memory of a call. The arguments of every operation begin with it. */
typedef struct nvfp4_call {
    size_t size;     /* of the whole struct of arguments, in bytes. NVFP4_..._ARGS sets it. A program that was compiled
                      * with fewer fields keeps working: those that it lacks have their defaults */
    int32_t threads; /* CPU threads to use; 0: all the process may run on */
    void *stream;    /* the CUstream to enqueue on; NULL is the default one. Ignored on the CPU */
    /* Device memory of at least nvfp4_plan.workspace bytes, aligned to 16, that nothing else uses until the call has
     * run. Holds anything before and after. */
    void *workspace;
    size_t workspace_size;
    /* If set, asked instead when a call needs a workspace: allocate(owner, bytes) returns such memory, or NULL to end
     * the call with NVFP4_OUT_OF_MEMORY. */
    void *(*allocate)(void *owner, size_t bytes);
    void *owner;
} nvfp4_call;

/* The functions that go with nvfp4_NAME_args, the arguments of an operation:
 *   nvfp4_NAME_init(&args)   sets the size, which is the first field, and every other field to its default: to zero,
 *                            which stands for an absent tensor, or to what the statements after the name say.
 *   nvfp4_NAME_defaults()    returns such a struct, which is also NVFP4_NAME_ARGS. */
#define NVFP4_DEFAULTS(name, ...)                                                                                      \
    static inline void nvfp4_##name##_init(nvfp4_##name##_args *args) {                                                \
        const size_t size = sizeof *args;                                                                              \
        memset(args, 0, size);                                                                                         \
        memcpy(args, &size, sizeof size);                                                                              \
        __VA_ARGS__                                                                                                    \
    }                                                                                                                  \
    static inline nvfp4_##name##_args nvfp4_##name##_defaults(void) {                                                  \
        nvfp4_##name##_args args;                                                                                      \
        nvfp4_##name##_init(&args);                                                                                    \
        return args;                                                                                                   \
    }

/* The arguments of one product. Fill from NVFP4_GEMM_ARGS so that what you leave out has its default.
 *
 *   a        [M, K/2] or [L, M, K/2], uint8 or e2m1x2; b the same with N rows. K is a multiple of 16. Rows are dense
 *            inside; from row to row they are K/2 bytes apart or a multiple of 16; data is aligned to 8 bytes.
 *            a may instead be fp16 or bf16, [M, K] or [L, M, K], with data and batches on 16 bytes: its values enter
 *            the product unchanged (W4A16), and scale_a is absent.
 *   scale_a  e4m3 or uint8. NVFP4_LINEAR: [M, K/16] or [L, M, K/16]. NVFP4_128X4: any shape, contiguous, of
 *            L * ceil(M/128)*ceil(K/64)*512 bytes. scale_b the same for N.
 *   out      [M, N] or [L, M, N], fp16, bf16 or fp32; row-major. Overlaps none of the others but c.
 *   alpha    absent: alpha_value; else fp32 of 1 element or of N, on the device of a; of batches [L, 1] or [L, N].
 *   bias     absent, or [N], of batches also [L, N], in fp32 or in the dtype of out.
 *   c, beta  absent, or as out (c may be out itself). beta = 0 means that c is not read, as in BLAS.
 *   flags    how the product is computed, and what the caller promises: a sum of nvfp4_flags.
 */
typedef struct nvfp4_gemm_args {
    nvfp4_call call;
    nvfp4_tensor a, b, scale_a, scale_b, out, alpha, bias, c;
    float alpha_value, beta;
    nvfp4_layout scale_layout;
    nvfp4_backend backend;
    uint32_t flags;
    uint32_t reserved; /* 0 */
} nvfp4_gemm_args;
NVFP4_DEFAULTS(gemm, args->alpha_value = 1.0f;)
#define NVFP4_GEMM_ARGS nvfp4_gemm_defaults()

/* Products of groups of rows, each group by a matrix of its own (the experts of a mixture): row i of the result is
 * row_scale[i] * (alpha * (row rows[i] of a) . B[e]^T + bias[e]), where e is the group of i.
 *
 *   a        fp16 or bf16 [R, K], as of nvfp4_gemm_args; scale_a and scale_rows are then absent. Or NVFP4 data
 *            [R, K/2] with scale_a: in the linear layout [R, K/16], of the rows of a; in the 128x4 layout any number of
 *            whole blocks, with scale_rows, and rows is absent.
 *   b        [E * parts, N, K/2] and scale_b, as of nvfp4_gemm_args with L = E * parts. The results of a group's parts
 *            lie side by side: gate and up, each with its own blocks of scales, are two parts. E is at most
 *            NVFP4_MAX_GROUPS.
 *            On the CPU the matrices may instead lie anywhere: b_list and scale_b_list have E pointers each, those of a
 *            group, groups is E, and b [parts, N, K/2] and scale_b describe one group's; their own data is not read.
 *   ends     int32 [E]: group e has rows ends[e-1] .. ends[e] - 1, and group 0 begins with row 0. They are read where
 *            the product runs, never by the host of a GPU. A running maximum of them counts, clamped to 0 .. T. Rows
 *            past the last end are not written.
 *   rows     absent (T = R, row i is row i of a), or int32 [T]. The result of an index outside of a is NaN.
 *   scale_rows int32 [E], of an NVFP4 a with 128x4 scales: row i of group e has its scales in row scale_rows[e] + i of
 *            scale_a, i from 0. A multiple of 128: each group begins on its own block. Of another or a negative number
 *            the group's results are NaN, and those of rows that scale_a does not have. scale_rows is read as ends are.
 *   row_scale absent, or fp32 [T]. Applied last, before rounding. The global scales of a are factors here, by row, or
 *            in alpha, by group.
 *   out      [T, parts * N], fp16, bf16 or fp32.
 *   alpha    absent: alpha_value; else fp32 of 1 element, [E * parts] or [E * parts, N].
 *   bias     absent, or [E * parts, N] in fp32 or the dtype of out.
 *   flags    as of nvfp4_gemm_args. With NVFP4_NO_TRANSPOSE_B a is fp16 or bf16 [R, N], out [T, K], bias [E, K], parts
 *            is 1, and alpha has 1 element or E.
 *
 * The bits of a row depend on E, N, K, parts, types and at most on the size of its group and, where there are several
 * orders to choose from (Hopper; with a 16-bit A the GPUs after it too), on T; with NVFP4_BATCH_INVARIANT on neither. The
 * number of launches does not depend on E. */
#define NVFP4_MAX_GROUPS 1024
typedef struct nvfp4_grouped_gemm_args {
    nvfp4_call call;
    nvfp4_tensor a, b, scale_a, scale_b, ends, rows, scale_rows, row_scale, out, alpha, bias;
    const void *const *b_list, *const *scale_b_list; /* NULL: b and scale_b have all matrices */
    float alpha_value;
    int32_t parts, groups; /* groups: of b_list */
    nvfp4_layout scale_layout;
    nvfp4_backend backend;
    uint32_t flags;
} nvfp4_grouped_gemm_args;
NVFP4_DEFAULTS(grouped_gemm, args->alpha_value = 1.0f; args->parts = 1;)
#define NVFP4_GROUPED_GEMM_ARGS nvfp4_grouped_gemm_defaults()

/* Describes how a product will be run. Strings are static. */
typedef struct nvfp4_plan {
    nvfp4_backend backend;
    const char *name;   /* of the kernel */
    const char *reason; /* why this one */
    int32_t tile_m, tile_n, tile_k, stages;
    int32_t swap_ab;         /* sm90, sm100, sm120: B is the A operand of the mma, the one with 64 rows or more; of
                              * sm90_gemv_*: B is the operand with few rows */
    int32_t split_k;         /* CTAs (sm100: or pairs of CTAs) that share each output tile along K; 1 for sm90_gemv and
                              * sm90_prefill, which split K by rules of their own */
    int64_t grid;            /* CTAs of the GEMM kernel; 0 on the CPU */
    size_t workspace;        /* bytes of device memory the call needs */
    int32_t prefetch_stages; /* sm100: stages of K that each CTA prefetches into L2 before the call may read */
    int32_t ctas_per_sm;     /* sm100: of consecutive calls, that an SM has room for, 1 or 2; 0 elsewhere */
    int32_t candidates;      /* on a GPU: how many plans there are for this product (nvfp4_set_candidate) */
    double modelled_us;      /* on a GPU: modelled time of a back-to-back call, by which plans are ranked */
    double single_us;        /* on a GPU: modelled time of a single call with a cold L2 */
    int32_t is_fused;        /* of quantize_gemm, gated_grouped_gemm: 1: a kernel of the plan quantizes A too, or
                              * computes the activation too; 0: another one does, which the times leave out */
    const char *model;       /* on a GPU: what the constants behind the modelled times come from; NULL on the CPU */
} nvfp4_plan;

/* Forces the plan of this rank for later products of this context: 0, the default, is the one of the least modelled
 * time; the last one where there are fewer. For measuring what the model ranks. */
nvfp4_status nvfp4_set_candidate(nvfp4_context *context, int32_t candidate);

/* Sets the backend (nvfp4_backend) of later calls on host memory that leave it to the library or take none, in place of
 * what NVFP4_BACKEND says. */
nvfp4_status nvfp4_set_default_backend(nvfp4_context *context, nvfp4_backend backend);

/* The operation that a shape is of. */
typedef enum nvfp4_shape_operation {
    NVFP4_SHAPE_PRODUCT = 0,            /* nvfp4_gemm; with groups nvfp4_grouped_gemm of one part */
    NVFP4_SHAPE_QUANTIZE_GEMM = 1,      /* a_dtype, NVFP4_FP32 too, is that of A before it is quantized (NVFP4_AMAX6) */
    NVFP4_SHAPE_GATED_GROUPED_GEMM = 2, /* with groups, of gate and up: n are the columns of the result */
} nvfp4_shape_operation;

/* A product by its sizes, for questions about plans: all operands are dense and their data aligned to 16 bytes. Begin
 * with NVFP4_SHAPE, which sets the size of the struct, NVFP4_HOST, A in the format and L = 1. */
typedef struct nvfp4_shape {
    size_t size;    /* sizeof(nvfp4_shape) */
    int32_t device; /* NVFP4_HOST or a CUDA ordinal */
    nvfp4_backend backend;
    nvfp4_dtype a_dtype; /* NVFP4_NONE: NVFP4 data; NVFP4_FP16 or NVFP4_BF16 */
    uint32_t flags;      /* a sum of nvfp4_flags */
    int64_t m, n, k, l;
    int64_t groups; /* of products of groups, whose rows are m and L is 1; 0: a product. Absent, as what follows, from
                     * the struct of an older program */
    nvfp4_shape_operation operation;
    uint32_t reserved; /* 0 */
} nvfp4_shape;
static inline nvfp4_shape nvfp4_default_shape(void) {
    const nvfp4_shape shape = {sizeof(nvfp4_shape), NVFP4_HOST, NVFP4_AUTO, NVFP4_NONE, 0, 0, 0, 0, 1, 0,
                               NVFP4_SHAPE_PRODUCT, 0};
    return shape;
}
#define NVFP4_SHAPE (nvfp4_default_shape())

/* Puts one plan first for products of this shape, operation and type of A on this device: the one with the name,
 * swap_ab, split_k, prefetch_stages and ctas_per_sm of `plan` (no other field counts). For plans that were measured to
 * be faster than the model's choice (`python -m nvfp4 bench --tune`). It holds for all output types and epilogues;
 * products whose operands lie so that they have no such plan are not affected. Another split_k adds in another order,
 * so results that round may differ in their last bits. shape->backend is NVFP4_AUTO or the plan's, shape->flags are 0
 * or NVFP4_NO_TRANSPOSE_B, groups and operation 0. NVFP4_INVALID where such a product has no such plan. */
nvfp4_status nvfp4_override_plan(nvfp4_context *context, const nvfp4_shape *shape, const nvfp4_plan *plan);
/* Removes every override. */
void nvfp4_clear_overrides(nvfp4_context *context);

/* Checks the arguments (the workspace excepted) and says how the product would be run. Launches nothing. */
nvfp4_status nvfp4_gemm_plan(nvfp4_context *context, const nvfp4_gemm_args *args, nvfp4_plan *plan);

/* Runs the product. On a GPU it is enqueued on args->call.stream: no allocation, no synchronisation. */
nvfp4_status nvfp4_gemm(nvfp4_context *context, const nvfp4_gemm_args *args);

/* The same for products of groups. */
nvfp4_status nvfp4_grouped_gemm_plan(nvfp4_context *context, const nvfp4_grouped_gemm_args *args, nvfp4_plan *plan);
nvfp4_status nvfp4_grouped_gemm(nvfp4_context *context, const nvfp4_grouped_gemm_args *args);

/* How a product of this shape would be run. */
nvfp4_status nvfp4_plan_shape(nvfp4_context *context, const nvfp4_shape *shape, nvfp4_plan *plan);

/* x [R, K] or [L, R, K] (fp16, bf16, fp32) to data [.., R, K/2] and scales.
 *   scale = e4m3(amax/6 / g), value = e2m1(x / (scale * g)), both to nearest, ties to even, saturating at 448 and 6;
 *   a block of zeros has scale 0 and values 0; a block with a NaN has scale NaN; g is global_scale. Infinities
 *   saturate. dequantize multiplies by g.
 *   NVFP4_FOUR_OVER_SIX: also with the scale e4m3(amax/4 / g), and whichever has the smaller sum of squared errors
 *   (csrc/cpu/quantize.h defines its roundings); the first where they are equal or not finite.
 *   NVFP4_SEARCH: with each of the 13 scales whose codes are c - 5 .. c + 7, c = e4m3(amax/6 / g), within 1 .. 126; the
 *   first of those with the smallest sum of squared errors. It takes some 10 times as long.
 * Padding of the 128x4 layout is written as zeros. */
typedef struct nvfp4_quantize_args {
    nvfp4_call call;
    nvfp4_tensor x, data, scale;
    nvfp4_tensor global_scale; /* absent: global_value; else fp32 of 1 element, or of one a row, contiguous */
    float global_value;
    nvfp4_layout scale_layout;
    nvfp4_block_scale block_scale; /* dequantize does not depend on it */
    uint32_t reserved;             /* 0 */
} nvfp4_quantize_args;
NVFP4_DEFAULTS(quantize, args->global_value = 1.0f;)
#define NVFP4_QUANTIZE_ARGS nvfp4_quantize_defaults()

nvfp4_status nvfp4_quantize(nvfp4_context *context, const nvfp4_quantize_args *args);
/* The same struct, with x as the output: x = value * scale * g, in fp32, rounded once to x's dtype. */
nvfp4_status nvfp4_dequantize(nvfp4_context *context, const nvfp4_quantize_args *args);

/* quantize with NVFP4_SEARCH, the only block_scale that is allowed, where the squared error of value i of each row
 * counts importance[i] times. importance is fp32 [K], contiguous, on the device of x: finite numbers that are not
 * negative. (Numbers in device memory are not read by the host: with others a block gets any of the 13 scales.) Where
 * all 16 of a block are 0, each counts as 1. For a weight [N, K], the mean of x_i^2 over inputs x makes the sum the
 * expected squared error of the layer's output, but for the correlations of inputs. */
typedef struct nvfp4_weighted_quantize_args {
    nvfp4_quantize_args quantize;
    nvfp4_tensor importance;
} nvfp4_weighted_quantize_args;
NVFP4_DEFAULTS(weighted_quantize, args->quantize.global_value = 1.0f; args->quantize.block_scale = NVFP4_SEARCH;)
#define NVFP4_WEIGHTED_QUANTIZE_ARGS nvfp4_weighted_quantize_defaults()
nvfp4_status nvfp4_weighted_quantize(nvfp4_context *context, const nvfp4_weighted_quantize_args *args);

/* One step of GPTQ (Frantar et al. 2022, https://arxiv.org/abs/2210.17323): one block of 16 columns of a weight, whose
 * scale is searched. x is fp32 [N, 16], the block's columns in the order in which they are rounded; u is fp32 [16, 16],
 * the block's part of the upper Cholesky factor of the inverse Hessian. Rows of both lie any distance apart. For each
 * row t of x and each scale s of NVFP4_SEARCH, with d = s * g:
 *
 *   for j = 0 .. 15:  v_j = e2m1(t_j / d)      e_j = (t_j - v_j d) / u_jj      t_k -= e_j u_jk for k > j
 *
 * The first scale with the smallest sum of e_j^2 is taken. data [N, 8] gets its codes (those of column j as value j of
 * the row), scale [N, 1] (linear) its code, error fp32 [N, 16] its e. csrc/cpu/gptq.h defines the roundings, which are
 * the same on each backend. Columns that follow are to be changed by -error . u' (u': the block's rows of the factor).
 * A row of zeros has scale 0; a row with a NaN has scale NaN, codes 0 and errors NaN. Only the upper triangle of u is
 * read; its diagonal must be positive. global_scale: absent: global_value; else fp32 of 1 element or [N], contiguous.
 */
typedef struct nvfp4_gptq_block_args {
    nvfp4_call call;
    nvfp4_tensor x, u, data, scale, error;
    nvfp4_tensor global_scale;
    float global_value;
    uint32_t reserved; /* 0 */
} nvfp4_gptq_block_args;
NVFP4_DEFAULTS(gptq_block, args->global_value = 1.0f;)
#define NVFP4_GPTQ_BLOCK_ARGS nvfp4_gptq_block_defaults()
nvfp4_status nvfp4_gptq_block(nvfp4_context *context, const nvfp4_gptq_block_args *args);

/* quantize of a, and gemm of its data and scales, with the bits of these two calls.
 *
 *   gemm         as of nvfp4_gemm, except: a is [M, K] or [L, M, K] in fp16, bf16 or fp32, as x of nvfp4_quantize, and
 *                scale_a is absent. scale_layout is that of scale_b. flags are without NVFP4_NO_TRANSPOSE_B. alpha is
 *                gemm's factor: the global scale of a does not enter the result by itself.
 *   global_scale absent: global_value; else fp32 of 1 element. As of nvfp4_quantize, as is block_scale.
 *
 * On a GPU data and scales of a lie in the workspace, unless the plan says is_fused. Its size is that of
 * nvfp4_quantize_gemm_plan. is_fused depends on the alignment of a: ask with the tensors of the call. */
typedef struct nvfp4_quantize_gemm_args {
    nvfp4_gemm_args gemm;
    nvfp4_tensor global_scale;
    float global_value;
    nvfp4_block_scale block_scale;
} nvfp4_quantize_gemm_args;
NVFP4_DEFAULTS(quantize_gemm, args->gemm.alpha_value = args->global_value = 1.0f;)
#define NVFP4_QUANTIZE_GEMM_ARGS nvfp4_quantize_gemm_defaults()
nvfp4_status nvfp4_quantize_gemm(nvfp4_context *context, const nvfp4_quantize_gemm_args *args);
/* Says how it would be run, as nvfp4_gemm_plan. */
nvfp4_status nvfp4_quantize_gemm_plan(nvfp4_context *context, const nvfp4_quantize_gemm_args *args, nvfp4_plan *plan);

/* quantize of rows in the order of their groups, as nvfp4_grouped_gemm takes them. One launch on a GPU, whose host
 * reads none of the numbers.
 *
 *   x            [R, K]; data is [T, K/2].
 *   ends         absent: one group has all rows. Else int32 [E], 1 <= E <= NVFP4_MAX_GROUPS, as of nvfp4_grouped_gemm.
 *   rows         absent (T = R, row i is row i of x), or int32 [T]. An index outside of x gives a row of scales NaN and
 *                codes 0.
 *   scale        NVFP4_LINEAR: [T, K/16]. NVFP4_128X4: each group begins with a 128-row block of its own. There are
 *                m + floor((T - m) / 128) blocks, m = min(E, T): the most that any ends lead to.
 *   scale_rows   int32 [E], without ends [1], is written: row i of group e has its scales in row
 *                scale_rows[e] + i - b of scale, b being the group's first row. Multiples of 128 in the 128x4 layout.
 *   global_scale as of nvfp4_quantize, and one a row is one a row of x. With ends: 1 element, [E] or [R, 1].
 *
 * Rows past the last end, their scales and blocks of no group are not written. Padding of a group's blocks is zeros. */
typedef struct nvfp4_grouped_quantize_args {
    nvfp4_quantize_args quantize;
    nvfp4_tensor ends, rows, scale_rows;
    uint64_t reserved; /* 0 */
} nvfp4_grouped_quantize_args;
NVFP4_DEFAULTS(grouped_quantize, args->quantize.global_value = 1.0f;)
#define NVFP4_GROUPED_QUANTIZE_ARGS nvfp4_grouped_quantize_defaults()
nvfp4_status nvfp4_grouped_quantize(nvfp4_context *context, const nvfp4_grouped_quantize_args *args);

/* quantize of y, in one pass: x [R, K] or [L, R, K] to y = x / sqrt(mean(x^2) + eps) * weight, in fp32.
 * csrc/cpu/fused.c defines the order of additions and every rounding, the same on each backend.
 * weight is [K], in fp32 or the dtype of x. residual: absent, or as x: x + residual, rounded to their dtype, then
 * stands for x and replaces the residual. quantize.block_scale must be NVFP4_AMAX6. round_steps: 1 rounds
 * x / sqrt(mean(x^2) + eps), and then its product with weight, to the dtype of x. */
typedef struct nvfp4_rms_norm_quantize_args {
    nvfp4_quantize_args quantize;
    nvfp4_tensor weight, residual;
    float eps;
    uint32_t round_steps; /* 0 or 1 */
} nvfp4_rms_norm_quantize_args;
NVFP4_DEFAULTS(rms_norm_quantize, args->quantize.global_value = 1.0f; args->eps = 1e-6f;)
#define NVFP4_RMS_NORM_QUANTIZE_ARGS nvfp4_rms_norm_quantize_defaults()
nvfp4_status nvfp4_rms_norm_quantize(nvfp4_context *context, const nvfp4_rms_norm_quantize_args *args);

/* quantize of silu(gate) * up in fp32, in one pass: a row of args->x, [R, 2K] or [L, R, 2K], is K gates and K factors
 * `up`. silu is csrc/common/exponential.h's. block_scale must be NVFP4_AMAX6. */
nvfp4_status nvfp4_silu_mul_quantize(nvfp4_context *context, const nvfp4_quantize_args *args);

/* The global scale that gives x [R, K] or [L, R, K] (fp16, bf16, fp32; any K) the whole range of the block scales:
 *   scale = amax(|x|) / (448 * 6), with NVFP4_FOUR_OVER_SIX amax(|x|) / (256 * 6), in fp64, rounded once to fp32;
 *   1 where that is 0, NaN or infinite: x has a NaN, an infinity, or nothing but zeros.
 * scale is fp32 of 1 element, on the device of x. One launch on a GPU. For x of more than 16 KiB it needs a workspace
 * of NVFP4_AMAX_WORKSPACE bytes. by_row: scale is [R], one for each row of x [R, K], without a workspace. */
#define NVFP4_AMAX_WORKSPACE 8192
typedef struct nvfp4_amax_scale_args {
    nvfp4_call call;
    nvfp4_tensor x, scale;
    nvfp4_block_scale block_scale;
    uint32_t by_row; /* 0 or 1 */
} nvfp4_amax_scale_args;
NVFP4_DEFAULTS(amax_scale, /* zeros */)
#define NVFP4_AMAX_SCALE_ARGS nvfp4_amax_scale_defaults()
nvfp4_status nvfp4_amax_scale(nvfp4_context *context, const nvfp4_amax_scale_args *args);

/* linear [R, S] or [L, R, S] (row stride free) <-> swizzled, contiguous, L*ceil(R/128)*ceil(S/4)*512 bytes. dtype
 * e4m3 or uint8. Padding is written as zeros by swizzle and not read by unswizzle. */
typedef struct nvfp4_swizzle_args {
    nvfp4_call call;
    nvfp4_tensor linear, swizzled;
} nvfp4_swizzle_args;
NVFP4_DEFAULTS(swizzle, /* zeros */)
#define NVFP4_SWIZZLE_ARGS nvfp4_swizzle_defaults()
nvfp4_status nvfp4_swizzle(nvfp4_context *context, const nvfp4_swizzle_args *args);
nvfp4_status nvfp4_unswizzle(nvfp4_context *context, const nvfp4_swizzle_args *args);

/* A gated activation, element by element in fp32, rounded once to out. csrc/common/gating.h defines its
 * operations, the same on each backend. A NaN gives NaN.
 *   NVFP4_SILU       silu(gate) * up. With a limit, min(gate, limit) and clamp(up, -limit, limit) stand for them.
 *   NVFP4_GELU_TANH  gelu(gate) * up, gelu by tanh.
 *   NVFP4_RELU2      relu(gate)^2; up is absent.
 *   NVFP4_SWIGLU     gate * sigmoid(alpha * gate) * (up + 1), limited as SILU's.
 * gate is [R, N] or [L, R, N], fp16, bf16 or fp32; up and out have its shape, up its dtype, out any of the three. Rows
 * are dense inside and any distance apart, so that gate and up may be halves of one [R, 2N]. */
typedef struct nvfp4_gated_args {
    nvfp4_call call;
    nvfp4_tensor gate, up, out; /* up: absent for relu2; for silu and gelu_tanh that means 1 */
    nvfp4_activation activation;
    float limit;       /* of silu and swiglu, positive; INFINITY: none */
    float alpha;       /* of swiglu, from 2^-64 to 2^64; 1.702 for others */
    uint32_t reserved; /* 0 */
} nvfp4_gated_args;
NVFP4_DEFAULTS(gated, args->limit = INFINITY; args->alpha = 1.702f;)
#define NVFP4_GATED_ARGS nvfp4_gated_defaults()
nvfp4_status nvfp4_gated(nvfp4_context *context, const nvfp4_gated_args *args);

/* quantize of a gated activation in fp32, in one pass: the same bytes as quantize's of nvfp4_gated's result in fp32.
 * quantize.x is the gate, [R, N] or [L, R, N] with rows any distance apart; N is a multiple of 16. up, activation,
 * limit and alpha are nvfp4_gated's. quantize.block_scale must be NVFP4_AMAX6. ends and scale_rows are those of
 * nvfp4_grouped_quantize; with ends the gate has two dimensions. round_steps: 1 rounds the activation, and then its
 * product with up, to the dtype of the gate; not with NVFP4_SWIGLU. */
typedef struct nvfp4_gated_quantize_args {
    nvfp4_quantize_args quantize;
    nvfp4_tensor up, ends, scale_rows;
    nvfp4_activation activation;
    float limit, alpha;
    uint32_t round_steps; /* 0 or 1 */
} nvfp4_gated_quantize_args;
NVFP4_DEFAULTS(gated_quantize, args->quantize.global_value = 1.0f; args->limit = INFINITY; args->alpha = 1.702f;)
#define NVFP4_GATED_QUANTIZE_ARGS nvfp4_gated_quantize_defaults()
nvfp4_status nvfp4_gated_quantize(nvfp4_context *context, const nvfp4_gated_quantize_args *args);

/* grouped_gemm, its results rounded to the dtype of out, and gated of these, with the bits of the two calls: gate is
 * part 0 of a group and up is part 1.
 *
 *   grouped      as of nvfp4_grouped_gemm, except: out is [T, N], parts is 1 or 2, and flags are without
 *                NVFP4_NO_TRANSPOSE_B. Rows of out past the last end hold anything afterwards.
 *   activation   as of nvfp4_gated, as are limit and activation_alpha, gated's alpha. relu2 takes one part, swiglu two;
 *                of one part silu and gelu_tanh are without up.
 *
 * On a GPU it is one launch where the plan says is_fused. Else the product's results lie in the workspace, whose size
 * is that of nvfp4_gated_grouped_gemm_plan. */
typedef struct nvfp4_gated_grouped_gemm_args {
    nvfp4_grouped_gemm_args grouped;
    nvfp4_activation activation;
    float limit, activation_alpha;
    uint32_t reserved; /* 0 */
} nvfp4_gated_grouped_gemm_args;
NVFP4_DEFAULTS(gated_grouped_gemm, args->grouped.alpha_value = 1.0f; args->grouped.parts = 1; args->limit = INFINITY;
               args->activation_alpha = 1.702f;)
#define NVFP4_GATED_GROUPED_GEMM_ARGS nvfp4_gated_grouped_gemm_defaults()
nvfp4_status nvfp4_gated_grouped_gemm(nvfp4_context *context, const nvfp4_gated_grouped_gemm_args *args);
/* Says how it would be run, as nvfp4_gemm_plan. */
nvfp4_status nvfp4_gated_grouped_gemm_plan(nvfp4_context *context, const nvfp4_gated_grouped_gemm_args *args,
                                           nvfp4_plan *plan);

/* grouped_gemm, its results rounded to fp16 or bf16, and gated_quantize of these, with the bytes of the two calls: the
 * input of an expert's second product. gate is part 0 of a group and up is part 1.
 *
 *   gated           as of nvfp4_gated_grouped_gemm, except: out, b_list and scale_b_list are absent, N is a multiple of
 *                   16, E is at least 1, and flags may have NVFP4_BF16_PRODUCTS. scale_layout is that of the results
 *                   too.
 *   data, scale     of [T, N], as of nvfp4_grouped_quantize with ends.
 *   new_scale_rows  as scale_rows of nvfp4_grouped_quantize; gated.grouped.scale_rows is that of a.
 *   global_scale    as of nvfp4_gated_quantize with ends, as is global_value.
 *
 * Rows past the last end, their scales and blocks of no group are not written. On a GPU it is one launch where the plan
 * says is_fused. Else the products lie in the workspace, whose size is that of nvfp4_gated_grouped_quantize_plan. */
typedef struct nvfp4_gated_grouped_quantize_args {
    nvfp4_gated_grouped_gemm_args gated;
    nvfp4_tensor global_scale, data, scale, new_scale_rows;
    float global_value;
    uint32_t reserved; /* 0 */
} nvfp4_gated_grouped_quantize_args;
NVFP4_DEFAULTS(gated_grouped_quantize, args->gated.grouped.alpha_value = args->global_value = 1.0f;
               args->gated.grouped.parts = 1; args->gated.limit = INFINITY; args->gated.activation_alpha = 1.702f;)
#define NVFP4_GATED_GROUPED_QUANTIZE_ARGS nvfp4_gated_grouped_quantize_defaults()
nvfp4_status nvfp4_gated_grouped_quantize(nvfp4_context *context, const nvfp4_gated_grouped_quantize_args *args);
/* Says how it would be run, as nvfp4_gemm_plan. */
nvfp4_status nvfp4_gated_grouped_quantize_plan(nvfp4_context *context, const nvfp4_gated_grouped_quantize_args *args,
                                               nvfp4_plan *plan);

/* Sorts the choices of a router by expert: S tokens, k experts each, E experts here. One launch on a GPU.
 *   ids         [S, k], int32 or int64. Expert ids[t, j] is token t's j-th. Rows are dense inside.
 *   expert_map  absent, or int32 [G]: the expert here of each id, or a number outside 0 .. E-1 where it is elsewhere.
 *   ends        int32 [E], 1 <= E <= 1024: the choices of expert e are places ends[e-1] .. ends[e]-1 (from 0 for e = 0)
 *               of the sorted order, in the order of t * k + j.
 *   rows        int32 [S*k]: the token of each place; 0 from ends[E-1] on.
 *   places      int32 [S, k]: the place of each choice; -1 for one of no expert here, which has no place: a negative
 *               id, one of E (G) or more, or one that expert_map sends elsewhere.
 * rows, ends and places are contiguous. */
#define NVFP4_MOE_MAX_EXPERTS  1024
#define NVFP4_MOE_MOST_EXPERTS NVFP4_MOE_MAX_EXPERTS /* its former name */
typedef struct nvfp4_moe_route_args {
    nvfp4_call call;
    nvfp4_tensor ids, expert_map, rows, ends, places;
    uint64_t reserved; /* 0 */
} nvfp4_moe_route_args;
NVFP4_DEFAULTS(moe_route, /* zeros */)
#define NVFP4_MOE_ROUTE_ARGS nvfp4_moe_route_defaults()
nvfp4_status nvfp4_moe_route(nvfp4_context *context, const nvfp4_moe_route_args *args);

/* Adds the rows of each token's experts: out[t] is the sum of weights[t, j] * y[places[t, j]], in fp32 by fma from +0,
 * over j = 0 .. k-1 in that order, rounded once.
 *   y        [R, N], fp16, bf16 or fp32.
 *   places   int32 [S, k]. A negative place adds nothing. One of R or more adds NaN: nothing outside y is read.
 *   weights  absent (1), or [S, k] in fp32, fp16 or bf16.
 *   out      [S, N], fp16, bf16 or fp32.
 * Rows of all four are dense inside and any distance apart. */
typedef struct nvfp4_moe_combine_args {
    nvfp4_call call;
    nvfp4_tensor y, places, weights, out;
    uint64_t reserved; /* 0 */
} nvfp4_moe_combine_args;
NVFP4_DEFAULTS(moe_combine, /* zeros */)
#define NVFP4_MOE_COMBINE_ARGS nvfp4_moe_combine_defaults()
nvfp4_status nvfp4_moe_combine(nvfp4_context *context, const nvfp4_moe_combine_args *args);

typedef struct nvfp4_device {
    char name[256];
    int32_t compute_capability; /* 10*major + minor: 90 is H100, H200 */
    int32_t sm_count;
    int32_t shared_per_block; /* bytes, opt-in limit */
    int32_t shared_per_sm;
    int32_t clock_mhz;   /* highest SM clock; 0: unknown */
    int32_t memory_gb_s; /* peak of the memory's bus; 0: unknown */
    int64_t l2_bytes;
    int64_t memory_bytes;
    int32_t reads_host_memory;   /* 1: kernels can read ordinary host memory, so that CPU tensors will do */
    int32_t usable;              /* 1: this build has code for it */
    const char *unusable_reason; /* why not, or "" */
} nvfp4_device;

/* The driver. count is 0 and the status NVFP4_DRIVER where there is none; version is 1000*major + 10*minor. */
nvfp4_status nvfp4_driver_info(nvfp4_context *context, int32_t *count, int32_t *version);
nvfp4_status nvfp4_device_info(nvfp4_context *context, int32_t device, nvfp4_device *info);
/* Loads the code for a device now rather than at the first call. */
nvfp4_status nvfp4_init_device(nvfp4_context *context, int32_t device);
/* Name of the CPU kernel in use ("avx512vnni", "avx2", "portable", "reference"), and which the CPU could run. */
const char *nvfp4_cpu_kernel(void);
/* GPU architectures whose code is embedded, as "sm_80 sm_89 ..."; "" for a build without CUDA. */
const char *nvfp4_embedded_archs(void);
/* The oldest driver that runs this code, 1000*major + 10*minor as nvfp4_driver_info has it: 12000 is release 525. A GPU
 * that came later needs the driver that came with it. */
int32_t nvfp4_driver_needed(void);

const char *nvfp4_dtype_name(nvfp4_dtype dtype);       /* "float8_e4m3fn", ... */
const char *nvfp4_backend_name(nvfp4_backend backend); /* "cpu", "sm80", "sm90", "sm100", "sm120" */

#ifdef NVFP4_LIBRARY
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
