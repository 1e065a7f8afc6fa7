/* torch.ops.nvfp4.*: boxed kernels over torch's stable C shim.
 *
 * Schemas have no optional tensors, which C could not free: a uint8 tensor of shape [0] stands for an absent one. torch
 * allocates results and workspace; nothing waits for the device. An error is thrown by libtorch through this file's
 * frames, which therefore is compiled with -fexceptions and holds nothing when it happens. */
#include "bindings/torch/ops.h"

#include <dlfcn.h>
#include <math.h>
#include <string.h>

#include "api/gemm.h"
#include "bindings/frontend.h"
#include "bindings/torch/shim.h"
#include "common/error.h"

static struct {
#define X(result, name, arguments) result(*name) arguments;
    TORCH_SHIM(X)
    TORCH_SHIM_OPTIONAL(X)
#undef X
} shim;

static nvfp4_context *op_context;
static int32_t dtype_codes[NVFP4_FP32 + 1]; /* nvfp4_dtype to torch's; -1: torch has none */

/* ---- arguments ---- */

static nvfp4_status read_dtype(int32_t code, const char *name, int32_t *dtype) {
    for (*dtype = NVFP4_UINT8; *dtype <= NVFP4_FP32; ++*dtype)
        if (dtype_codes[*dtype] == code) return NVFP4_OK;
    return fail(NVFP4_INVALID,
                "%s: dtype is none of uint8, float4_e2m1fn_x2, float8_e4m3fn, float16, bfloat16 and float32", name);
}

static nvfp4_status read_tensor(torch_value value, const char *name, nvfp4_tensor *t) {
    torch_tensor tensor = (torch_tensor)(uintptr_t)value;
    int64_t ndim, *sizes, *strides;
    int32_t code, type;
    if (shim.aoti_torch_get_dim(tensor, &ndim) || shim.aoti_torch_get_sizes(tensor, &sizes) ||
        shim.aoti_torch_get_strides(tensor, &strides) || shim.aoti_torch_get_dtype(tensor, &code) ||
        shim.aoti_torch_get_device_type(tensor, &type) || shim.aoti_torch_get_device_index(tensor, &t->device) ||
        shim.aoti_torch_get_data_ptr(tensor, &t->data))
        return fail(NVFP4_INVALID, "%s: torch gives no access to its memory", name);
    if (ndim > NVFP4_MAX_DIMS)
        return fail(NVFP4_INVALID, "%s: has %d dimensions; must have at most %d", name, (int)ndim, NVFP4_MAX_DIMS);
    if (type != shim.aoti_torch_device_type_cuda()) t->device = NVFP4_HOST;
    t->ndim = (int32_t)ndim;
    memcpy(t->shape, sizes, (size_t)ndim * sizeof *sizes);
    memcpy(t->stride, strides, (size_t)ndim * sizeof *strides);
    return read_dtype(code, name, &t->dtype);
}

/* As read_tensor; a uint8 tensor of shape [0] is an absent one. */
static nvfp4_status read_optional(torch_value value, const char *name, nvfp4_tensor *t) {
    nvfp4_status status = read_tensor(value, name, t);
    if (!status && t->dtype == NVFP4_UINT8 && t->ndim == 1 && t->shape[0] == 0) t->dtype = NVFP4_NONE;
    return status;
}

static nvfp4_status read_float(torch_value value, const char *name, float *number) {
    double wide;
    memcpy(&wide, &value, sizeof wide);
    *number = (float)wide;
    if (isinf(*number) && !isinf(wide)) return fail(NVFP4_INVALID, "%s: is beyond the largest float32, 3.4e38", name);
    return NVFP4_OK;
}

static nvfp4_status read_name(torch_value value, const char *argument, nvfp4_status (*parse)(const char *, int32_t *),
                              int32_t *number) {
    const torch_string string = (torch_string)(uintptr_t)value;
    const char *name;
    size_t length;
    if (shim.torch_string_c_str(string, &name) || shim.torch_string_length(string, &length))
        return fail(NVFP4_INVALID, "%s: could not be read", argument);
    if (strlen(name) != length) return fail(NVFP4_INVALID, "%s: contains a null character; must be a name", argument);
    return parse(name, number);
}

