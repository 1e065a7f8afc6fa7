/* Calls of operations from Python: their tables say how the arguments are read, which results are made and what runs.
 *
 * A function's arguments, by position: the tensors that it reads (a number or a tensor where a scalar may stand for the
 * tensor), the other scalars, `out` where results may be given (a tuple for several), out_dtype where the caller names
 * the dtype of a result. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bindings/python/module.h"
#include "bindings/python/tensor.h"
#include "bindings/result.h"
#include "common/float_mode.h"

/* ---- reading ---- */

static int read_named(PyObject *object, const operation_scalar *scalar, int32_t *value) {
    if (scalar->kind == SCALAR_BACKEND && object == Py_None) {
        *value = NVFP4_AUTO;
        return 1;
    }
    return read_name(object, scalar->name, parser_of(scalar->kind), value);
}

static int read_scalar(PyObject *object, const operation *op, const operation_scalar *scalar, front_call *call) {
    void *to = scalar_to_fill(scalar, call);
    const char *name = scalar_name(op, scalar);
    int64_t flags;
    switch (scalar->kind) {
    case SCALAR_FLOAT:
        return read_number(object, name, to);
    case SCALAR_SIZE:
        return read_integer(object, name, 0, INT32_MAX, to);
    case SCALAR_FLAGS:
        if (!read_integer(object, name, 0, UINT32_MAX, &flags)) return 0;
        *(uint32_t *)to = (uint32_t)flags;
        return 1;
    default:
        return read_named(object, scalar, to);
    }
}

/* Tells whether a caller could expect a gradient for a tensor. Data and scales of the format never have one. */
static use use_of(const operation_tensor *row) {
    if (row->role != INPUT) return WRITTEN;
    return row->holds == HOLDS_VALUES || row->holds == HOLDS_SCALES ? FORMAT : NUMBERS;
}

static void worsen(reading *done, reading also) {
    if (also > *done) *done = also;
}

/* ---- lists of tensors ---- */

/* The elements of a list as a tuple, a new reference: the list may make them when they are asked for, and another
 * thread may change it during the call. */
static PyObject *snapshot(PyObject *list) {
    const Py_ssize_t count = PySequence_Size(list);
    PyObject *elements = count < 0 ? NULL : PyTuple_New(count);
    for (Py_ssize_t i = 0; i < count && elements; i++) {
        PyObject *element = PySequence_GetItem(list, i);
        if (!element || PyTuple_SetItem(elements, i, element)) Py_CLEAR(elements);
    }
    return elements;
}

/* Torch tensors or NumPy arrays, whose memory needs no export that keeps it alive. A tensor that only torch can read
 * makes torch read the call. */
static reading read_list(arrays *tensors, PyObject *list, const operation *op, int32_t which, front_call *call) {
    const operation_tensor *row = &op->tensors[op->lists[which].tensor];
    PyObject *elements = call->elements[which] = snapshot(list);
    if (!elements) return READ_FAILED;
    const Py_ssize_t count = PyTuple_Size(elements);
    reading done = start_list(op, which, count, call) == NVFP4_OK ? READ : READ_FAILED;
    for (Py_ssize_t i = 0; i < count && done == READ; i++) {
        nvfp4_tensor t = {.dtype = NVFP4_NONE};
        const int exports = tensors->count;
        done = read_tensor(tensors, PyTuple_GetItem(elements, i), row, use_of(row), &t);
        if (done != READ) break;
        if (tensors->count != exports || t.dtype == NVFP4_NONE) {
            CONTRADICTS(row->name, ("element %zd of the list is no torch.Tensor or numpy.ndarray", i));
            done = READ_FAILED;
        } else if (add_to_list(op, which, i, &t, call) != NVFP4_OK) {
            done = READ_FAILED;
        }
    }
    return done;
}

/* The arguments that are no results; *next: the index behind them. Scalars first: torch has no part in them. */
static reading read_inputs(arrays *tensors, const operation *op, arguments a, front_call *call, int *next) {
    const operation_scalar *numbers[OPERATION_MAX_TENSORS] = {NULL}; /* a tensor's, where the argument is a number */
    int at = 0;
    for (int32_t t = 0; t < op->tensor_count; t++) at += is_front_input(op, t);
    for (int32_t i = 0; i < op->scalar_count; i++) {
        const operation_scalar *scalar = &op->scalars[i];
        if (scalar->stands_for)
            numbers[scalar->stands_for - 1] = scalar;
        else if (!read_scalar(a[at++], op, scalar, call))
            return READ_FAILED;
    }
    *next = at;
    reading done = READ;
    at = 0;
    for (int32_t t = 0; t < op->tensor_count && done != READ_FAILED; t++) {
        if (!is_front_input(op, t)) continue;
        PyObject *object = a[at++];
        if (object == Py_None) continue; /* an absent tensor, as the defaults have it */
        const int32_t list = PyList_Check(object) || PyTuple_Check(object) ? list_of(op, t) : -1;
        if (list >= 0)
            worsen(&done, read_list(tensors, object, op, list, call));
        else if (numbers[t] && !is_tensor(object))
            worsen(&done, read_scalar(object, op, numbers[t], call) ? READ : READ_FAILED);
        else
            worsen(&done, read_tensor(tensors, object, &op->tensors[t], use_of(&op->tensors[t]),
                                      tensor_to_fill(op, t, &call->args)));
    }
    return done;
}

