/* Python's tensors as nvfp4_tensor: torch's through its DLPack exchange table, NumPy's through __array_interface__,
 * those of any other library through __dlpack__.
 *
 * No library is imported here, only found in sys.modules, so that `import nvfp4` costs nothing. Functions that
 * can fail leave a message in nvfp4_last_error(), or a Python exception where Python code raised one; raise_error
 * turns either into the exception of the call. */
#ifndef NVFP4_PYTHON_TENSOR_H
#define NVFP4_PYTHON_TENSOR_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "api/operation.h"

typedef enum reading {
    READ,          /* the tensor is filled; its memory belongs to the object */
    READ_BY_TORCH, /* only torch's dispatcher can: a subclass, a fake or wrapped tensor, one without memory */
    READ_FAILED,
} reading;

typedef enum use {
    FORMAT,  /* data or scales of the format: never differentiated */
    NUMBERS, /* an input that a gradient could be expected for */
    WRITTEN, /* an output */
} use;

/* A call's tensors. The library of `leader` (out, else the first argument) makes results and workspace, and the call
 * runs on its current stream. DLPack exports keep memory alive until release_arrays. */
enum { MAX_EXPORTS = OPERATION_MAX_TENSORS + 2 }; /* an operation's tensors, a result, a workspace */
typedef struct arrays {
    PyObject *leader;
    PyObject *exports[MAX_EXPORTS];
    int count;
} arrays;
void release_arrays(arrays *call);

/* Reads an argument that a row of the operation describes; None is an absent tensor. */
reading read_tensor(arrays *call, PyObject *object, const operation_tensor *row, use use, nvfp4_tensor *tensor);

/* 1 if read_tensor would take it for a tensor rather than a number. */
int is_tensor(PyObject *object);

/* A new, dense tensor of the leader's library, of the dtype, device and shape in *tensor, which is filled; *result is
 * NULL unless READ. e4m3 is torch's alone: elsewhere uint8. Once it is computed, finish_result makes it the library's
 * own; 1, or 0 with an error message and *result released. */
reading new_result(arrays *call, nvfp4_tensor *tensor, PyObject **result);
int finish_result(arrays *call, PyObject **result);

/* Memory that only the call sees: on a GPU the leader's library's, where its next user comes later on the same stream,
 * and plain on the host. 1, or 0 with an error message. */
typedef struct workspace {
    void *data;
    void *owner;
} workspace;
int allocate_workspace(arrays *call, int32_t device, size_t bytes, workspace *w);
void free_workspace(int32_t device, workspace *w);

/* The same as the `allocate` and `owner` of a call. On a GPU the GIL is held; host memory needs none. */
typedef struct workspace_owner {
    arrays *call;
    int32_t device;
    workspace memory;
} workspace_owner;
void *allocate_for(void *owner, size_t bytes);

/* The current stream of the leader's library on a device (NULL: the default one); 0 with an exception or message. */
int stream_of(arrays *call, int32_t device, void **stream);
/* torch's count of CPU threads (0: torch is not loaded). */
int32_t current_threads(void);

/* str(object), or str(object.name), cut to fit: for error messages. */
const char *describe(PyObject *object, const char *name, char *text, size_t size);

#endif
