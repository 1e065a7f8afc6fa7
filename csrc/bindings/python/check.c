/* The checks of a call without its memory: for the fakes of nvfp4/torch_ops.py. */
#include <string.h>

#include "api/check.h"
#include "api/gemm.h"
#include "bindings/frontend.h"
#include "bindings/python/module.h"

/* (dtype, device, shape, stride), or None. A tensor without memory gets an address of its own, far from any other, so
 * that the rules about addresses hold. */
static int read_described(PyObject *object, int index, nvfp4_tensor *t) {
    const char *dtype;
    PyObject *shape, *stride;
    if (object == Py_None) return 1;
    if (!PyArg_ParseTuple(object, "siO!O!", &dtype, &t->device, &PyTuple_Type, &shape, &PyTuple_Type, &stride))
        return 0;
    for (int32_t d = NVFP4_UINT8; d <= NVFP4_FP32; d++)
        if (strcmp(dtype, nvfp4_dtype_name(d)) == 0) t->dtype = d;
    if (t->dtype == NVFP4_NONE) t->dtype = NVFP4_FP32 + 1; /* present, and of no dtype that a rule allows */
    t->data = (void *)((uintptr_t)(index + 1) << 59);
    t->ndim = (int32_t)PyTuple_Size(shape);
    for (int i = 0; i < t->ndim && i < NVFP4_MAX_DIMS; i++) {
        t->shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        t->stride[i] = PyLong_AsLongLong(PyTuple_GetItem(stride, i));
    }
    return !PyErr_Occurred();
}

static PyObject *answer(nvfp4_status status) {
    if (status != NVFP4_OK) return raise_error();
    Py_RETURN_NONE;
}

/* A program may be traced for a device that this machine lacks: only broken rules are errors. */
static nvfp4_status plan(const nvfp4_gemm_args *args) {
    gemm_call ignored;
    nvfp4_status status = gemm_prepare(python_context, args, &ignored);
    return status == NVFP4_INVALID ? status : NVFP4_OK;
}

PyObject *python_check_gemm(PyObject *module, arguments a, Py_ssize_t count) {
    enum { A, B, SCALE_A, SCALE_B, ALPHA, BIAS, C, OUT, BETA, LAYOUT, BACKEND, FLAGS, COUNT };
    (void)module;
    if (!check_count("check_gemm", count, COUNT)) return NULL;
    nvfp4_gemm_args args = NVFP4_GEMM_ARGS;
    nvfp4_tensor *const tensors[] = {&args.a,     &args.b,    &args.scale_a, &args.scale_b,
                                     &args.alpha, &args.bias, &args.c,       &args.out};
    int64_t flags;
    for (int i = A; i <= OUT; i++)
        if (!read_described(a[i], i, tensors[i])) return raise_error();
    if (!read_number(a[BETA], "beta", &args.beta) || !read_layout(a[LAYOUT], &args.scale_layout) ||
        !read_backend(a[BACKEND], &args.backend) || !read_integer(a[FLAGS], "flags", 0, UINT32_MAX, &flags))
        return raise_error();
    args.flags = (uint32_t)flags;
    return answer(plan(&args));
}

PyObject *python_check_custom_kernel(PyObject *module, arguments a, Py_ssize_t count) {
    (void)module;
    if (!check_count("check_custom_kernel", count, 5)) return NULL;
    nvfp4_gemm_args args = NVFP4_GEMM_ARGS;
    nvfp4_tensor *const tensors[] = {&args.a, &args.b, &args.scale_a, &args.scale_b, &args.out};
    for (int i = 0; i < 5; i++)
        if (!read_described(a[i], i, tensors[i])) return raise_error();
    nvfp4_status status = gemm_of_views(&args);
    if (!status) status = plan(&args);
    if (status) rename_views();
    return answer(status);
}