/* ---- results ---- */

typedef struct results {
    PyObject *object[OPERATION_MAX_TENSORS]; /* of each result, a new reference */
    int32_t made;                            /* 1: not `out` */
} results;

static void release_results(results *r, int32_t count) {
    for (int32_t i = 0; i < count; i++) Py_CLEAR(r->object[i]);
}

/* The tuple that `out` of several results has to be: "data and scale". */
static int check_tuple(PyObject *out, const operation *op) {
    char type[64], names[96] = "";
    size_t length = 0;
    for (int32_t i = 0; i < op->result_count && length < sizeof names; i++)
        length += (size_t)snprintf(names + length, sizeof names - length, "%s%s",
                                   i == 0                      ? ""
                                   : i == op->result_count - 1 ? " and "
                                                               : ", ",
                                   op->tensors[op->results[i].tensor].name);
    if (!PyTuple_Check(out))
        REJECT("out", ("is of type %s", describe((PyObject *)Py_TYPE(out), "__name__", type, sizeof type)),
               ("must be a tuple of %s", names));
    else if (PyTuple_Size(out) != op->result_count)
        REJECT("out", ("has %zd elements", PyTuple_Size(out)), ("must be a tuple of %s", names));
    else
        return 1;
    return 0;
}

static reading read_out(arrays *tensors, const operation *op, PyObject *out, front_call *call, results *r) {
    reading done = READ;
    if (op->result_count > 1 && !check_tuple(out, op)) return READ_FAILED;
    for (int32_t i = 0; i < op->result_count && done != READ_FAILED; i++) {
        const int32_t t = op->results[i].tensor;
        nvfp4_tensor *tensor = tensor_to_fill(op, t, &call->args);
        r->object[i] = Py_NewRef(op->result_count > 1 ? PyTuple_GetItem(out, i) : out);
        worsen(&done, read_tensor(tensors, r->object[i], &op->tensors[t], WRITTEN, tensor));
        if (done == READ && op->results[i].dtype == DTYPE_OF_CALLER && call->out_dtype != NVFP4_NONE &&
            call->out_dtype != (int32_t)tensor->dtype) {
            CONTRADICTS("out_dtype", ("is %s but out has %s", nvfp4_dtype_name((nvfp4_dtype)call->out_dtype),
                                      nvfp4_dtype_name(tensor->dtype)));
            done = READ_FAILED;
        }
    }
    return done;
}

static reading make_results(arrays *tensors, const operation *op, front_call *call, results *r) {
    reading done = READ;
    for (int32_t i = 0; i < op->result_count && done == READ; i++) {
        const int32_t t = op->results[i].tensor;
        nvfp4_tensor *tensor = tensor_to_fill(op, t, &call->args);
        done = new_result(tensors, tensor, &r->object[i]);
        if (done == READ && check_new_result(op, i, call) != NVFP4_OK) done = READ_FAILED;
    }
    return done;
}

/* Makes the value that the function returns: a tensor, or a tuple of several. */
static PyObject *finish_results(arrays *tensors, const operation *op, results *r) {
    for (int32_t i = 0; i < op->result_count && r->made; i++)
        if (!finish_result(tensors, &r->object[i])) return NULL;
    if (op->result_count == 1) return Py_NewRef(r->object[0]);
    PyObject *tuple = PyTuple_New(op->result_count);
    for (int32_t i = 0; tuple && i < op->result_count; i++) PyTuple_SetItem(tuple, i, Py_NewRef(r->object[i]));
    return tuple;
}

/* ---- the call ---- */

/* Enqueues the call, or on the host computes it. */
static nvfp4_status run(arrays *tensors, const checked_call *c, prepared_call *prepared, nvfp4_call *how) {
    const int32_t device = tensor_at(c->op, 0, c->args)->device;
    workspace_owner owner = {.call = tensors, .device = device};
    nvfp4_status status = NVFP4_DRIVER;
    how->allocate = allocate_for;
    how->owner = &owner;
    if (device == NVFP4_HOST) {
        how->threads = current_threads();
        PyThreadState *python = PyEval_SaveThread();
        status = operation_run(python_context, c, prepared);
        PyEval_RestoreThread(python);
    } else if (stream_of(tensors, device, &how->stream)) {
        status = operation_run(python_context, c, prepared);
    }
    free_workspace(device, &owner.memory);
    return status;
}

