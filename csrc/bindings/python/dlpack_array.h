/* Arrays of any library, read by __dlpack__ (array API standard; DLPack 1.x and before), and results for it.
 *
 *   reading       the capsule that __dlpack__ returned is not consumed: it keeps the memory until it is released
 *   host results  a host_result while they are computed, then what the library's from_dlpack makes of it
 *   GPU results   what the library's empty() makes: from its allocator, on its current stream
 *
 * Failures leave a message in nvfp4_last_error(), those of memory and of an interrupt a Python exception. */
#ifndef NVFP4_PYTHON_DLPACK_ARRAY_H
#define NVFP4_PYTHON_DLPACK_ARRAY_H

#include "bindings/dlpack.h"
#include "bindings/python/tensor.h"

/* 1 if the type of the object has __dlpack__ and __dlpack_device__. */
int is_dlpack_array(PyObject *object);

/* The dtype, device, shape and strides of a DLPack tensor, in this project's words. 1, or 0 with an error message. */
int from_dl_tensor(PyObject *object, const operation_tensor *row, const dl_tensor *d, nvfp4_tensor *t);
reading reject_dtype(const operation_tensor *row, const char *dtype);

/* Fills *t from what __dlpack__ returns; *capsule keeps its memory: a new reference. On a GPU the library makes
 * `stream_of(call)`'s stream wait for its own work; that is asked for a GPU only. */
reading read_dlpack(arrays *call, PyObject *object, const operation_tensor *row, use use, nvfp4_tensor *t,
                    PyObject **capsule);

/* The stream that the library of an array enqueues its own work on: by the exchange table of its type, else by
 * <library>.cuda.get_current_stream(device).ptr (CuPy's), else NULL, the legacy default stream. */
int library_stream(PyObject *array, int32_t device, void **stream);
const dl_exchange_table *exchange_table(PyObject *type);

/* The object that a result is written into (see above), a new reference. */
PyObject *allocate_host_result(PyObject *like, int ndim, const int64_t *shape, int32_t dtype);
PyObject *allocate_gpu_result(PyObject *like, PyObject *shape, int32_t dtype);
int is_host_result(PyObject *object);
void read_host_result(PyObject *object, nvfp4_tensor *t);
/* Replaces a computed host_result by an array of the library of `like`. 1, or 0 with an error message. */
int finish_host_result(PyObject *like, PyObject **result);

#endif