static nvfp4_status read_flags(torch_value value, uint32_t *flags) {
    const int64_t wide = (int64_t)value;
    *flags = (uint32_t)wide;
    if (wide < 0 || wide > UINT32_MAX)
        return fail(NVFP4_INVALID, "flags: is %lld; must be between 0 and %u", (long long)wide, UINT32_MAX);
    return NVFP4_OK;
}

/* ---- results ---- */

/* Allocates what a tensor describes, beside `like`. */
static nvfp4_status new_tensor(torch_value like, nvfp4_tensor *t, torch_value *result) {
    torch_tensor source = (torch_tensor)(uintptr_t)like, tensor;
    int32_t type, index;
    if (shim.aoti_torch_get_device_type(source, &type) || shim.aoti_torch_get_device_index(source, &index) ||
        shim.aoti_torch_empty_strided(t->ndim, t->shape, t->stride, dtype_codes[t->dtype], type, index, &tensor))
        return fail(NVFP4_OUT_OF_MEMORY, "torch could not allocate a result of dtype %s", nvfp4_dtype_name(t->dtype));
    *result = (torch_value)(uintptr_t)tensor;
    return read_tensor(*result, "result", t);
}

static void delete_tensor(torch_value value) {
    if (value) shim.aoti_torch_delete_tensor_object((torch_tensor)(uintptr_t)value);
}

/* Ends a kernel: frees its arguments, of which kinds says 't' for a tensor and 's' for a string, and gives torch the
 * results, or throws the pending error message. */
static void finish(nvfp4_status status, torch_value *stack, const char *kinds, torch_value *results, int count) {
    for (int i = 0; kinds[i]; i++) {
        if (kinds[i] == 't') delete_tensor(stack[i]);
        if (kinds[i] == 's') shim.torch_delete_string((torch_string)(uintptr_t)stack[i]);
    }
    for (int i = 0; i < count; i++) {
        if (status) delete_tensor(results[i]);
        stack[i] = results[i];
    }
    if (status) shim.aoti_torch_check(false, "nvfp4", __FILE__, __LINE__, nvfp4_last_error());
}

static int32_t thread_count(void) {
    uint32_t count = 0;
    return shim.torch_get_num_threads(&count) ? 0 : (int32_t)count;
}

static nvfp4_status current_stream(int32_t device, void **stream) {
    *stream = NULL;
    if (device == NVFP4_HOST) return NVFP4_OK;
    if (!shim.aoti_torch_get_current_cuda_stream || shim.aoti_torch_get_current_cuda_stream(device, stream))
        return fail(NVFP4_UNSUPPORTED, "torch: this build has no CUDA, but a tensor is on cuda:%d", device);
    return NVFP4_OK;
}

/* ---- gemm ---- */

static nvfp4_status read_gemm(const torch_value *stack, nvfp4_gemm_args *args) {
    nvfp4_status status = read_tensor(stack[0], "a", &args->a);
    if (!status) status = read_tensor(stack[1], "b", &args->b);
    if (!status) status = read_optional(stack[2], "scale_a", &args->scale_a);
    if (!status) status = read_tensor(stack[3], "scale_b", &args->scale_b);
    if (!status) status = read_optional(stack[4], "alpha", &args->alpha);
    if (!status) status = read_optional(stack[5], "bias", &args->bias);
    if (!status) status = read_optional(stack[6], "c", &args->c);
    if (!status) status = read_float(stack[7], "alpha", &args->alpha_value);
    if (!status) status = read_float(stack[8], "beta", &args->beta);
    if (!status) status = read_name(stack[9], "scale_layout", layout_from_name, &args->scale_layout);
    if (!status) status = read_name(stack[10], "backend", backend_from_name, &args->backend);
    if (!status) status = read_flags(stack[11], &args->flags);
    return status;
}

typedef struct workspace {
    torch_value like, tensor;
} workspace;

static void *allocate(void *owner, size_t bytes) {
    workspace *w = owner;
    nvfp4_tensor memory = {.dtype = NVFP4_UINT8, .ndim = 1, .shape = {(int64_t)bytes}, .stride = {1}};
    return new_tensor(w->like, &memory, &w->tensor) == NVFP4_OK ? memory.data : NULL;
}

