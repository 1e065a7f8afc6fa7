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
static reading run_gemm(nvfp4_gemm_args *args, PyObject *a, PyObject **result) {
    int32_t device = args->a.device;
    PyObject *allocated = NULL;
    gemm_call call;
    if (gemm_prepare(python_context, args, &call) != NVFP4_OK) return READ_FAILED;
    if (!*result) {
        allocated = allocate_like(a, args->out.ndim, args->out.shape, args->out.dtype);
        reading done = allocated ? read_tensor(allocated, "out", FORMAT, &args->out) : READ_FAILED;
        if (done != READ) {
            Py_XDECREF(allocated);
            return done;
        }
        *result = allocated;
    }
    workspace_owner owner = {.device = device};
    args->allocate = allocate_for;
    args->owner = &owner;
    int ok = device == NVFP4_HOST || current_stream(device, &args->stream) == 0;
    ok = ok && launch(args, &call) == NVFP4_OK;
    free_workspace(device, &owner.memory);
    if (ok) return READ;
    if (allocated) Py_CLEAR(*result);
    return READ_FAILED;
}

PyObject *python_gemm(PyObject *module, arguments a, Py_ssize_t count) {
    enum { A, B, SCALE_A, SCALE_B, ALPHA, BIAS, C, BETA, OUT, OUT_DTYPE, LAYOUT, BACKEND, FLAGS, COUNT };
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
    (void)module;
    if (!check_count("gemm", count, COUNT)) return NULL;
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
    reading done = read_tensors(a, tensors, 7 + alpha_is_tensor, &args);
    if (done == READ_FAILED) return raise_error();
    if (done == READ_BY_TORCH) return call_torch_op("gemm", a, count);
    if (a[OUT_DTYPE] == Py_None) dtype = default_out_dtype(&args);
    if (!out && gemm_result(&args, dtype, &args.out) != NVFP4_OK) return raise_error();
    if (a[OUT_DTYPE] != Py_None && dtype != args.out.dtype) {
        fail(NVFP4_INVALID, "out_dtype: is %s but out has %s", nvfp4_dtype_name(dtype),
             nvfp4_dtype_name(args.out.dtype));
        return raise_error();
    }
    done = run_gemm(&args, a[A], &out);
    if (done == READ_FAILED) return raise_error();
    if (done == READ_BY_TORCH) return call_torch_op("gemm", a, count);
    return a[OUT] == Py_None ? out : Py_NewRef(out);
}

PyObject *python_custom_kernel(PyObject *module, arguments a, Py_ssize_t count) {
    enum { A, B, SFA, SFB, C, COUNT };
    static const tensor_argument tensors[] = {
        {A, "a", FORMAT, FIELD(a)},
        {B, "b", FORMAT, FIELD(b)},
        {SFA, "sfa_permuted", FORMAT, FIELD(scale_a)},
        {SFB, "sfb_permuted", FORMAT, FIELD(scale_b)},
        {C, "c", WRITTEN, FIELD(out)},
    };
    (void)module;
    if (!check_count("custom_kernel", count, COUNT)) return NULL;
    nvfp4_gemm_args args = NVFP4_GEMM_ARGS;
    PyObject *out = a[C];
    reading done = read_tensors(a, tensors, COUNT, &args);
    if (done == READ) done = gemm_of_views(&args) == NVFP4_OK ? run_gemm(&args, a[A], &out) : READ_FAILED;
    if (done == READ) return Py_NewRef(out);
    if (done == READ_BY_TORCH) return call_torch_op("custom_kernel", a, count);
    rename_views();
    return raise_error();
}
