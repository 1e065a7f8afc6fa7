/* quantize, dequantize, amax_scale, swizzle and unswizzle: Python arguments to the conversions of nvfp4.h. */
#include "bindings/frontend.h"
#include "bindings/python/module.h"
#include "bindings/python/tensor.h"
#include "common/error.h"

/* Allocates the result that a tensor describes and reads it back; *result is NULL unless it was read. */
static reading new_result(PyObject *like, nvfp4_tensor *tensor, PyObject **result) {
    *result = allocate_like(like, tensor->ndim, tensor->shape, tensor->dtype);
    reading done = *result ? read_tensor(*result, "result", FORMAT, tensor) : READ_FAILED;
    if (done != READ) Py_CLEAR(*result);
    return done;
}

/* None, a number or a tensor of one. */
static reading read_global_scale(PyObject *object, nvfp4_quantize_args *args) {
    if (object == Py_None) return READ;
    if (is_tensor(object)) return read_tensor(object, "global_scale", NUMBERS, &args->global_scale);
    return read_number(object, "global_scale", &args->global_value) ? READ : READ_FAILED;
}

typedef nvfp4_status conversion(nvfp4_context *context, const nvfp4_quantize_args *args);

static int run(conversion *convert, nvfp4_quantize_args *args) {
    if (args->x.device != NVFP4_HOST)
        return current_stream(args->x.device, &args->stream) == 0 && convert(python_context, args) == NVFP4_OK;
    args->threads = current_threads();
    PyThreadState *python = PyEval_SaveThread();
    nvfp4_status status = convert(python_context, args);
    PyEval_RestoreThread(python);
    return status == NVFP4_OK;
}

PyObject *python_quantize(PyObject *module, arguments a, Py_ssize_t count) {
    enum { X, GLOBAL_SCALE, LAYOUT, BLOCK_SCALE, COUNT };
    (void)module;
    if (!check_count("quantize", count, COUNT)) return NULL;
    nvfp4_quantize_args args = NVFP4_QUANTIZE_ARGS;
    PyObject *data = NULL, *scale = NULL, *result = NULL;
    if (!read_layout(a[LAYOUT], &args.scale_layout) || !read_block_scale(a[BLOCK_SCALE], &args.block_scale))
        return raise_error();
    reading done = read_tensor(a[X], "x", NUMBERS, &args.x), also = READ;
    if (done != READ_FAILED) also = read_global_scale(a[GLOBAL_SCALE], &args);
    if (also > done) done = also;
    if (done == READ_BY_TORCH) return call_torch_op("quantize", a, count);
    if (done == READ_FAILED || quantize_results(&args.x, args.scale_layout, &args.data, &args.scale) != NVFP4_OK)
        return raise_error();
    done = new_result(a[X], &args.data, &data);
    if (done == READ) done = new_result(a[X], &args.scale, &scale);
    if (done == READ && run(nvfp4_quantize, &args))
        result = PyTuple_Pack(2, data, scale);
    else
        result = done == READ_BY_TORCH ? call_torch_op("quantize", a, count) : raise_error();
    Py_XDECREF(data);
    Py_XDECREF(scale);
    return result;
}

PyObject *python_dequantize(PyObject *module, arguments a, Py_ssize_t count) {
    enum { DATA, SCALE, GLOBAL_SCALE, LAYOUT, OUT_DTYPE, COUNT };
    (void)module;
    if (!check_count("dequantize", count, COUNT)) return NULL;
    nvfp4_quantize_args args = NVFP4_QUANTIZE_ARGS;
    static const tensor_argument tensors[] = {
        {DATA, "data", FORMAT, offsetof(nvfp4_quantize_args, data)},
        {SCALE, "scale", FORMAT, offsetof(nvfp4_quantize_args, scale)},
    };
    int32_t dtype;
    if (!read_layout(a[LAYOUT], &args.scale_layout) || !read_out_dtype(a[OUT_DTYPE], NVFP4_FP32, &dtype))
        return raise_error();
    reading done = read_tensors(a, tensors, 2, &args), also = READ;
    if (done != READ_FAILED) also = read_global_scale(a[GLOBAL_SCALE], &args);
    if (also > done) done = also;
    if (done == READ_BY_TORCH) return call_torch_op("dequantize", a, count);
    if (done == READ_FAILED || dequantize_result(&args.data, dtype, &args.x) != NVFP4_OK) return raise_error();
    PyObject *x;
    done = new_result(a[DATA], &args.x, &x);
    if (done == READ && run(nvfp4_dequantize, &args)) return x;
    Py_XDECREF(x);
    return done == READ_BY_TORCH ? call_torch_op("dequantize", a, count) : raise_error();
}