static nvfp4_status run_gemm(torch_value a, nvfp4_gemm_args *args, gemm_call *call) {
    workspace w = {.like = a};
    args->threads = thread_count();
    args->allocate = allocate;
    args->owner = &w;
    nvfp4_status status = current_stream(args->a.device, &args->stream);
    if (!status) status = gemm_run(op_context, args, call);
    delete_tensor(w.tensor);
    return status;
}

static void gemm_out(torch_value *stack, uint64_t inputs, uint64_t outputs) {
    (void)inputs;
    (void)outputs;
    nvfp4_gemm_args args = NVFP4_GEMM_ARGS;
    gemm_call call;
    nvfp4_status status = read_gemm(stack, &args);
    if (!status) status = read_tensor(stack[12], "out", &args.out);
    if (!status) status = gemm_prepare(op_context, &args, &call);
    if (!status) status = run_gemm(stack[0], &args, &call);
    finish(status, stack, "tttttttffssit", NULL, 0);
}

static void gemm(torch_value *stack, uint64_t inputs, uint64_t outputs) {
    (void)inputs;
    (void)outputs;
    nvfp4_gemm_args args = NVFP4_GEMM_ARGS;
    gemm_call call;
    torch_value result = 0;
    int32_t dtype;
    nvfp4_status status = read_gemm(stack, &args);
    if (!status) status = read_dtype((int32_t)stack[12], "out_dtype", &dtype);
    if (!status) status = gemm_result(&args, dtype, &args.out);
    if (!status) status = gemm_prepare(op_context, &args, &call);
    if (!status) status = new_tensor(stack[0], &args.out, &result);
    if (!status) status = run_gemm(stack[0], &args, &call);
    finish(status, stack, "tttttttffssii", &result, 1);
}

/* custom_kernel(a, b, sfa_permuted, sfb_permuted, c) */
static void custom_kernel(torch_value *stack, uint64_t inputs, uint64_t outputs) {
    (void)inputs;
    (void)outputs;
    nvfp4_gemm_args args = NVFP4_GEMM_ARGS;
    gemm_call call;
    nvfp4_status status = read_tensor(stack[0], "a", &args.a);
    if (!status) status = read_tensor(stack[1], "b", &args.b);
    if (!status) status = read_tensor(stack[2], "sfa_permuted", &args.scale_a);
    if (!status) status = read_tensor(stack[3], "sfb_permuted", &args.scale_b);
    if (!status) status = read_tensor(stack[4], "c", &args.out);
    if (!status) status = gemm_of_views(&args);
    if (!status) status = gemm_prepare(op_context, &args, &call);
    if (!status) status = run_gemm(stack[0], &args, &call);
    if (status) rename_views();
    finish(status, stack, "ttttt", NULL, 0);
}

/* ---- conversions ---- */

/* quantize(x, global_scale, global_value, scale_layout, block_scale) */
static void quantize(torch_value *stack, uint64_t inputs, uint64_t outputs) {
    (void)inputs;
    (void)outputs;
    nvfp4_quantize_args args = NVFP4_QUANTIZE_ARGS;
    torch_value results[2] = {0, 0};
    nvfp4_status status = read_tensor(stack[0], "x", &args.x);
    if (!status) status = read_optional(stack[1], "global_scale", &args.global_scale);
    if (!status) status = read_float(stack[2], "global_scale", &args.global_value);
    if (!status) status = read_name(stack[3], "scale_layout", layout_from_name, &args.scale_layout);
    if (!status) status = read_name(stack[4], "block_scale", block_scale_from_name, &args.block_scale);
    if (!status) status = quantize_results(&args.x, args.scale_layout, &args.data, &args.scale);
    if (!status) status = new_tensor(stack[0], &args.data, &results[0]);
    if (!status) status = new_tensor(stack[0], &args.scale, &results[1]);
    args.threads = thread_count();
    if (!status) status = current_stream(args.x.device, &args.stream);
    if (!status) status = nvfp4_quantize(op_context, &args);
    finish(status, stack, "ttfss", results, 2);
}

