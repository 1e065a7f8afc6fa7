/* quantize, also fused, dequantize, amax_scale, swizzle and unswizzle: Python arguments to the conversions of nvfp4.h.
 */
#include "bindings/frontend.h"
#include "bindings/python/module.h"
#include "bindings/python/tensor.h"
#include "common/error.h"

/* None, a number or a tensor of one. */
static reading read_global_scale(arrays *call, PyObject *object, nvfp4_tensor *tensor, float *value) {
    if (object == Py_None) return READ;
    if (is_tensor(object)) return read_tensor(call, object, "global_scale", NUMBERS, tensor);
    return read_number(object, "global_scale", value) ? READ : READ_FAILED;
}

typedef nvfp4_status conversion(nvfp4_context *context, const nvfp4_quantize_args *args);

static int run(arrays *call, conversion *convert, nvfp4_quantize_args *args) {
    if (args->x.device != NVFP4_HOST)
        return stream_of(call, args->x.device, &args->stream) && convert(python_context, args) == NVFP4_OK;
    args->threads = current_threads();
    PyThreadState *python = PyEval_SaveThread();
    nvfp4_status status = convert(python_context, args);
    PyEval_RestoreThread(python);
    return status == NVFP4_OK;
}

static PyObject *quantize(arrays *call, arguments a, Py_ssize_t count) {
    enum { X, GLOBAL_SCALE, LAYOUT, BLOCK_SCALE };
    nvfp4_quantize_args args = NVFP4_QUANTIZE_ARGS;
    PyObject *data = NULL, *scale = NULL, *result = NULL;
    if (!read_layout(a[LAYOUT], &args.scale_layout) || !read_block_scale(a[BLOCK_SCALE], &args.block_scale))
        return raise_error();
    reading done = read_tensor(call, a[X], "x", NUMBERS, &args.x), also = READ;
    if (done != READ_FAILED) also = read_global_scale(call, a[GLOBAL_SCALE], &args.global_scale, &args.global_value);
    if (also > done) done = also;
    if (done == READ_BY_TORCH) return call_torch_op("quantize", a, count);
    if (done == READ_FAILED || quantize_results(&args.x, args.scale_layout, &args.data, &args.scale) != NVFP4_OK)
        return raise_error();
    done = new_result(call, &args.data, &data);
    if (done == READ) done = new_result(call, &args.scale, &scale);
    if (done == READ && run(call, nvfp4_quantize, &args) && finish_result(call, &data) && finish_result(call, &scale))
        result = PyTuple_Pack(2, data, scale);
    else
        result = done == READ_BY_TORCH ? call_torch_op("quantize", a, count) : raise_error();
    Py_XDECREF(data);
    Py_XDECREF(scale);
    return result;
}

PyObject *python_quantize(PyObject *module, arguments a, Py_ssize_t count) {
    (void)module;
    return check_count("quantize", count, 4) ? with_arrays(quantize, a[0], a, count) : NULL;
}

/* The `out` of a fused call, a tuple of two, into items; both NULL for None. */
static int read_out(PyObject *out, PyObject *items[2]) {
    char type[64];
    items[0] = items[1] = NULL;
    if (out == Py_None) return 1;
    if (!PyTuple_Check(out)) {
        fail(NVFP4_INVALID, "out: is of type %s; must be a tuple of data and scale",
             describe((PyObject *)Py_TYPE(out), "__name__", type, sizeof type));
        return 0;
    }
    if (PyTuple_Size(out) != 2) {
        fail(NVFP4_INVALID, "out: has %zd elements; must be a tuple of data and scale", PyTuple_Size(out));
        return 0;
    }
    for (int i = 0; i < 2; i++) items[i] = PyTuple_GetItem(out, i);
    return 1;
}

/* What the fused calls have in common: `args` is the nvfp4_quantize_args or what begins as it in tensors. */
typedef struct fused_call {
    arrays *tensors;
    const char *operator;
    arguments a;
    Py_ssize_t count;
    PyObject *out;
    nvfp4_tensor *data, *scale;
    nvfp4_status (*results)(const nvfp4_tensor *x, int32_t layout, nvfp4_tensor *data, nvfp4_tensor *scale);
} fused_call;

