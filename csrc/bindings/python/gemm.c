/* gemm and custom_kernel: Python arguments to nvfp4_gemm_args. */
#include "api/gemm.h"
#include "bindings/frontend.h"
#include "bindings/python/module.h"
#include "bindings/python/tensor.h"
#include "common/error.h"

/* Enqueues the product, or on the host computes it. */
static nvfp4_status launch(nvfp4_gemm_args *args, gemm_call *call) {
    if (args->a.device != NVFP4_HOST) return gemm_run(python_context, args, call);
    args->threads = current_threads();
    PyThreadState *python = PyEval_SaveThread();
    nvfp4_status status = gemm_run(python_context, args, call);
    PyEval_RestoreThread(python);
    return status;
}

/* Checks, allocates what the call lacks (*result if NULL, and workspace) and runs it. */
static reading run_gemm(arrays *tensors, nvfp4_gemm_args *args, PyObject **result) {
    int32_t device = args->a.device;
    PyObject *allocated = NULL;
    gemm_call call;
    if (gemm_prepare(python_context, args, &call) != NVFP4_OK) return READ_FAILED;
    if (!*result) {
        reading done = new_result(tensors, &args->out, &allocated);
        if (done != READ) return done;
        *result = allocated;
    }
    workspace_owner owner = {.call = tensors, .device = device};
    args->allocate = allocate_for;
    args->owner = &owner;
    int ok = device == NVFP4_HOST || stream_of(tensors, device, &args->stream);
    ok = ok && launch(args, &call) == NVFP4_OK;
    free_workspace(device, &owner.memory);
    if (ok && allocated && !finish_result(tensors, result)) return READ_FAILED;
    if (ok) return READ;
    if (allocated) Py_CLEAR(*result);
    return READ_FAILED;
}

/* The arguments of gemm. */
enum { A, B, SCALE_A, SCALE_B, ALPHA, BIAS, C, BETA, OUT, OUT_DTYPE, LAYOUT, BACKEND, FLAGS, COUNT };

static PyObject *gemm(arrays *call, arguments a, Py_ssize_t count) {
#define FIELD(name) offsetof(nvfp4_gemm_args, name)
    static const tensor_argument tensors[] = {
        {A, "a", NUMBERS, FIELD(a)},
        {B, "b", FORMAT, FIELD(b)},
        {SCALE_A, "scale_a", FORMAT, FIELD(scale_a)},
        {SCALE_B, "scale_b", FORMAT, FIELD(scale_b)},
        {BIAS, "bias", NUMBERS, FIELD(bias)},
        {C, "c", NUMBERS, FIELD(c)},
        {OUT, "out", WRITTEN, FIELD(out)},
        {ALPHA, "alpha", NUMBERS, FIELD(alpha)},
    };
    nvfp4_gemm_args args = NVFP4_GEMM_ARGS;
    PyObject *out = a[OUT] == Py_None ? NULL : a[OUT];
    int alpha_is_tensor = is_tensor(a[ALPHA]);
    int32_t dtype;
    int64_t flags;
    if ((!alpha_is_tensor && a[ALPHA] != Py_None && !read_number(a[ALPHA], "alpha", &args.alpha_value)) ||
        !read_number(a[BETA], "beta", &args.beta) || !read_layout(a[LAYOUT], &args.scale_layout) ||
        !read_backend(a[BACKEND], &args.backend) || !read_integer(a[FLAGS], "flags", 0, UINT32_MAX, &flags) ||
        !read_out_dtype(a[OUT_DTYPE], NVFP4_FP16, &dtype))
        return raise_error();
    args.flags = (uint32_t)flags;
    reading done = read_tensors(call, a, tensors, 7 + alpha_is_tensor, &args);
    if (done == READ_FAILED) return raise_error();
    if (done == READ_BY_TORCH) return call_torch_op("gemm", a, count);
    if (a[OUT_DTYPE] == Py_None) dtype = default_out_dtype(&args);
    if (!out && gemm_result(&args, dtype, &args.out) != NVFP4_OK) return raise_error();
    if (a[OUT_DTYPE] != Py_None && dtype != args.out.dtype) {
        fail(NVFP4_INVALID, "out_dtype: is %s but out has %s", nvfp4_dtype_name(dtype),
             nvfp4_dtype_name(args.out.dtype));
        return raise_error();
    }
    done = run_gemm(call, &args, &out);
    if (done == READ_FAILED) return raise_error();
    if (done == READ_BY_TORCH) return call_torch_op("gemm", a, count);
    return a[OUT] == Py_None ? out : Py_NewRef(out);
}

PyObject *python_gemm(PyObject *module, arguments a, Py_ssize_t count) {
    (void)module;
    if (!check_count("gemm", count, COUNT)) return NULL;
    return with_arrays(gemm, a[OUT] == Py_None ? a[A] : a[OUT], a, count);
}

/* The arguments of custom_kernel. */
enum { VIEW_A, VIEW_B, VIEW_SFA, VIEW_SFB, VIEW_C, VIEWS };

static PyObject *custom_kernel(arrays *call, arguments a, Py_ssize_t count) {
    static const tensor_argument tensors[] = {
        {VIEW_A, "a", FORMAT, FIELD(a)},
        {VIEW_B, "b", FORMAT, FIELD(b)},
        {VIEW_SFA, "sfa_permuted", FORMAT, FIELD(scale_a)},
        {VIEW_SFB, "sfb_permuted", FORMAT, FIELD(scale_b)},
        {VIEW_C, "c", WRITTEN, FIELD(out)},
    };
    nvfp4_gemm_args args = NVFP4_GEMM_ARGS;
    PyObject *out = a[VIEW_C];
    reading done = read_tensors(call, a, tensors, VIEWS, &args);
    if (done == READ) done = gemm_of_views(&args) == NVFP4_OK ? run_gemm(call, &args, &out) : READ_FAILED;
    if (done == READ) return Py_NewRef(out);
    if (done == READ_BY_TORCH) return call_torch_op("custom_kernel", a, count);
    rename_views();
    return raise_error();
}

PyObject *python_custom_kernel(PyObject *module, arguments a, Py_ssize_t count) {
    (void)module;
    if (!check_count("custom_kernel", count, VIEWS)) return NULL;
    return with_arrays(custom_kernel, a[VIEW_C], a, count);
}