/* dequantize(data, scale, global_scale, global_value, scale_layout, out_dtype) */
static void dequantize(torch_value *stack, uint64_t inputs, uint64_t outputs) {
    (void)inputs;
    (void)outputs;
    nvfp4_quantize_args args = NVFP4_QUANTIZE_ARGS;
    torch_value result = 0;
    int32_t dtype;
    nvfp4_status status = read_tensor(stack[0], "data", &args.data);
    if (!status) status = read_tensor(stack[1], "scale", &args.scale);
    if (!status) status = read_optional(stack[2], "global_scale", &args.global_scale);
    if (!status) status = read_float(stack[3], "global_scale", &args.global_value);
    if (!status) status = read_name(stack[4], "scale_layout", layout_from_name, &args.scale_layout);
    if (!status) status = read_dtype((int32_t)stack[5], "out_dtype", &dtype);
    if (!status) status = dequantize_result(&args.data, dtype, &args.x);
    if (!status) status = new_tensor(stack[0], &args.x, &result);
    args.threads = thread_count();
    if (!status) status = current_stream(args.x.device, &args.stream);
    if (!status) status = nvfp4_dequantize(op_context, &args);
    finish(status, stack, "tttfsi", &result, 1);
}

/* The end of a fused call: allocates data and scale unless they are given, and runs it. */
#define RUN_FUSED(FUNCTION, RESULTS)                                                                                   \
    do {                                                                                                               \
        if (!given && !status) status = RESULTS(&args.x, args.scale_layout, &args.data, &args.scale);                  \
        if (!given && !status) status = new_tensor(stack[0], &args.data, &results[0]);                                 \
        if (!given && !status) status = new_tensor(stack[0], &args.scale, &results[1]);                                \
        args.threads = thread_count();                                                                                 \
        if (!status) status = current_stream(args.x.device, &args.stream);                                             \
        if (!status) status = FUNCTION(op_context, &args);                                                             \
    } while (0)

/* rms_norm_quantize(x, weight, residual, global_scale, global_value, eps, scale_layout), _out(..., data, scale) */
static void run_rms_norm_quantize(torch_value *stack, int given) {
    nvfp4_rms_norm_quantize_args args = NVFP4_RMS_NORM_QUANTIZE_ARGS;
    torch_value results[2] = {0, 0};
    nvfp4_status status = read_tensor(stack[0], "x", &args.x);
    if (!status) status = read_tensor(stack[1], "weight", &args.weight);
    if (!status) status = read_optional(stack[2], "residual", &args.residual);
    if (!status) status = read_optional(stack[3], "global_scale", &args.global_scale);
    if (!status) status = read_float(stack[4], "global_scale", &args.global_value);
    if (!status) status = read_float(stack[5], "eps", &args.eps);
    if (!status) status = read_name(stack[6], "scale_layout", layout_from_name, &args.scale_layout);
    if (given && !status) status = read_tensor(stack[7], "data", &args.data);
    if (given && !status) status = read_tensor(stack[8], "scale", &args.scale);
    RUN_FUSED(nvfp4_rms_norm_quantize, quantize_results);
    finish(status, stack, given ? "ttttffstt" : "ttttffs", results, given ? 0 : 2);
}

static void rms_norm_quantize(torch_value *stack, uint64_t inputs, uint64_t outputs) {
    (void)inputs;
    (void)outputs;
    run_rms_norm_quantize(stack, 0);
}

static void rms_norm_quantize_out(torch_value *stack, uint64_t inputs, uint64_t outputs) {
    (void)inputs;
    (void)outputs;
    run_rms_norm_quantize(stack, 1);
}

/* silu_mul_quantize(gate_up, global_scale, global_value, scale_layout), _out(..., data, scale) */
static void run_silu_mul_quantize(torch_value *stack, int given) {
    nvfp4_quantize_args args = NVFP4_QUANTIZE_ARGS;
    torch_value results[2] = {0, 0};
    nvfp4_status status = read_tensor(stack[0], "gate_up", &args.x);
    if (!status) status = read_optional(stack[1], "global_scale", &args.global_scale);
    if (!status) status = read_float(stack[2], "global_scale", &args.global_value);
    if (!status) status = read_name(stack[3], "scale_layout", layout_from_name, &args.scale_layout);
    if (given && !status) status = read_tensor(stack[4], "data", &args.data);
    if (given && !status) status = read_tensor(stack[5], "scale", &args.scale);
    RUN_FUSED(nvfp4_silu_mul_quantize, silu_mul_quantize_results);
    finish(status, stack, given ? "ttfstt" : "ttfs", results, given ? 0 : 2);
}