/* Reads the arguments and prepares the call: everything up to the allocation of results. */
static reading prepare(arrays *tensors, const operation *op, arguments a, front_call *call, prepared_call *prepared,
                       results *r) {
    int next;
    op->defaults(&call->args);
    call->out_dtype = NVFP4_NONE;
    memset(call->lists, 0, sizeof call->lists);
    memset(call->elements, 0, sizeof call->elements);
    reading done = read_inputs(tensors, op, a, call, &next);
    if (done == READ_FAILED) return done;
    PyObject *out = op->given == RESULTS_NEW_OR_GIVEN ? a[next++] : Py_None;
    if (takes_out_dtype(op) && !read_out_dtype(a[next], &call->out_dtype)) return READ_FAILED;
    r->made = out == Py_None;
    if (!r->made) worsen(&done, read_out(tensors, op, out, call, r));
    if (done != READ) return done;
    for (int32_t i = 0; i < op->result_count && r->made; i++)
        if (describe_result(op, i, call) != NVFP4_OK) return READ_FAILED;
    const checked_call c = {op, &call->args};
    if (op->adapt && op->adapt(&call->args) != NVFP4_OK) return READ_FAILED;
    return operation_prepare(python_context, &c, prepared) == NVFP4_OK ? READ : READ_FAILED;
}

static PyObject *run_with_tensors(arrays *tensors, const operation *op, arguments a, Py_ssize_t count) {
    front_call call;
    prepared_call prepared;
    results r = {.made = 0};
    PyObject *result = NULL;
    reading done = prepare(tensors, op, a, &call, &prepared, &r);
    if (done == READ && r.made) done = make_results(tensors, op, &call, &r);
    if (done == READ) {
        const checked_call c = {op, &call.args};
        if (run(tensors, &c, &prepared, &call.args.call) == NVFP4_OK)
            result = op->given == RESULTS_GIVEN ? Py_NewRef(tensors->leader) : finish_results(tensors, op, &r);
    }
    release_results(&r, op->result_count);
    free_lists(&call);
    for (int i = 0; i < OPERATION_MAX_LISTS; i++) Py_XDECREF(call.elements[i]);
    if (done == READ_BY_TORCH) return call_torch_op(op->name, a, count);
    return result ? result : raise_error();
}

/* The library of the result makes what the call allocates: that of `out` where it is given, else of the first tensor.
 */
static PyObject *leader_of(const operation *op, arguments a, Py_ssize_t count) {
    if (op->given == RESULTS_GIVEN) return a[count - 1];
    if (op->given != RESULTS_NEW_OR_GIVEN) return a[0];
    PyObject *out = a[count - 1 - takes_out_dtype(op)];
    if (out == Py_None) return a[0];
    if (op->result_count == 1) return out;
    return PyTuple_Check(out) && PyTuple_Size(out) == op->result_count ? PyTuple_GetItem(out, 0) : a[0];
}

static Py_ssize_t argument_count(const operation *op) {
    Py_ssize_t count = (op->given == RESULTS_NEW_OR_GIVEN) + takes_out_dtype(op);
    for (int32_t t = 0; t < op->tensor_count; t++) count += is_front_input(op, t);
    for (int32_t i = 0; i < op->scalar_count; i++) count += !op->scalars[i].stands_for;
    return count;
}

static PyObject *call_operation(const operation *op, arguments a, Py_ssize_t count) {
    if (!check_count(op->name, count, argument_count(op))) return NULL;
    arrays tensors = {.leader = leader_of(op, a, count)};
    const float_mode before = set_float_mode(OWN_FLOAT_MODE);
    PyObject *result = run_with_tensors(&tensors, op, a, count);
    set_float_mode(before);
    release_arrays(&tensors);
    return result;
}

#define FRONT_OPERATION(name)                                                                                          \
    PyObject *python_##name(PyObject *module, arguments a, Py_ssize_t count) {                                         \
        (void)module;                                                                                                  \
        return call_operation(&operation_##name, a, count);                                                            \
    }
#include "bindings/front_operations.def"

/* ---- checks without memory, for the fakes of nvfp4/torch_ops.py ---- */

/* (dtype, device, shape, stride), or None. A tensor without memory gets an address of its own, far from any other, so
 * that the rules about addresses hold. */