/* data of `out`, where that is a tuple, else the first argument. */
static PyObject *leader_of(PyObject *first, PyObject *out) {
    return PyTuple_Check(out) && PyTuple_Size(out) == 2 ? PyTuple_GetItem(out, 0) : first;
}

/* Reads or allocates data and scale; x is the first argument. */
static reading fused_out(const fused_call *call, const nvfp4_tensor *x, int32_t layout, PyObject *out[2]) {
    reading done = READ;
    if (!read_out(call->out, out)) {
        out[0] = out[1] = NULL;
        return READ_FAILED;
    }
    if (out[0]) {
        for (int i = 0; i < 2; i++) Py_INCREF(out[i]);
        done = read_tensor(call->tensors, out[0], "data", WRITTEN, call->data);
        if (done != READ_FAILED) {
            reading also = read_tensor(call->tensors, out[1], "scale", WRITTEN, call->scale);
            if (also > done) done = also;
        }
        return done;
    }
    if (call->results(x, layout, call->data, call->scale) != NVFP4_OK) return READ_FAILED;
    done = new_result(call->tensors, call->data, &out[0]);
    if (done == READ) done = new_result(call->tensors, call->scale, &out[1]);
    return done;
}

static PyObject *end_fused(const fused_call *call, reading done, PyObject *out[2]) {
    for (int i = 0; i < 2 && done == READ; i++)
        if (!finish_result(call->tensors, &out[i])) done = READ_FAILED;
    PyObject *result = done == READ            ? PyTuple_Pack(2, out[0], out[1])
                       : done == READ_BY_TORCH ? call_torch_op(call->operator, call->a, call->count)
                                               : raise_error();
    Py_XDECREF(out[0]);
    Py_XDECREF(out[1]);
    return result;
}

static PyObject *silu_mul_quantize(arrays *call, arguments a, Py_ssize_t count) {
    enum { GATE_UP, GLOBAL_SCALE, LAYOUT, OUT };
    nvfp4_quantize_args args = NVFP4_QUANTIZE_ARGS;
    const fused_call fused = {call,   "silu_mul_quantize", a,           count,
                              a[OUT], &args.data,          &args.scale, silu_mul_quantize_results};
    PyObject *out[2] = {NULL, NULL};
    if (!read_layout(a[LAYOUT], &args.scale_layout)) return raise_error();
    reading done = read_tensor(call, a[GATE_UP], "gate_up", NUMBERS, &args.x), also = READ;
    if (done != READ_FAILED) also = read_global_scale(call, a[GLOBAL_SCALE], &args.global_scale, &args.global_value);
    if (also > done) done = also;
    if (done == READ) done = fused_out(&fused, &args.x, args.scale_layout, out);
    if (done == READ && !run(call, nvfp4_silu_mul_quantize, &args)) done = READ_FAILED;
    return end_fused(&fused, done, out);
}

PyObject *python_silu_mul_quantize(PyObject *module, arguments a, Py_ssize_t count) {
    (void)module;
    return check_count("silu_mul_quantize", count, 4) ? with_arrays(silu_mul_quantize, leader_of(a[0], a[3]), a, count)
                                                      : NULL;
}

static nvfp4_status run_rms_norm_quantize(arrays *call, nvfp4_rms_norm_quantize_args *args) {
    if (args->x.device != NVFP4_HOST)
        return stream_of(call, args->x.device, &args->stream) ? nvfp4_rms_norm_quantize(python_context, args)
                                                              : NVFP4_DRIVER;
    args->threads = current_threads();
    PyThreadState *python = PyEval_SaveThread();
    nvfp4_status status = nvfp4_rms_norm_quantize(python_context, args);
    PyEval_RestoreThread(python);
    return status;
}