static void silu_mul_quantize(torch_value *stack, uint64_t inputs, uint64_t outputs) {
    (void)inputs;
    (void)outputs;
    run_silu_mul_quantize(stack, 0);
}

static void silu_mul_quantize_out(torch_value *stack, uint64_t inputs, uint64_t outputs) {
    (void)inputs;
    (void)outputs;
    run_silu_mul_quantize(stack, 1);
}

/* amax_scale(x, block_scale) */
static void amax_scale(torch_value *stack, uint64_t inputs, uint64_t outputs) {
    (void)inputs;
    (void)outputs;
    nvfp4_amax_scale_args args = {.threads = thread_count()};
    torch_value result = 0;
    workspace w = {.like = stack[0]};
    nvfp4_status status = read_tensor(stack[0], "x", &args.x);
    if (!status) status = read_name(stack[1], "block_scale", block_scale_from_name, &args.block_scale);
    scale_result(&args.x, &args.scale);
    if (!status) status = new_tensor(stack[0], &args.scale, &result);
    args.allocate = allocate;
    args.owner = &w;
    if (!status) status = current_stream(args.x.device, &args.stream);
    if (!status) status = nvfp4_amax_scale(op_context, &args);
    delete_tensor(w.tensor);
    finish(status, stack, "ts", &result, 1);
}

typedef nvfp4_status layout_change(nvfp4_context *context, const nvfp4_tensor *from, const nvfp4_tensor *to,
                                   void *stream);

/* Runs `change` from `scale` to a new tensor, which `to` describes. */
static nvfp4_status change_layout(layout_change *change, torch_value scale, const nvfp4_tensor *from, nvfp4_tensor *to,
                                  torch_value *result) {
    void *stream;
    nvfp4_status status = new_tensor(scale, to, result);
    if (!status) status = current_stream(from->device, &stream);
    if (!status) status = change(op_context, from, to, stream);
    if (status) rename_argument("swizzled", "scale");
    return status;
}

/* swizzle(scale) */
static void swizzle(torch_value *stack, uint64_t inputs, uint64_t outputs) {
    (void)inputs;
    (void)outputs;
    nvfp4_tensor from, to;
    torch_value result = 0;
    nvfp4_status status = read_tensor(stack[0], "scale", &from);
    if (!status) status = swizzle_result(&from, &to);
    if (!status) status = change_layout(nvfp4_swizzle, stack[0], &from, &to, &result);
    finish(status, stack, "t", &result, 1);
}

/* unswizzle(scale, rows, columns) */
static void unswizzle(torch_value *stack, uint64_t inputs, uint64_t outputs) {
    (void)inputs;
    (void)outputs;
    nvfp4_tensor from, to;
    torch_value result = 0;
    nvfp4_status status = read_tensor(stack[0], "scale", &from);
    if (!status) status = unswizzle_result(&from, (int64_t)stack[1], (int64_t)stack[2], &to);
    if (!status) status = change_layout(nvfp4_unswizzle, stack[0], &from, &to, &result);
    finish(status, stack, "tii", &result, 1);
}

/* ---- registration ---- */

#define GEMM_ARGUMENTS                                                                                                 \
    "Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor alpha, Tensor bias, Tensor c, float alpha_value, "     \
    "float beta, str scale_layout, str backend, int flags, "

#define NORM_ARGUMENTS                                                                                                 \
    "Tensor x, Tensor weight, Tensor(a!) residual, Tensor global_scale, float global_value, float eps, "               \
    "str scale_layout"
#define SILU_ARGUMENTS "Tensor gate_up, Tensor global_scale, float global_value, str scale_layout"