PyObject *python_check_quantize(PyObject *module, arguments a, Py_ssize_t count) {
    enum { X, DATA, SCALE, GLOBAL_SCALE, GLOBAL_VALUE, LAYOUT, OUTPUT_IS_X, COUNT };
    (void)module;
    if (!check_count("check_quantize", count, COUNT)) return NULL;
    nvfp4_quantize_args args = NVFP4_QUANTIZE_ARGS;
    quantize_problem ignored;
    if (!read_described(a[X], X, &args.x) || !read_described(a[DATA], DATA, &args.data) ||
        !read_described(a[SCALE], SCALE, &args.scale) ||
        !read_described(a[GLOBAL_SCALE], GLOBAL_SCALE, &args.global_scale) ||
        !read_number(a[GLOBAL_VALUE], "global_scale", &args.global_value) ||
        !read_layout(a[LAYOUT], &args.scale_layout))
        return raise_error();
    args.global_scale.data = NULL; /* the one tensor whose value is looked at, if it can be */
    return answer(check_quantize(&args, PyObject_IsTrue(a[OUTPUT_IS_X]), &ignored));
}

PyObject *python_check_rms_norm_quantize(PyObject *module, arguments a, Py_ssize_t count) {
    enum { X, WEIGHT, RESIDUAL, DATA, SCALE, GLOBAL_SCALE, GLOBAL_VALUE, EPS, LAYOUT, COUNT };
    (void)module;
    if (!check_count("check_rms_norm_quantize", count, COUNT)) return NULL;
    nvfp4_rms_norm_quantize_args args = NVFP4_RMS_NORM_QUANTIZE_ARGS;
    nvfp4_tensor *const tensors[] = {&args.x,    &args.weight, &args.residual,
                                     &args.data, &args.scale,  &args.global_scale};
    norm_problem ignored;
    for (int i = X; i <= GLOBAL_SCALE; i++)
        if (!read_described(a[i], i, tensors[i])) return raise_error();
    if (!read_number(a[GLOBAL_VALUE], "global_scale", &args.global_value) || !read_number(a[EPS], "eps", &args.eps) ||
        !read_layout(a[LAYOUT], &args.scale_layout))
        return raise_error();
    args.global_scale.data = NULL;
    return answer(check_rms_norm_quantize(&args, &ignored));
}

PyObject *python_check_silu_mul_quantize(PyObject *module, arguments a, Py_ssize_t count) {
    enum { GATE_UP, DATA, SCALE, GLOBAL_SCALE, GLOBAL_VALUE, LAYOUT, COUNT };
    (void)module;
    if (!check_count("check_silu_mul_quantize", count, COUNT)) return NULL;
    nvfp4_quantize_args args = NVFP4_QUANTIZE_ARGS;
    nvfp4_tensor *const tensors[] = {&args.x, &args.data, &args.scale, &args.global_scale};
    quantize_problem ignored;
    for (int i = GATE_UP; i <= GLOBAL_SCALE; i++)
        if (!read_described(a[i], i, tensors[i])) return raise_error();
    if (!read_number(a[GLOBAL_VALUE], "global_scale", &args.global_value) ||
        !read_layout(a[LAYOUT], &args.scale_layout))
        return raise_error();
    args.global_scale.data = NULL;
    return answer(check_silu_mul_quantize(&args, &ignored));
}

PyObject *python_check_amax_scale(PyObject *module, arguments a, Py_ssize_t count) {
    enum { X, SCALE, BLOCK_SCALE, COUNT };
    (void)module;
    if (!check_count("check_amax_scale", count, COUNT)) return NULL;
    nvfp4_amax_scale_args args = {.threads = 0};
    amax_problem ignored;
    if (!read_described(a[X], X, &args.x) || !read_described(a[SCALE], SCALE, &args.scale) ||
        !read_block_scale(a[BLOCK_SCALE], &args.block_scale))
        return raise_error();
    return answer(check_amax_scale(&args, &ignored));
}

PyObject *python_check_swizzle(PyObject *module, arguments a, Py_ssize_t count) {
    enum { LINEAR, SWIZZLED, OUTPUT_IS_LINEAR, COUNT };
    (void)module;
    if (!check_count("check_swizzle", count, COUNT)) return NULL;
    nvfp4_tensor linear = {.dtype = NVFP4_NONE}, swizzled = linear;
    swizzle_problem ignored;
    if (!read_described(a[LINEAR], LINEAR, &linear) || !read_described(a[SWIZZLED], SWIZZLED, &swizzled))
        return raise_error();
    nvfp4_status status = check_swizzle(&linear, &swizzled, PyObject_IsTrue(a[OUTPUT_IS_LINEAR]), &ignored);
    if (status) rename_argument("swizzled", "scale");
    return answer(status);
}
