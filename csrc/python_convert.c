/* quantize, dequantize, swizzle and unswizzle: Python arguments to the conversions of nvfp4.h. */
#include "error.h"
#include "python_module.h"
#include "python_tensor.h"

static int64_t round_up(int64_t x, int64_t multiple) {
    return (x + multiple - 1) / multiple * multiple;
}

static int check_matrix_rank(const char *name, const char *shapes, const nvfp4_tensor *t) {
    if (t->ndim == 2 || t->ndim == 3) return 1;
    fail(NVFP4_INVALID, "%s: has %d dimensions; must have 2 or 3 (%s)", name, t->ndim, shapes);
    return 0;
}

/* Allocates a result and reads it back; *result is NULL unless it was read. */
static reading new_result(PyObject *like, int ndim, const int64_t *shape, int32_t dtype, const char *name,
                          nvfp4_tensor *tensor, PyObject **result) {
    *result = allocate_like(like, ndim, shape, dtype);
    reading done = *result ? read_tensor(*result, name, FORMAT, tensor) : READ_FAILED;
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
    nvfp4_status status;
    args->threads = current_threads();
    if (args->x.device == NVFP4_HOST) {
        Py_BEGIN_ALLOW_THREADS status = convert(python_context, args);
        Py_END_ALLOW_THREADS
    } else {
        if (current_queue(args->x.device, &args->queue) != 0) return 0;
        status = convert(python_context, args);
    }
    return status == NVFP4_OK;
}

PyObject *python_quantize(PyObject *module, arguments a, Py_ssize_t count) {
    enum { X, GLOBAL_SCALE, LAYOUT, COUNT };
    (void)module;
    if (!check_count("quantize", count, COUNT)) return NULL;
    nvfp4_quantize_args args = NVFP4_QUANTIZE_ARGS;
    PyObject *data = NULL, *scale = NULL, *result = NULL;
    reading done = read_tensor(a[X], "x", NUMBERS, &args.x), also = READ;
    if (done != READ_FAILED) also = read_global_scale(a[GLOBAL_SCALE], &args);
    if (also > done) done = also;
    if (done == READ_BY_TORCH) return call_torch_op("quantize", a, count);
    if (done == READ_FAILED || !read_layout(a[LAYOUT], &args.scale_layout) ||
        !check_matrix_rank("x", "[R, K] or [L, R, K]", &args.x))
        return raise_error();

    int last = args.x.ndim - 1, rows = args.x.ndim - 2;
    int64_t data_shape[3], scale_shape[3];
    for (int i = 0; i <= last; i++) data_shape[i] = scale_shape[i] = args.x.shape[i];
    data_shape[last] = args.x.shape[last] / 2;
    scale_shape[last] = args.x.shape[last] / 16;
    if (args.scale_layout == NVFP4_128X4) {
        scale_shape[rows] = round_up(scale_shape[rows], 128);
        scale_shape[last] = round_up(scale_shape[last], 4);
    }
    done = new_result(a[X], args.x.ndim, data_shape, NVFP4_UINT8, "data", &args.data, &data);
    if (done == READ) done = new_result(a[X], args.x.ndim, scale_shape, NVFP4_E4M3, "scale", &args.scale, &scale);
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
    reading done = read_tensors(a, tensors, 2, &args), also = READ;
    if (done != READ_FAILED) also = read_global_scale(a[GLOBAL_SCALE], &args);
    if (also > done) done = also;
    if (done == READ_BY_TORCH) return call_torch_op("dequantize", a, count);
    int32_t dtype;
    if (done == READ_FAILED || !read_layout(a[LAYOUT], &args.scale_layout) ||
        !read_out_dtype(a[OUT_DTYPE], NVFP4_FP32, &dtype) ||
        !check_matrix_rank("data", "[R, K/2] or [L, R, K/2]", &args.data))
        return raise_error();

    int64_t shape[3];
    for (int i = 0; i < args.data.ndim; i++) shape[i] = args.data.shape[i];
    shape[args.data.ndim - 1] *= 2;
    PyObject *x;
    done = new_result(a[DATA], args.data.ndim, shape, dtype, "x", &args.x, &x);
    if (done == READ && run(nvfp4_dequantize, &args)) return x;
    Py_XDECREF(x);
    return done == READ_BY_TORCH ? call_torch_op("dequantize", a, count) : raise_error();
}

