/* The table of operations as Python data: for the fakes of nvfp4/torch_ops.py, and for the stubs of nvfp4._C. */
#include "bindings/frontend.h"
#include "bindings/python/module.h"

/* Adds a value, whose reference it takes, to a list. 1, or 0 with an exception. */
static int append(PyObject *list, PyObject *item) {
    int ok = list && item && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
    return ok;
}

static PyObject *tensors_of(const operation *op) {
    static const char *const roles[] = {[INPUT] = "input", [OUTPUT] = "output", [IN_OUT] = "in_out"};
    PyObject *list = PyList_New(0);
    for (int32_t i = 0; list && i < op->tensor_count; i++) {
        const operation_tensor *t = &op->tensors[i];
        int listed = 0;
        for (int32_t j = 0; j < op->list_count; j++) listed |= op->lists[j].tensor == i;
        const int numbers = t->holds != HOLDS_VALUES && t->holds != HOLDS_SCALES;
        PyObject *one = Py_BuildValue("{ss,ss,sN,sN,sN}", "name", t->name, "role", roles[t->role], "optional",
                                      PyBool_FromLong(t->optional), "numbers", PyBool_FromLong(numbers), "list",
                                      PyBool_FromLong(listed));
        if (!append(list, one)) Py_CLEAR(list);
    }
    return list;
}

static PyObject *scalars_of(const operation *op) {
    static const char *const kinds[SCALAR_KINDS] = {
        [SCALAR_FLOAT] = "float",
        [SCALAR_LAYOUT] = "layout",
        [SCALAR_BLOCK_SCALE] = "block_scale",
        [SCALAR_ACTIVATION] = "activation",
        [SCALAR_BACKEND] = "backend",
        [SCALAR_FLAGS] = "flags",
        [SCALAR_SIZE] = "size",
    };
    PyObject *list = PyList_New(0);
    for (int32_t i = 0; list && i < op->scalar_count; i++) {
        const operation_scalar *s = &op->scalars[i];
        PyObject *one =
            Py_BuildValue("{ss,ss,sz,sz}", "name", s->name, "kind", kinds[s->kind], "stands_for",
                          s->stands_for ? op->tensors[s->stands_for - 1].name : NULL, "default", s->schema_default);
        if (!append(list, one)) Py_CLEAR(list);
    }
    return list;
}

static const char *dtype_name_of(const operation_result *r) {
    if (r->dtype == DTYPE_OF_FIRST) return "first";
    return r->dtype == DTYPE_OF_CALLER ? "caller" : nvfp4_dtype_name((nvfp4_dtype)r->dtype);
}

/* The scalar that chooses between a result's two shapes. */
static const char *condition_of(const operation *op, const operation_result *r) {
    for (int32_t i = 0; r->flags_mask && i < op->scalar_count; i++)
        if (op->scalars[i].kind != SCALAR_SIZE && op->scalars[i].offset == r->flags_offset) return op->scalars[i].name;
    return NULL;
}

static PyObject *results_of(const operation *op) {
    PyObject *list = PyList_New(0);
    for (int32_t i = 0; list && i < op->result_count; i++) {
        const operation_result *r = &op->results[i];
        PyObject *one =
            Py_BuildValue("{ss,ss,ss,ss,sz,sz,sI}", "name", op->tensors[r->tensor].name, "dtype", dtype_name_of(r),
                          "default_dtype", nvfp4_dtype_name(r->default_dtype), "shape", r->shape.sizes, "flag_shape",
                          r->flag_shape.sizes, "flags", condition_of(op, r), "flags_mask", r->flags_mask);
        if (!append(list, one)) Py_CLEAR(list);
    }
    return list;
}

/* [{"name": "gemm", "tensors": [...], "scalars": [...], "results": [...], "given": "new_or_given"}, ...] */
PyObject *python_operations(PyObject *module, PyObject *unused) {
    static const char *const given[] = {
        [RESULTS_NEW] = "new", [RESULTS_NEW_OR_GIVEN] = "new_or_given", [RESULTS_GIVEN] = "given"};
    (void)module;
    (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < FRONT_OPERATION_COUNT; i++) {
        const operation *op = front_operations[i];
        PyObject *one = Py_BuildValue("{ss,sN,sN,sN,ss}", "name", op->name, "tensors", tensors_of(op), "scalars",
                                      scalars_of(op), "results", results_of(op), "given", given[op->given]);
        if (!append(list, one)) Py_CLEAR(list);
    }
    return list;
}