static PyObject *rms_norm_quantize(arrays *call, arguments a, Py_ssize_t count) {
    enum { X, WEIGHT, EPS, RESIDUAL, GLOBAL_SCALE, LAYOUT, OUT };
    static const tensor_argument tensors[] = {
        {X, "x", NUMBERS, offsetof(nvfp4_rms_norm_quantize_args, x)},
        {WEIGHT, "weight", NUMBERS, offsetof(nvfp4_rms_norm_quantize_args, weight)},
        {RESIDUAL, "residual", WRITTEN, offsetof(nvfp4_rms_norm_quantize_args, residual)},
    };
    nvfp4_rms_norm_quantize_args args = NVFP4_RMS_NORM_QUANTIZE_ARGS;
    const fused_call fused = {call, "rms_norm_quantize", a, count, a[OUT], &args.data, &args.scale, quantize_results};
    PyObject *out[2] = {NULL, NULL};
    if (!read_number(a[EPS], "eps", &args.eps) || !read_layout(a[LAYOUT], &args.scale_layout)) return raise_error();
    reading done = read_tensors(call, a, tensors, 3, &args), also = READ;
    if (done != READ_FAILED) also = read_global_scale(call, a[GLOBAL_SCALE], &args.global_scale, &args.global_value);
    if (also > done) done = also;
    if (done == READ) done = fused_out(&fused, &args.x, args.scale_layout, out);
    if (done == READ && run_rms_norm_quantize(call, &args) != NVFP4_OK) done = READ_FAILED;
    return end_fused(&fused, done, out);
}

PyObject *python_rms_norm_quantize(PyObject *module, arguments a, Py_ssize_t count) {
    (void)module;
    return check_count("rms_norm_quantize", count, 7) ? with_arrays(rms_norm_quantize, leader_of(a[0], a[6]), a, count)
                                                      : NULL;
}

static PyObject *dequantize(arrays *call, arguments a, Py_ssize_t count) {
    enum { DATA, SCALE, GLOBAL_SCALE, LAYOUT, OUT_DTYPE };
    nvfp4_quantize_args args = NVFP4_QUANTIZE_ARGS;
    static const tensor_argument tensors[] = {
        {DATA, "data", FORMAT, offsetof(nvfp4_quantize_args, data)},
        {SCALE, "scale", FORMAT, offsetof(nvfp4_quantize_args, scale)},
    };
    int32_t dtype;
    if (!read_layout(a[LAYOUT], &args.scale_layout) || !read_out_dtype(a[OUT_DTYPE], NVFP4_FP32, &dtype))
        return raise_error();
    reading done = read_tensors(call, a, tensors, 2, &args), also = READ;
    if (done != READ_FAILED) also = read_global_scale(call, a[GLOBAL_SCALE], &args.global_scale, &args.global_value);
    if (also > done) done = also;
    if (done == READ_BY_TORCH) return call_torch_op("dequantize", a, count);
    if (done == READ_FAILED || dequantize_result(&args.data, dtype, &args.x) != NVFP4_OK) return raise_error();
    PyObject *x;
    done = new_result(call, &args.x, &x);
    if (done == READ && run(call, nvfp4_dequantize, &args) && finish_result(call, &x)) return x;
    Py_XDECREF(x);
    return done == READ_BY_TORCH ? call_torch_op("dequantize", a, count) : raise_error();
}

PyObject *python_dequantize(PyObject *module, arguments a, Py_ssize_t count) {
    (void)module;
    return check_count("dequantize", count, 5) ? with_arrays(dequantize, a[0], a, count) : NULL;
}

static int run_amax_scale(arrays *call, nvfp4_amax_scale_args *args) {
    workspace_owner owner = {.call = call, .device = args->x.device};
    args->allocate = allocate_for;
    args->owner = &owner;
    nvfp4_status status = NVFP4_INVALID;
    if (args->x.device == NVFP4_HOST) {
        args->threads = current_threads();
        PyThreadState *python = PyEval_SaveThread();
        status = nvfp4_amax_scale(python_context, args);
        PyEval_RestoreThread(python);
    } else if (stream_of(call, args->x.device, &args->stream)) {
        status = nvfp4_amax_scale(python_context, args);
    }
    free_workspace(owner.device, &owner.memory);
    return status == NVFP4_OK;
}

