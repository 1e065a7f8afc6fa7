/* gemm and custom_kernel: Python arguments to nvfp4_gemm_args. */
#include <string.h>

#include "error.h"
#include "python_module.h"
#include "python_tensor.h"

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* A result of shape [M, N] or [L, M, N] that is still to be allocated: enough for the checks. */
static void describe_result(const nvfp4_gemm_args *args, int32_t dtype, nvfp4_tensor *out) {
    const nvfp4_tensor *a = &args->a, *b = &args->b;
    *out = (nvfp4_tensor){.dtype = dtype, .device = a->device};
    if (a->ndim < 2 || a->ndim > 3 || b->ndim < 2) return; /* the checks refuse a or b */
    out->ndim = a->ndim;
    int64_t stride = 1;
    for (int i = a->ndim - 1; i >= 0; i--) {
        out->shape[i] = i == a->ndim - 1 ? b->shape[b->ndim - 2] : a->shape[i];
        out->stride[i] = stride;
        if (__builtin_mul_overflow(stride, out->shape[i], &stride)) stride = 0;
    }
}

/* Checks, allocates what the call lacks (*result if NULL, and workspace) and runs it. */
static reading run_gemm(nvfp4_gemm_args *args, PyObject *a, PyObject **result) {
    int on_host = args->a.device == NVFP4_HOST, allocate = *result == NULL;
    nvfp4_plan plan = {.workspace = 0};
    PyObject *workspace = NULL;
    nvfp4_tensor memory;
    nvfp4_status status;
    reading done = READ_FAILED;

    if (allocate || !on_host || args->backend > NVFP4_BACKEND_CPU) {
        if (nvfp4_gemm_plan(python_context, args, &plan) != NVFP4_OK) return READ_FAILED;
    }
    if (allocate) {
        *result = allocate_like(a, args->out.ndim, args->out.shape, args->out.dtype);
        done = *result ? read_tensor(*result, "out", FORMAT, &args->out) : READ_FAILED;
        if (done != READ) goto fail;
    }
    if (plan.workspace) {
        int64_t bytes = (int64_t)plan.workspace;
        workspace = allocate_like(a, 1, &bytes, NVFP4_UINT8);
        done = workspace ? read_tensor(workspace, "workspace", FORMAT, &memory) : READ_FAILED;
        if (done != READ) goto fail;
        args->workspace = memory.data;
        args->workspace_size = plan.workspace;
    }
    done = READ_FAILED;
    if (on_host) {
        args->threads = current_threads();
        Py_BEGIN_ALLOW_THREADS status = nvfp4_gemm(python_context, args);
        Py_END_ALLOW_THREADS
    } else {
        if (current_queue(args->a.device, &args->queue) != 0) goto fail;
        status = nvfp4_gemm(python_context, args);
    }
    if (status != NVFP4_OK) goto fail;
    Py_XDECREF(workspace); /* its next user comes after this call on the same queue */
    return READ;
fail:
    Py_XDECREF(workspace);
    if (allocate) {
        Py_XDECREF(*result);
        *result = NULL;
    }
    return done;
}