static const struct {
    const char *name, *schema;
    torch_kernel *kernel;
} operators[] = {
    {"gemm", "gemm(" GEMM_ARGUMENTS "ScalarType out_dtype) -> Tensor", gemm},
    {"gemm_out", "gemm_out(" GEMM_ARGUMENTS "Tensor(a!) out) -> ()", gemm_out},
    {"custom_kernel", "custom_kernel(Tensor a, Tensor b, Tensor sfa_permuted, Tensor sfb_permuted, Tensor(a!) c) -> ()",
     custom_kernel},
    {"quantize",
     "quantize(Tensor x, Tensor global_scale, float global_value, str scale_layout, str block_scale=\"amax6\") -> "
     "(Tensor, Tensor)",
     quantize},
    {"dequantize",
     "dequantize(Tensor data, Tensor scale, Tensor global_scale, float global_value, str scale_layout, ScalarType "
     "out_dtype) -> Tensor",
     dequantize},
    {"rms_norm_quantize", "rms_norm_quantize(" NORM_ARGUMENTS ") -> (Tensor, Tensor)", rms_norm_quantize},
    {"rms_norm_quantize_out", "rms_norm_quantize_out(" NORM_ARGUMENTS ", Tensor(b!) data, Tensor(c!) scale) -> ()",
     rms_norm_quantize_out},
    {"silu_mul_quantize", "silu_mul_quantize(" SILU_ARGUMENTS ") -> (Tensor, Tensor)", silu_mul_quantize},
    {"silu_mul_quantize_out", "silu_mul_quantize_out(" SILU_ARGUMENTS ", Tensor(a!) data, Tensor(b!) scale) -> ()",
     silu_mul_quantize_out},
    {"amax_scale", "amax_scale(Tensor x, str block_scale) -> Tensor", amax_scale},
    {"swizzle", "swizzle(Tensor scale) -> Tensor", swizzle},
    {"unswizzle", "unswizzle(Tensor scale, SymInt rows, SymInt columns) -> Tensor", unswizzle},
};

static nvfp4_status open_shim(void) {
    /* By soname, and only if loaded already. */
    void *cpu = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    void *cuda = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    if (!cpu) return fail(NVFP4_UNSUPPORTED, "torch: libtorch_cpu.so is not loaded in this process");
#define X(result, function, arguments)                                                                                 \
    *(void **)&shim.function = dlsym(cpu, #function);                                                                  \
    if (!shim.function && cuda) *(void **)&shim.function = dlsym(cuda, #function);
    TORCH_SHIM_OPTIONAL(X)
#undef X
#define X(result, function, arguments)                                                                                 \
    *(void **)&shim.function = dlsym(cpu, #function);                                                                  \
    if (!shim.function) return fail(NVFP4_UNSUPPORTED, "torch: has no %s; torch 2.10 or newer is needed", #function);
    TORCH_SHIM(X)
#undef X
    dtype_codes[NVFP4_NONE] = -1;
    dtype_codes[NVFP4_UINT8] = shim.aoti_torch_dtype_uint8();
    dtype_codes[NVFP4_E2M1X2] = shim.torch_dtype_float4_e2m1fn_x2 ? shim.torch_dtype_float4_e2m1fn_x2() : -1;
    dtype_codes[NVFP4_E4M3] = shim.aoti_torch_dtype_float8_e4m3fn();
    dtype_codes[NVFP4_FP16] = shim.aoti_torch_dtype_float16();
    dtype_codes[NVFP4_BF16] = shim.aoti_torch_dtype_bfloat16();
    dtype_codes[NVFP4_FP32] = shim.aoti_torch_dtype_float32();
    return NVFP4_OK;
}

nvfp4_status torch_ops_register(nvfp4_context *context) {
    static const char *const keys[] = {"CPU", "CUDA"};
    torch_library library;
    if (op_context) return NVFP4_OK;
    nvfp4_status status = open_shim();
    if (status) return status;
    /* The libraries are torch's for the life of the process. */
    int32_t error = shim.aoti_torch_library_init_fragment("nvfp4", __FILE__, __LINE__, &library);
    for (size_t i = 0; i < sizeof operators / sizeof *operators && !error; i++)
        error = shim.aoti_torch_library_def(library, operators[i].schema);
    for (size_t k = 0; k < sizeof keys / sizeof *keys && !error; k++) {
        error = shim.aoti_torch_library_init_impl("nvfp4", keys[k], __FILE__, __LINE__, &library);
        for (size_t i = 0; i < sizeof operators / sizeof *operators && !error; i++)
            error = shim.aoti_torch_library_impl(library, operators[i].name, operators[i].kernel);
    }
    if (error) return fail(NVFP4_UNSUPPORTED, "torch: refused the operators of nvfp4");
    op_context = context;
    return NVFP4_OK;
}