typedef nvfp4_status layout_change(nvfp4_context *context, const nvfp4_tensor *from, const nvfp4_tensor *to,
                                   void *queue);

/* Runs `change` from `scale` to a new tensor of this shape and the same dtype. */
static reading change_layout(layout_change *change, PyObject *scale, const nvfp4_tensor *from, int ndim,
                             const int64_t *shape, PyObject **result) {
    nvfp4_tensor to;
    void *queue = NULL;
    reading done = new_result(scale, ndim, shape, from->dtype, "result", &to, result);
    if (done != READ) return done;
    if ((from->device == NVFP4_HOST || current_queue(from->device, &queue) == 0) &&
        change(python_context, from, &to, queue) == NVFP4_OK)
        return READ;
    Py_CLEAR(*result);
    rename_argument("swizzled", "scale");
    return READ_FAILED;
}

PyObject *python_swizzle(PyObject *module, PyObject *scale) {
    (void)module;
    nvfp4_tensor from = {.dtype = NVFP4_NONE};
    PyObject *result = NULL;
    reading done = read_tensor(scale, "scale", FORMAT, &from);
    if (done == READ && !check_matrix_rank("scale", "[R, S] or [L, R, S]", &from)) done = READ_FAILED;
    if (done == READ) {
        int last = from.ndim - 1;
        int64_t shape[3];
        for (int i = 0; i <= last; i++) shape[i] = from.shape[i];
        shape[last - 1] = round_up(shape[last - 1], 128);
        shape[last] = round_up(shape[last], 4);
        done = change_layout(nvfp4_swizzle, scale, &from, from.ndim, shape, &result);
    }
    if (done == READ_BY_TORCH) return call_torch_op("swizzle", &scale, 1);
    return done == READ ? result : raise_error();
}

PyObject *python_unswizzle(PyObject *module, arguments a, Py_ssize_t count) {
    enum { SCALE, ROWS, COLUMNS, COUNT };
    (void)module;
    if (!check_count("unswizzle", count, COUNT)) return NULL;
    nvfp4_tensor from = {.dtype = NVFP4_NONE};
    int64_t rows, columns, have = 1;
    PyObject *result = NULL;
    reading done = read_tensor(a[SCALE], "scale", FORMAT, &from);
    if (done == READ_BY_TORCH) return call_torch_op("unswizzle", a, count);
    if (done == READ_FAILED || !read_integer(a[ROWS], "rows", 0, INT32_MAX, &rows) ||
        !read_integer(a[COLUMNS], "columns", 0, INT32_MAX, &columns))
        return raise_error();

    int batched = from.ndim == 3;
    int64_t l = batched ? from.shape[0] : 1;
    for (int i = batched; i < from.ndim; i++) have *= from.shape[i];
    if (have != round_up(rows, 128) * round_up(columns, 4)) {
        fail(NVFP4_INVALID, "scale: has %lld bytes%s; the 128x4 layout of %lld rows and %lld columns has %lld",
             (long long)have, batched ? " a batch" : "", (long long)rows, (long long)columns,
             (long long)(round_up(rows, 128) * round_up(columns, 4)));
        return raise_error();
    }
    const int64_t shape[3] = {l, rows, columns};
    done = change_layout(nvfp4_unswizzle, a[SCALE], &from, 2 + batched, shape + !batched, &result);
    if (done == READ_BY_TORCH) return call_torch_op("unswizzle", a, count);
    return done == READ ? result : raise_error();
}