static PyObject *amax_scale(arrays *call, arguments a, Py_ssize_t count) {
    enum { X, BLOCK_SCALE };
    nvfp4_amax_scale_args args = {.threads = 0};
    PyObject *scale = NULL;
    if (!read_block_scale(a[BLOCK_SCALE], &args.block_scale)) return raise_error();
    reading done = read_tensor(call, a[X], "x", NUMBERS, &args.x);
    if (done == READ && args.x.dtype == NVFP4_NONE) {
        fail(NVFP4_INVALID, "x: is missing; must be a tensor");
        done = READ_FAILED;
    }
    scale_result(&args.x, &args.scale);
    if (done == READ) done = new_result(call, &args.scale, &scale);
    if (done == READ && run_amax_scale(call, &args) && finish_result(call, &scale)) return scale;
    Py_XDECREF(scale);
    return done == READ_BY_TORCH ? call_torch_op("amax_scale", a, count) : raise_error();
}

PyObject *python_amax_scale(PyObject *module, arguments a, Py_ssize_t count) {
    (void)module;
    return check_count("amax_scale", count, 2) ? with_arrays(amax_scale, a[0], a, count) : NULL;
}

typedef nvfp4_status layout_change(nvfp4_context *context, const nvfp4_tensor *from, const nvfp4_tensor *to,
                                   void *stream);

/* Runs `change` from the leader, which `from` describes, to a new tensor, which `to` describes. */
static reading change_layout(layout_change *change, arrays *call, const nvfp4_tensor *from, nvfp4_tensor *to,
                             PyObject **result) {
    void *stream = NULL;
    reading done = new_result(call, to, result);
    if (done != READ) return done;
    if ((from->device == NVFP4_HOST || stream_of(call, from->device, &stream)) &&
        change(python_context, from, to, stream) == NVFP4_OK)
        return finish_result(call, result) ? READ : READ_FAILED;
    Py_CLEAR(*result);
    rename_argument("swizzled", "scale");
    return READ_FAILED;
}

static PyObject *swizzle(arrays *call, arguments a, Py_ssize_t count) {
    nvfp4_tensor from = {.dtype = NVFP4_NONE}, to;
    PyObject *result;
    reading done = read_tensor(call, a[0], "scale", FORMAT, &from);
    if (done == READ)
        done = swizzle_result(&from, &to) == NVFP4_OK ? change_layout(nvfp4_swizzle, call, &from, &to, &result)
                                                      : READ_FAILED;
    if (done == READ_BY_TORCH) return call_torch_op("swizzle", a, count);
    return done == READ ? result : raise_error();
}

PyObject *python_swizzle(PyObject *module, PyObject *scale) {
    (void)module;
    return with_arrays(swizzle, scale, &scale, 1);
}

static PyObject *unswizzle(arrays *call, arguments a, Py_ssize_t count) {
    enum { SCALE, ROWS, COLUMNS };
    nvfp4_tensor from = {.dtype = NVFP4_NONE}, to;
    int64_t rows, columns;
    PyObject *result;
    if (!read_integer(a[ROWS], "rows", 0, INT32_MAX, &rows) ||
        !read_integer(a[COLUMNS], "columns", 0, INT32_MAX, &columns))
        return raise_error();
    reading done = read_tensor(call, a[SCALE], "scale", FORMAT, &from);
    if (done == READ)
        done = unswizzle_result(&from, rows, columns, &to) == NVFP4_OK
                   ? change_layout(nvfp4_unswizzle, call, &from, &to, &result)
                   : READ_FAILED;
    if (done == READ_BY_TORCH) return call_torch_op("unswizzle", a, count);
    return done == READ ? result : raise_error();
}

PyObject *python_unswizzle(PyObject *module, arguments a, Py_ssize_t count) {
    (void)module;
    return check_count("unswizzle", count, 3) ? with_arrays(unswizzle, a[0], a, count) : NULL;
}