PyObject *python_gemm(PyObject *module, arguments a, Py_ssize_t count) {
    enum { A, B, SCALE_A, SCALE_B, ALPHA, BIAS, C, BETA, OUT, OUT_DTYPE, LAYOUT, BACKEND, COUNT };
#define FIELD(name) offsetof(nvfp4_gemm_args, name)
    static const tensor_argument tensors[] = {
        {A, "a", FORMAT, FIELD(a)},
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
    int alpha_is_tensor = is_tensor(a[ALPHA]);
    if (!alpha_is_tensor && a[ALPHA] != Py_None && !read_number(a[ALPHA], "alpha", &args.alpha_value))
        return raise_error();
    reading done = read_tensors(a, tensors, 7 + alpha_is_tensor, &args);
    if (done == READ_FAILED) return raise_error();
    if (done == READ_BY_TORCH) return call_torch_op("gemm", a, count);

    int32_t dtype;
    if (!read_number(a[BETA], "beta", &args.beta) || !read_layout(a[LAYOUT], &args.scale_layout) ||
        !read_backend(a[BACKEND], &args.backend) || !read_out_dtype(a[OUT_DTYPE], NVFP4_FP16, &dtype))
        return raise_error();
    PyObject *out = a[OUT] == Py_None ? NULL : a[OUT];
    if (!out) {
        describe_result(&args, dtype, &args.out);
    } else if (a[OUT_DTYPE] != Py_None && dtype != args.out.dtype) {
        fail(NVFP4_INVALID, "out_dtype: is %s but out has %s", nvfp4_dtype_name(dtype),
             nvfp4_dtype_name(args.out.dtype));
        return raise_error();
    }
    done = run_gemm(&args, a[A], &out);
    if (done == READ_FAILED) return raise_error();
    if (done == READ_BY_TORCH) return call_torch_op("gemm", a, count);
    return a[OUT] == Py_None ? out : Py_NewRef(out);
}

/* ---- custom_kernel ---- */

/* [rows, columns, L] whose memory is (L, rows, columns), as [L, rows, columns]. */
static int rotate(const char *name, const char *shape, nvfp4_tensor *t) {
    if (t->dtype == NVFP4_NONE || t->ndim != 3) {
        fail(NVFP4_INVALID, "%s: has %d dimensions; must have 3 (%s)", name, t->ndim, shape);
        return 0;
    }
    if (t->shape[1] > 1 && t->stride[1] != 1) {
        fail(NVFP4_INVALID, "%s: stride of dimension 1 is %lld; must be 1 (%s in memory order L, rows, columns)", name,
             (long long)t->stride[1], shape);
        return 0;
    }
    nvfp4_tensor view = *t;
    for (int i = 0; i < 3; i++) {
        view.shape[(i + 1) % 3] = t->shape[i];
        view.stride[(i + 1) % 3] = t->stride[i];
    }
    *t = view;
    return 1;
}

/* [32, 4, rest_m, 4, rest_k, L]: the 128x4 layout as the competition sees it, a permuted view of contiguous
 * (L, rest_m, rest_k, 32, 4, 4). Becomes that contiguous tensor. */
static int restore_blocks(const char *name, int64_t rows, int64_t k, int64_t l, nvfp4_tensor *t) {
    static const int axes[6] = {5, 2, 4, 0, 1, 3}; /* of the view, in memory order */
    const int64_t wanted[6] = {32, 4, ceil_div(rows, 128), 4, ceil_div(k, 64), l};
    if (t->dtype == NVFP4_NONE || t->ndim != 6) {
        fail(NVFP4_INVALID, "%s: has %d dimensions; must have 6 ([32, 4, rest_m, 4, rest_k, L])", name, t->ndim);
        return 0;
    }
    nvfp4_tensor blocks = *t;
    int64_t stride = 1;
    for (int i = 5; i >= 0; i--) {
        int axis = axes[i];
        if (t->shape[axis] != wanted[axis]) {
            fail(NVFP4_INVALID, "%s: dimension %d is %lld; must be %lld ([32, 4, rest_m, 4, rest_k, L])", name, axis,
                 (long long)t->shape[axis], (long long)wanted[axis]);
            return 0;
        }
        if (t->shape[axis] > 1 && t->stride[axis] != stride) {
            fail(
                NVFP4_INVALID,
                "%s: stride of dimension %d is %lld; must be %lld (a view of contiguous (L, rest_m, rest_k, 32, 4, 4))",
                name, axis, (long long)t->stride[axis], (long long)stride);
            return 0;
        }
        blocks.shape[i] = t->shape[axis];
        blocks.stride[i] = stride;
        stride *= t->shape[axis];
    }
    *t = blocks;
    return 1;
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
    reading done = read_tensors(a, tensors, COUNT, &args);
    if (done == READ_FAILED) return raise_error();
    if (done == READ_BY_TORCH) return call_torch_op("custom_kernel", a, count);
    if (!rotate("a", "[M, K/2, L]", &args.a) || !rotate("b", "[N, K/2, L]", &args.b) ||
        !rotate("c", "[M, N, L]", &args.out))
        return raise_error();
    int64_t l = args.a.shape[0], k = args.a.shape[2] * 2;
    if (!restore_blocks("sfa_permuted", args.a.shape[1], k, l, &args.scale_a) ||
        !restore_blocks("sfb_permuted", args.b.shape[1], k, l, &args.scale_b))
        return raise_error();
    PyObject *out = a[C];
    done = run_gemm(&args, a[A], &out);
    if (done == READ) return Py_NewRef(a[C]);
    if (done == READ_BY_TORCH) return call_torch_op("custom_kernel", a, count);
    rename_argument("out", "c");
    rename_argument("scale_a", "sfa_permuted");
    rename_argument("scale_b", "sfb_permuted");
    return raise_error();
}

/* ---- check_gemm ---- */

/* (dtype, device, shape, stride) or None: a tensor without memory, as torch's fakes are. */
static int read_described(PyObject *object, nvfp4_tensor *t) {
    const char *dtype;
    PyObject *shape, *stride;
    if (object == Py_None) return 1;
    if (!PyArg_ParseTuple(object, "siO!O!", &dtype, &t->device, &PyTuple_Type, &shape, &PyTuple_Type, &stride))
        return 0;
    for (int32_t d = NVFP4_UINT8; d <= NVFP4_FP32; d++)
        if (strcmp(dtype, nvfp4_dtype_name(d)) == 0) t->dtype = d;
    t->ndim = (int32_t)PyTuple_Size(shape);
    for (int i = 0; i < t->ndim && i < NVFP4_MAX_DIMS; i++) {
        t->shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        t->stride[i] = PyLong_AsLongLong(PyTuple_GetItem(stride, i));
    }
    return !PyErr_Occurred();
}

PyObject *python_check_gemm(PyObject *module, arguments a, Py_ssize_t count) {
    enum { A, B, SCALE_A, SCALE_B, ALPHA, BIAS, C, OUT, BETA, LAYOUT, BACKEND, COUNT };
    (void)module;
    if (!check_count("check_gemm", count, COUNT)) return NULL;
    nvfp4_gemm_args args = NVFP4_GEMM_ARGS;
    nvfp4_plan plan;
    if (!read_described(a[A], &args.a) || !read_described(a[B], &args.b) ||
        !read_described(a[SCALE_A], &args.scale_a) || !read_described(a[SCALE_B], &args.scale_b) ||
        !read_described(a[ALPHA], &args.alpha) || !read_described(a[BIAS], &args.bias) ||
        !read_described(a[C], &args.c) || !read_described(a[OUT], &args.out) ||
        !read_number(a[BETA], "beta", &args.beta) || !read_layout(a[LAYOUT], &args.scale_layout) ||
        !read_backend(a[BACKEND], &args.backend))
        return raise_error();
    /* A program may be traced for a device that this machine lacks: only broken rules are refused. */
    if (nvfp4_gemm_plan(python_context, &args, &plan) == NVFP4_INVALID) return raise_error();
    Py_RETURN_NONE;
}
