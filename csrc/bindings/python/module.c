/* The Python module nvfp4._C: the functions of nvfp4.h for Python objects.
 *
 * abi3 of Python 3.10, vectorcall throughout. Operations take all their arguments, by position, in the order of their
 * table (operation.c); defaults, keywords and documentation live in nvfp4/_api.py. */
#include "bindings/python/module.h"

#include "bindings/result.h"
#include "bindings/torch/ops.h"

nvfp4_context *python_context;
static PyObject *error_type;

static int set_text(PyObject *error, const char *name, const char *text) {
    PyObject *value = *text ? PyUnicode_FromString(text) : Py_NewRef(Py_None);
    int ok = value && PyObject_SetAttrString(error, name, value) == 0;
    Py_XDECREF(value);
    return ok;
}

PyObject *raise_error(void) {
    if (PyErr_Occurred()) return NULL;
    nvfp4_error data;
    PyObject *error = PyObject_CallFunction(error_type, "s", error_message_in(&python_words));
    error_in(&python_words, &data);
    if (error && set_text(error, "argument", data.argument) && set_text(error, "value", data.value) &&
        set_text(error, "rule", data.rule))
        PyErr_SetObject(error_type, error);
    Py_XDECREF(error);
    return NULL;
}

int check_count(const char *function, Py_ssize_t count, Py_ssize_t expected) {
    if (count == expected) return 1;
    PyErr_Format(PyExc_TypeError, "_C.%s takes %zd positional arguments but %zd were given", function, expected, count);
    return 0;
}

PyObject *call_torch_op(const char *name, arguments a, Py_ssize_t count) {
    PyObject *module = PyImport_ImportModule("nvfp4.torch_ops");
    PyObject *function = module ? PyObject_GetAttrString(module, "call") : NULL;
    PyObject *tuple = function ? PyTuple_New(count + 1) : NULL;
    if (tuple) PyTuple_SetItem(tuple, 0, PyUnicode_FromString(name));
    for (Py_ssize_t i = 0; tuple && i < count; i++) PyTuple_SetItem(tuple, i + 1, Py_NewRef(a[i]));
    PyObject *result = tuple ? PyObject_CallObject(function, tuple) : NULL;
    Py_XDECREF(tuple);
    Py_XDECREF(function);
    Py_XDECREF(module);
    return result;
}

static PyObject *register_torch_ops(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    if (torch_ops_register(python_context) != NVFP4_OK) return raise_error();
    Py_RETURN_NONE;
}

static PyObject *last_error(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyUnicode_FromString(error_message_in(&python_words));
}

static PyObject *raise_last_error(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return raise_error();
}

#define FASTCALL(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
#define FRONT_OPERATION(name) {#name, FASTCALL(python_##name), METH_FASTCALL, NULL},
#include "bindings/front_operations.def"
    {"check", FASTCALL(python_check), METH_FASTCALL, NULL},
    {"operations", python_operations, METH_NOARGS, NULL},
    {"plan", FASTCALL(python_plan), METH_FASTCALL, NULL},
    {"driver", python_driver, METH_NOARGS, NULL},
    {"device", python_device, METH_O, NULL},
    {"clusters", python_clusters, METH_O, NULL},
    {"load", python_load, METH_O, NULL},
    {"set_candidate", python_set_candidate, METH_O, NULL},
    {"backends", python_backends, METH_NOARGS, NULL},
    {"set_default_backend", python_set_default_backend, METH_O, NULL},
    {"override_plan", FASTCALL(python_override_plan), METH_FASTCALL, NULL},
    {"clear_overrides", python_clear_overrides, METH_NOARGS, NULL},
    {"cpu_kernel", python_cpu_kernel, METH_NOARGS, NULL},
    {"register_torch_ops", register_torch_ops, METH_NOARGS, NULL},
    {"last_error", last_error, METH_NOARGS, NULL},
    {"raise_last_error", raise_last_error, METH_NOARGS, NULL},
#ifdef NVFP4_DUMP
    {"dump", FASTCALL(python_dump), METH_FASTCALL, NULL},
    {"placement", FASTCALL(python_placement), METH_FASTCALL, NULL},
#endif
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "nvfp4._C", .m_size = -1, .m_methods = methods};

static const char error_doc[] =
    "A call that nvfp4 rejects. The message says which argument breaks which rule; the attributes argument, value and "
    "rule are its parts (None where there is none).";

PyMODINIT_FUNC PyInit__C(void);

PyMODINIT_FUNC PyInit__C(void) {
    if (parse_results() != NVFP4_OK || nvfp4_create(&python_context) != NVFP4_OK) {
        PyErr_SetString(PyExc_ImportError, nvfp4_last_error());
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    PyObject *absent = Py_BuildValue("{sO,sO,sO}", "argument", Py_None, "value", Py_None, "rule", Py_None);
    error_type = absent ? PyErr_NewExceptionWithDoc("nvfp4.Error", error_doc, PyExc_ValueError, absent) : NULL;
    Py_XDECREF(absent);
    if (!module || !error_type || PyModule_AddObjectRef(module, "Error", error_type) != 0 ||
        PyModule_AddStringConstant(module, "version", NVFP4_VERSION) != 0 ||
        PyModule_AddStringConstant(module, "archs", nvfp4_embedded_archs()) != 0 ||
        PyModule_AddIntConstant(module, "BATCH_INVARIANT", NVFP4_BATCH_INVARIANT) != 0 ||
        PyModule_AddIntConstant(module, "CONSTANT_B", NVFP4_CONSTANT_B) != 0 ||
        PyModule_AddIntConstant(module, "CONSTANT_ENDS", NVFP4_CONSTANT_ENDS) != 0 ||
        PyModule_AddIntConstant(module, "NO_TRANSPOSE_B", NVFP4_NO_TRANSPOSE_B) != 0 ||
        PyModule_AddIntConstant(module, "BF16_PRODUCTS", NVFP4_BF16_PRODUCTS) != 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
