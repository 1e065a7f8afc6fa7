/* What the files of the Python module nvfp4._C share. */
#ifndef NVFP4_PYTHON_MODULE_H
#define NVFP4_PYTHON_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "nvfp4.h"

typedef PyObject *const *arguments; /* of a METH_FASTCALL function: no keywords, as many as its signature has */

extern nvfp4_context *python_context; /* the module's one context */

/* Raises the Python exception that is pending, else nvfp4.Error with nvfp4_last_error(). Returns NULL. */
PyObject *raise_error(void);
/* 1, or 0 with TypeError when a function was called with another number of arguments than it has. */
int check_count(const char *function, Py_ssize_t count, Py_ssize_t expected);

/* Words and numbers of a call: 1, or 0 with an error message. */
int read_number(PyObject *object, const char *name, float *value);
int read_integer(PyObject *object, const char *name, int64_t low, int64_t high, int64_t *value);
int read_layout(PyObject *object, int32_t *layout);
int read_block_scale(PyObject *object, int32_t *block_scale);
int read_backend(PyObject *object, int32_t *backend);                  /* None: NVFP4_AUTO */
int read_out_dtype(PyObject *object, int32_t if_none, int32_t *dtype); /* torch's, NumPy's or a string */

/* info.c */
PyObject *python_plan(PyObject *module, arguments a, Py_ssize_t count);
PyObject *python_driver(PyObject *module, PyObject *unused);
PyObject *python_device(PyObject *module, PyObject *ordinal);
PyObject *python_load(PyObject *module, PyObject *ordinal);
PyObject *python_set_candidate(PyObject *module, PyObject *candidate);
PyObject *python_set_default_backend(PyObject *module, PyObject *name);
PyObject *python_override_plan(PyObject *module, arguments a, Py_ssize_t count);
PyObject *python_clear_overrides(PyObject *module, PyObject *unused);
PyObject *python_cpu_kernel(PyObject *module, PyObject *unused);
/* convert.c */
PyObject *python_quantize(PyObject *module, arguments a, Py_ssize_t count);
PyObject *python_dequantize(PyObject *module, arguments a, Py_ssize_t count);
PyObject *python_rms_norm_quantize(PyObject *module, arguments a, Py_ssize_t count);
PyObject *python_silu_mul_quantize(PyObject *module, arguments a, Py_ssize_t count);
PyObject *python_amax_scale(PyObject *module, arguments a, Py_ssize_t count);
PyObject *python_swizzle(PyObject *module, PyObject *scale);
PyObject *python_unswizzle(PyObject *module, arguments a, Py_ssize_t count);
/* gemm.c */
PyObject *python_gemm(PyObject *module, arguments a, Py_ssize_t count);
PyObject *python_custom_kernel(PyObject *module, arguments a, Py_ssize_t count);
/* check.c */
PyObject *python_check_gemm(PyObject *module, arguments a, Py_ssize_t count);
PyObject *python_check_custom_kernel(PyObject *module, arguments a, Py_ssize_t count);
PyObject *python_check_quantize(PyObject *module, arguments a, Py_ssize_t count);
PyObject *python_check_rms_norm_quantize(PyObject *module, arguments a, Py_ssize_t count);
PyObject *python_check_silu_mul_quantize(PyObject *module, arguments a, Py_ssize_t count);
PyObject *python_check_amax_scale(PyObject *module, arguments a, Py_ssize_t count);
PyObject *python_check_swizzle(PyObject *module, arguments a, Py_ssize_t count);
#ifdef NVFP4_DUMP
PyObject *python_dump(PyObject *module, arguments a, Py_ssize_t count);
PyObject *python_placement(PyObject *module, arguments a, Py_ssize_t count);
#endif

/* Calls the function of this name in nvfp4/torch_ops.py with the same arguments. */
PyObject *call_torch_op(const char *name, arguments a, Py_ssize_t count);

#endif
