/* Shared by the files of the Python module nvfp4._C. */
#ifndef NVFP4_PYTHON_MODULE_H
#define NVFP4_PYTHON_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "bindings/frontend.h"

typedef PyObject *const *arguments; /* of a METH_FASTCALL function: no keywords, as many as its signature has */

extern nvfp4_context *python_context; /* the module's one context */

/* Raises the Python exception that is pending, else nvfp4.Error with the error of this thread. Returns NULL. */
PyObject *raise_error(void);
/* 1, or 0 with TypeError when a function was called with another number of arguments than it has. */
int check_count(const char *function, Py_ssize_t count, Py_ssize_t expected);

/* Words and numbers of a call: 1, or 0 with an error message. */
int read_number(PyObject *object, const char *name, float *value);
int read_integer(PyObject *object, const char *name, int64_t low, int64_t high, int64_t *value);
int read_name(PyObject *object, const char *name, name_parser *parse, int32_t *value);
int read_backend(PyObject *object, int32_t *backend); /* None: NVFP4_AUTO */
int read_out_dtype(PyObject *object, int32_t *dtype); /* torch's, NumPy's or a string; None: NVFP4_NONE */

/* info.c */
PyObject *python_plan(PyObject *module, arguments a, Py_ssize_t count);
PyObject *python_driver(PyObject *module, PyObject *unused);
PyObject *python_device(PyObject *module, PyObject *ordinal);
PyObject *python_clusters(PyObject *module, PyObject *ordinal);
PyObject *python_load(PyObject *module, PyObject *ordinal);
PyObject *python_set_candidate(PyObject *module, PyObject *candidate);
PyObject *python_backends(PyObject *module, PyObject *unused);
PyObject *python_set_default_backend(PyObject *module, PyObject *name);
PyObject *python_override_plan(PyObject *module, arguments a, Py_ssize_t count);
PyObject *python_clear_overrides(PyObject *module, PyObject *unused);
PyObject *python_cpu_kernel(PyObject *module, PyObject *unused);
/* operation.c */
#define FRONT_OPERATION(name) PyObject *python_##name(PyObject *module, arguments a, Py_ssize_t count);
#include "bindings/front_operations.def"
PyObject *python_check(PyObject *module, arguments a, Py_ssize_t count);
/* tables.c */
PyObject *python_operations(PyObject *module, PyObject *unused);
#ifdef NVFP4_DUMP
PyObject *python_dump(PyObject *module, arguments a, Py_ssize_t count);
PyObject *python_placement(PyObject *module, arguments a, Py_ssize_t count);
#endif

/* Calls torch's operator of this name with the same arguments, by nvfp4/torch_ops.py. */
PyObject *call_torch_op(const char *name, arguments a, Py_ssize_t count);

#endif
