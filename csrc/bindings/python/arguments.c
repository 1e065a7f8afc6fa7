/* The words and numbers of a Python call. */
#include <math.h>
#include <string.h>

#include "bindings/frontend.h"
#include "bindings/python/module.h"
#include "bindings/python/tensor.h"
#include "common/error.h"

static int reject_type(PyObject *object, const char *name, const char *rule) {
    char type[64];
    PyErr_Clear();
    REJECT(name, ("is of type %s", describe((PyObject *)Py_TYPE(object), "__name__", type, sizeof type)),
           ("must be %s", rule));
    return 0;
}

int read_number(PyObject *object, const char *name, float *value) {
    static const char rule[] = "a real number";
    double number;
    if (PyFloat_Check(object)) {
        number = PyFloat_AsDouble(object);
    } else if (PyBool_Check(object) || PyComplex_Check(object) || is_tensor(object)) {
        return reject_type(object, name, rule);
    } else if (PyLong_Check(object) || PyObject_HasAttrString(object, "__float__")) { /* NumPy's scalars too */
        number = PyFloat_AsDouble(object);
        if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_OverflowError)) return reject_type(object, name, rule);
        if (PyErr_Occurred()) number = 1e300;
        PyErr_Clear();
    } else {
        return reject_type(object, name, rule);
    }
    *value = (float)number;
    if (isinf(*value) && !isinf(number)) {
        CONTRADICTS(name, ("is beyond the largest float32, 3.4e38"));
        return 0;
    }
    return 1;
}

int read_integer(PyObject *object, const char *name, int64_t low, int64_t high, int64_t *value) {
    if (PyBool_Check(object) || !PyIndex_Check(object)) return reject_type(object, name, "an integer");
    PyObject *index = PyNumber_Index(object);
    int overflow = 0;
    *value = index ? PyLong_AsLongLongAndOverflow(index, &overflow) : 0;
    Py_XDECREF(index);
    if (!index) return reject_type(object, name, "an integer");
    if (!overflow && *value >= low && *value <= high) return 1;
    char text[64];
    REJECT(name, ("is %s", describe(object, NULL, text, sizeof text)),
           ("must be between %lld and %lld", (long long)low, (long long)high));
    return 0;
}

int read_name(PyObject *object, const char *name, name_parser *parse, int32_t *value) {
    Py_ssize_t size = 0;
    const char *text = PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, &size) : NULL;
    if (!text) return reject_type(object, name, "a string");
    if (strlen(text) != (size_t)size) {
        REJECT(name, ("contains a null character"), ("must be a name"));
        return 0;
    }
    return parse(text, value) == NVFP4_OK;
}

int read_backend(PyObject *object, int32_t *backend) {
    *backend = NVFP4_AUTO;
    return object == Py_None || read_name(object, "backend", backend_from_name, backend);
}

/* torch.float16 says "torch.float16", numpy.float16 has a __name__, numpy.dtype("float16") says "float16". */
int read_out_dtype(PyObject *object, int32_t *dtype) {
    static PyObject *latest; /* holds a reference, so that equal pointers are equal objects */
    static int32_t latest_dtype;
    char text[64];
    *dtype = object == latest ? latest_dtype : NVFP4_NONE;
    if (object == latest || object == Py_None) return 1;
    describe(object, PyObject_HasAttrString(object, "__name__") ? "__name__" : NULL, text, sizeof text);
    const char *prefix = "torch.";
    size_t skip = strncmp(text, prefix, strlen(prefix)) == 0 ? strlen(prefix) : 0;
    if (dtype_from_name("out_dtype", text + skip, dtype) != NVFP4_OK) return 0;
    PyObject *previous = latest;
    latest = Py_NewRef(object);
    latest_dtype = *dtype;
    Py_XDECREF(previous);
    return 1;
}