static int run_amax_scale(nvfp4_amax_scale_args *args) {
    workspace_owner owner = {.device = args->x.device};
    args->allocate = allocate_for;
    args->owner = &owner;
    nvfp4_status status = NVFP4_INVALID;
    if (args->x.device == NVFP4_HOST) {
        args->threads = current_threads();
        PyThreadState *python = PyEval_SaveThread();
        status = nvfp4_amax_scale(python_context, args);
        PyEval_RestoreThread(python);
    } else if (current_stream(args->x.device, &args->stream) == 0) {
        status = nvfp4_amax_scale(python_context, args);
    }
    free_workspace(owner.device, &owner.memory);
    return status == NVFP4_OK;
}

PyObject *python_amax_scale(PyObject *module, arguments a, Py_ssize_t count) {
    enum { X, BLOCK_SCALE, COUNT };
    (void)module;
    if (!check_count("amax_scale", count, COUNT)) return NULL;
    nvfp4_amax_scale_args args = {.threads = 0};
    PyObject *scale = NULL;
    if (!read_block_scale(a[BLOCK_SCALE], &args.block_scale)) return raise_error();
    reading done = read_tensor(a[X], "x", NUMBERS, &args.x);
    if (done == READ && args.x.dtype == NVFP4_NONE) {
        fail(NVFP4_INVALID, "x: is missing; must be a tensor");
        done = READ_FAILED;
    }
    scale_result(&args.x, &args.scale);
    if (done == READ) done = new_result(a[X], &args.scale, &scale);
    if (done == READ && run_amax_scale(&args)) return scale;
    Py_XDECREF(scale);
    return done == READ_BY_TORCH ? call_torch_op("amax_scale", a, count) : raise_error();
}

typedef nvfp4_status layout_change(nvfp4_context *context, const nvfp4_tensor *from, const nvfp4_tensor *to,
                                   void *stream);

/* Runs `change` from `scale` to a new tensor, which `to` describes. */
static reading change_layout(layout_change *change, PyObject *scale, const nvfp4_tensor *from, nvfp4_tensor *to,
                             PyObject **result) {
    void *stream = NULL;
    reading done = new_result(scale, to, result);
    if (done != READ) return done;
    if ((from->device == NVFP4_HOST || current_stream(from->device, &stream) == 0) &&
        change(python_context, from, to, stream) == NVFP4_OK)
        return READ;
    Py_CLEAR(*result);
    rename_argument("swizzled", "scale");
    return READ_FAILED;
}

PyObject *python_swizzle(PyObject *module, PyObject *scale) {
    (void)module;
    nvfp4_tensor from = {.dtype = NVFP4_NONE}, to;
    PyObject *result;
    reading done = read_tensor(scale, "scale", FORMAT, &from);
    if (done == READ)
        done = swizzle_result(&from, &to) == NVFP4_OK ? change_layout(nvfp4_swizzle, scale, &from, &to, &result)
                                                      : READ_FAILED;
    if (done == READ_BY_TORCH) return call_torch_op("swizzle", &scale, 1);
    return done == READ ? result : raise_error();
}

PyObject *python_unswizzle(PyObject *module, arguments a, Py_ssize_t count) {
    enum { SCALE, ROWS, COLUMNS, COUNT };
    (void)module;
    if (!check_count("unswizzle", count, COUNT)) return NULL;
    nvfp4_tensor from = {.dtype = NVFP4_NONE}, to;
    int64_t rows, columns;
    PyObject *result;
    if (!read_integer(a[ROWS], "rows", 0, INT32_MAX, &rows) ||
        !read_integer(a[COLUMNS], "columns", 0, INT32_MAX, &columns))
        return raise_error();
    reading done = read_tensor(a[SCALE], "scale", FORMAT, &from);
    if (done == READ)
        done = unswizzle_result(&from, rows, columns, &to) == NVFP4_OK
                   ? change_layout(nvfp4_unswizzle, a[SCALE], &from, &to, &result)
                   : READ_FAILED;
    if (done == READ_BY_TORCH) return call_torch_op("unswizzle", a, count);
    return done == READ ? result : raise_error();
}
