/* The Python module nvfp4._C: the functions of nvfp4.h for Python objects.
 *
 * abi3 of Python 3.10, vectorcall throughout. Functions take the arguments of their namesakes in nvfp4/_api.py, all of
 * them and by position; defaults, keywords and documentation live there. */
#include "bindings/python/module.h"

#include "bindings/torch/ops.h"

nvfp4_context *python_context;
static PyObject *error_type;

PyObject *raise_error(void) {
    if (PyErr_Occurred()) return NULL;
    PyErr_SetString(error_type, nvfp4_last_error());
    return NULL;
}

int check_count(const char *function, Py_ssize_t count, Py_ssize_t expected) {
    if (count == expected) return 1;
    PyErr_Format(PyExc_TypeError, "_C.%s takes %zd positional arguments but %zd were given", function, expected, count);
    return 0;
}

PyObject *call_torch_op(const char *name, arguments a, Py_ssize_t count) {
    PyObject *module = PyImport_ImportModule("nvfp4.torch_ops");
    PyObject *function = module ? PyObject_GetAttrString(module, name) : NULL;
    PyObject *tuple = function ? PyTuple_New(count) : NULL;
    for (Py_ssize_t i = 0; tuple && i < count; i++) PyTuple_SetItem(tuple, i, Py_NewRef(a[i]));
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
    return PyUnicode_FromString(nvfp4_last_error());
}

#define FASTCALL(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
    {"gemm", FASTCALL(python_gemm), METH_FASTCALL, NULL},
    {"custom_kernel", FASTCALL(python_custom_kernel), METH_FASTCALL, NULL},
    {"quantize", FASTCALL(python_quantize), METH_FASTCALL, NULL},
    {"rms_norm_quantize", FASTCALL(python_rms_norm_quantize), METH_FASTCALL, NULL},
    {"silu_mul_quantize", FASTCALL(python_silu_mul_quantize), METH_FASTCALL, NULL},
    {"dequantize", FASTCALL(python_dequantize), METH_FASTCALL, NULL},
    {"amax_scale", FASTCALL(python_amax_scale), METH_FASTCALL, NULL},
    {"swizzle", python_swizzle, METH_O, NULL},
    {"unswizzle", FASTCALL(python_unswizzle), METH_FASTCALL, NULL},
    {"check_gemm", FASTCALL(python_check_gemm), METH_FASTCALL, NULL},
    {"check_custom_kernel", FASTCALL(python_check_custom_kernel), METH_FASTCALL, NULL},
    {"check_quantize", FASTCALL(python_check_quantize), METH_FASTCALL, NULL},
    {"check_rms_norm_quantize", FASTCALL(python_check_rms_norm_quantize), METH_FASTCALL, NULL},
    {"check_silu_mul_quantize", FASTCALL(python_check_silu_mul_quantize), METH_FASTCALL, NULL},
    {"check_amax_scale", FASTCALL(python_check_amax_scale), METH_FASTCALL, NULL},
    {"check_swizzle", FASTCALL(python_check_swizzle), METH_FASTCALL, NULL},
    {"plan", FASTCALL(python_plan), METH_FASTCALL, NULL},
    {"driver", python_driver, METH_NOARGS, NULL},
    {"device", python_device, METH_O, NULL},
    {"load", python_load, METH_O, NULL},
    {"set_candidate", python_set_candidate, METH_O, NULL},
    {"set_default_backend", python_set_default_backend, METH_O, NULL},
    {"override_plan", FASTCALL(python_override_plan), METH_FASTCALL, NULL},
    {"clear_overrides", python_clear_overrides, METH_NOARGS, NULL},
    {"cpu_kernel", python_cpu_kernel, METH_NOARGS, NULL},
    {"register_torch_ops", register_torch_ops, METH_NOARGS, NULL},
    {"last_error", last_error, METH_NOARGS, NULL},
#ifdef NVFP4_DUMP
    {"dump", FASTCALL(python_dump), METH_FASTCALL, NULL},
    {"placement", FASTCALL(python_placement), METH_FASTCALL, NULL},
#endif
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "nvfp4._C", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit__C(void);

PyMODINIT_FUNC PyInit__C(void) {
    if (nvfp4_create(&python_context) != NVFP4_OK) {
        PyErr_SetString(PyExc_ImportError, nvfp4_last_error());
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    error_type = PyErr_NewExceptionWithDoc(
        "nvfp4.Error", "A call that nvfp4 rejects; the message says which argument breaks which rule.",
        PyExc_ValueError, NULL);
    if (!module || !error_type || PyModule_AddObjectRef(module, "Error", error_type) != 0 ||
        PyModule_AddStringConstant(module, "version", NVFP4_VERSION) != 0 ||
        PyModule_AddStringConstant(module, "archs", nvfp4_embedded_archs()) != 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