static int read_described(PyObject *object, const operation *op, int index, nvfp4_tensor *t) {
    const char *dtype;
    PyObject *shape, *stride;
    if (object == Py_None) return 1;
    if (!PyArg_ParseTuple(object, "siO!O!", &dtype, &t->device, &PyTuple_Type, &shape, &PyTuple_Type, &stride))
        return 0;
    for (int32_t d = NVFP4_UINT8; d <= NVFP4_INT64; d++)
        if (strcmp(dtype, nvfp4_dtype_name((nvfp4_dtype)d)) == 0) t->dtype = (nvfp4_dtype)d;
    if (t->dtype == NVFP4_NONE)
        t->dtype = (nvfp4_dtype)(NVFP4_INT64 + 1); /* present, and of no dtype that a rule allows */
    t->data = (void *)((uintptr_t)(index + 1) << 59);
    if (PyTuple_Size(shape) > NVFP4_MAX_DIMS) {
        REJECT(op->tensors[index].name, ("has %zd dimensions", PyTuple_Size(shape)),
               ("must have at most %d", NVFP4_MAX_DIMS));
        return 0;
    }
    t->ndim = (int32_t)PyTuple_Size(shape);
    for (int i = 0; i < t->ndim; i++) {
        t->shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        t->stride[i] = PyLong_AsLongLong(PyTuple_GetItem(stride, i));
    }
    return !PyErr_Occurred();
}

/* A list of these in place of a tensor. */
static int read_described_list(PyObject *list, const operation *op, int index, front_call *call) {
    const int32_t which = list_of(op, index);
    if (which < 0) {
        PyErr_SetString(PyExc_TypeError, "_C.check: no list may stand for this tensor");
        return 0;
    }
    const Py_ssize_t count = PyList_Size(list);
    if (start_list(op, which, count, call) != NVFP4_OK) return 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        nvfp4_tensor t = {.dtype = NVFP4_NONE};
        if (!read_described(PyList_GetItem(list, i), op, index, &t)) return 0;
        if (add_to_list(op, which, i, &t, call) != NVFP4_OK) return 0;
    }
    return 1;
}

/* Tensors that are read, all scalars, results: the order of torch's schema. */
static int read_described_call(const operation *op, arguments a, front_call *call) {
    int at = 0;
    op->defaults(&call->args);
    for (int32_t t = 0; t < op->tensor_count; t++) {
        nvfp4_tensor *tensor = tensor_to_fill(op, t, &call->args);
        if (!is_front_input(op, t)) continue;
        PyObject *object = a[at++];
        if (!(PyList_Check(object) ? read_described_list(object, op, t, call) : read_described(object, op, t, tensor)))
            return 0;
        if (op->tensors[t].allows & READS_BY_CHECK) tensor->data = NULL;
    }
    for (int32_t i = 0; i < op->scalar_count; i++) {
        const operation_scalar *scalar = &op->scalars[i];
        if (!read_scalar(a[at++], op, scalar, call)) return 0;
        /* A rule may ask for the value of a tensor that a number can stand for. */
        if (scalar->stands_for) tensor_to_fill(op, scalar->stands_for - 1, &call->args)->data = NULL;
    }
    for (int32_t t = 0; t < op->tensor_count; t++)
        if (!is_front_input(op, t) && !read_described(a[at++], op, t, tensor_to_fill(op, t, &call->args))) return 0;
    return 1;
}

/* A program may be traced for a device that this machine lacks: only broken rules are errors. */
static int check_described(const operation *op, arguments a, front_call *call) {
    prepared_call ignored;
    const checked_call c = {op, &call->args};
    if (!read_described_call(op, a, call)) return 0;
    nvfp4_status status = op->adapt ? op->adapt(&call->args) : NVFP4_OK;
    if (!status) status = operation_check(&c, &ignored);
    /* A product may have a rule that its planner knows. A tensor without memory is on no device. */
    const int is_product = !op->planners[ON_HOST], has_device = tensor_at(op, 0, &call->args)->device >= NVFP4_HOST;
    if (!status && is_product && has_device) status = op->plan(python_context, &c, &ignored);
    return status != NVFP4_INVALID;
}

/* check(name, arguments...) */
PyObject *python_check(PyObject *module, arguments a, Py_ssize_t count) {
    (void)module;
    const char *name = count ? PyUnicode_AsUTF8AndSize(a[0], NULL) : NULL;
    const operation *op = NULL;
    for (int i = 0; name && i < FRONT_OPERATION_COUNT; i++)
        if (strcmp(name, front_operations[i]->name) == 0) op = front_operations[i];
    if (!op) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "_C.check: the first argument must name an operation");
        return NULL;
    }
    if (!check_count("check", count, 1 + op->tensor_count + op->scalar_count)) return NULL;
    front_call call;
    memset(call.lists, 0, sizeof call.lists);
    const int valid = check_described(op, a + 1, &call);
    free_lists(&call);
    if (!valid) return raise_error();
    Py_RETURN_NONE;
}
