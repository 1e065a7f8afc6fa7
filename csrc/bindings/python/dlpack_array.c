/* Arrays of any library: the Python side of DLPack, from both ends. */
#include "bindings/python/dlpack_array.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/error.h"

/* ---- Python ---- */

/* An attribute, or NULL without an exception. */
static PyObject *attribute(PyObject *object, const char *name) {
    PyObject *value = object ? PyObject_GetAttrString(object, name) : NULL;
    if (!value) PyErr_Clear();
    return value;
}

/* Turns the pending exception of a library's function into an error message; leaves KeyboardInterrupt and its kin. */
static void fail_by_exception(const char *name, const char *what) {
    PyObject *type, *value, *traceback;
    char kind[64], text[400];
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return;
    PyErr_Fetch(&type, &value, &traceback);
    describe(type ? type : Py_None, "__name__", kind, sizeof kind);
    describe(value ? value : Py_None, NULL, text, sizeof text);
    CONTRADICTS(name, ("%s raised %s: %s", what, kind, text));
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
}

static const char *type_name(PyObject *object, char *text, size_t size) {
    return describe((PyObject *)Py_TYPE(object), "__name__", text, size);
}

/* The package that defines the array's type ("jaxlib" of "jaxlib._jax"), in `name`; the loaded module or NULL. */
static PyObject *package_of(PyObject *array, char *name, size_t size) {
    describe((PyObject *)Py_TYPE(array), "__module__", name, size);
    name[strcspn(name, ".")] = 0;
    PyObject *key = PyUnicode_FromString(name), *module = key ? PyImport_GetModule(key) : NULL;
    Py_XDECREF(key);
    if (!module) PyErr_Clear();
    return module;
}

/* A function or dtype of the array's namespace: of what __array_namespace__() returns, else of its package. */
static PyObject *of_namespace(PyObject *array, const char *name) {
    char package_name[64];
    PyObject *method = attribute(array, "__array_namespace__");
    PyObject *space = method ? PyObject_CallNoArgs(method) : NULL;
    if (!space) PyErr_Clear();
    PyObject *value = attribute(space, name);
    if (!value) {
        PyObject *package = package_of(array, package_name, sizeof package_name);
        value = attribute(package, name);
        Py_XDECREF(package);
    }
    Py_XDECREF(space);
    Py_XDECREF(method);
    return value;
}

int is_dlpack_array(PyObject *object) {
    PyObject *type = (PyObject *)Py_TYPE(object); /* a class has the methods of its instances too */
    return PyObject_HasAttrString(type, "__dlpack__") && PyObject_HasAttrString(type, "__dlpack_device__");
}

/* Whether arrays of this type cannot be written, where DLPack does not say so: JAX's have a __setitem__ that raises. */
static int is_immutable(PyObject *array) {
    char name[64];
    Py_XDECREF(package_of(array, name, sizeof name));
    return strcmp(name, "jaxlib") == 0 || strcmp(name, "jax") == 0 ||
           !PyObject_HasAttrString((PyObject *)Py_TYPE(array), "__setitem__");
}

/* ---- reading ---- */

static int32_t dtype_of_dlpack(dl_dtype d) {
    if (d.code == DL_FLOAT4_E2M1FN && d.bits == 4 && d.lanes == 2) return NVFP4_E2M1X2;
    if (d.lanes != 1) return NVFP4_NONE;
    switch (d.code << 8 | d.bits) {
    case DL_UINT << 8 | 8:
        return NVFP4_UINT8;
    case DL_FLOAT8_E4M3FN << 8 | 8:
        return NVFP4_E4M3;
    case DL_FLOAT << 8 | 16:
        return NVFP4_FP16;
    case DL_BFLOAT << 8 | 16:
        return NVFP4_BF16;
    case DL_FLOAT << 8 | 32:
        return NVFP4_FP32;
    case DL_INT << 8 | 32:
        return NVFP4_INT32;
    case DL_INT << 8 | 64:
        return NVFP4_INT64;
    default:
        return NVFP4_NONE;
    }
}

reading reject_dtype(const operation_tensor *row, const char *dtype) {
    REJECT(row->name, ("dtype is %s", dtype), ("must be %s", dtypes_held(row->holds)));
    return READ_FAILED;
}

int from_dl_tensor(PyObject *object, const operation_tensor *row, const dl_tensor *d, nvfp4_tensor *t) {
    t->dtype = dtype_of_dlpack(d->dtype);
    if (t->dtype == NVFP4_NONE) {
        char dtype[64];
        snprintf(dtype, sizeof dtype, "DLPack's code %d of %d bits and %d lanes", d->dtype.code, d->dtype.bits,
                 d->dtype.lanes);
        if (PyObject_HasAttrString(object, "dtype")) describe(object, "dtype", dtype, sizeof dtype);
        reject_dtype(row, dtype);
        return 0;
    }
    if (d->device.type == DL_CPU || d->device.type == DL_CUDA_HOST) {
        t->device = NVFP4_HOST;
    } else if (d->device.type == DL_CUDA || d->device.type == DL_CUDA_MANAGED) {
        t->device = d->device.id;
    } else {
        char device[64];
        REJECT_AS(NVFP4_UNSUPPORTED, row->name, ("is on %s", describe(object, "device", device, sizeof device)),
                  ("must be on the CPU or a CUDA device"));
        return 0;
    }
    if (d->ndim < 0 || d->ndim > NVFP4_MAX_DIMS) {
        REJECT(row->name, ("has %d dimensions", d->ndim), ("must have 0 to %d", NVFP4_MAX_DIMS));
        return 0;
    }
    int64_t bits = d->dtype.bits * d->dtype.lanes; /* with 1 instead of 0, so that no product of some sizes overflows */
    for (int i = 0; i < d->ndim; i++) {
        if (d->shape[i] < 0 || __builtin_mul_overflow(bits, d->shape[i] ? d->shape[i] : 1, &bits)) {
            REJECT(row->name, ("dimension %d is %lld", i, (long long)d->shape[i]),
                   ("must be 0 or more, and the array smaller than 2^60 bytes"));
            return 0;
        }
    }
    int64_t count = 1;
    t->ndim = d->ndim;
    for (int i = d->ndim - 1; i >= 0; i--) {
        t->shape[i] = d->shape[i];
        t->stride[i] = d->strides ? d->strides[i] : count;
        count *= d->shape[i];
    }
    t->data = d->data ? (char *)d->data + d->byte_offset : NULL;
    return 1;
}

/* __dlpack_device__(), a pair of numbers. */
static int device_of(PyObject *object, const char *name, dl_device *device) {
    PyObject *pair = PyObject_CallMethod(object, "__dlpack_device__", NULL);
    long type = -1, id = -1;
    if (pair && PyTuple_Check(pair) && PyTuple_Size(pair) == 2) {
        type = PyLong_AsLong(PyTuple_GetItem(pair, 0));
        if (!PyErr_Occurred()) id = PyLong_AsLong(PyTuple_GetItem(pair, 1));
    } else if (pair) {
        PyErr_SetString(PyExc_TypeError, "it did not return a pair");
    }
    Py_XDECREF(pair);
    if (PyErr_Occurred()) {
        fail_by_exception(name, "its __dlpack_device__");
        return 0;
    }
    *device = (dl_device){(int32_t)type, (int32_t)id};
    if (type == DL_CPU || type == DL_CUDA_HOST || type == DL_CUDA || type == DL_CUDA_MANAGED) return 1;
    REJECT_AS(NVFP4_UNSUPPORTED, name, ("is on a device of DLPack's type %ld", type),
              ("must be on the CPU (1) or a CUDA device (2)"));
    return 0;
}

/* Calls __dlpack__ as DLPack 1.x has it; where that is a TypeError, as it was before: without version and copy. */
static PyObject *export(PyObject *object, const char *name, use use, PyObject *stream) {
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__"), *empty = PyTuple_New(0);
    PyObject *before = PyDict_New(), *now = before ? Py_BuildValue("{s(ii)}", "max_version", DL_MAJOR, DL_MINOR) : NULL;
    PyObject *capsule = NULL;
    int ready = method && empty && now;
    if (ready && use == WRITTEN) ready = PyDict_SetItemString(now, "copy", Py_False) == 0;
    if (ready && stream)
        ready = PyDict_SetItemString(now, "stream", stream) == 0 && PyDict_SetItemString(before, "stream", stream) == 0;
    if (ready) {
        capsule = PyObject_Call(method, empty, now);
        if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            capsule = PyObject_Call(method, empty, before);
        }
    }
    if (!capsule) fail_by_exception(name, "its __dlpack__");
    Py_XDECREF(now);
    Py_XDECREF(before);
    Py_XDECREF(empty);
    Py_XDECREF(method);
    return capsule;
}

/* The tensor in a capsule, and its flags where DLPack has them; NULL with an error message. */
static const dl_tensor *tensor_in(PyObject *capsule, PyObject *object, const operation_tensor *row, use use) {
    char type[64];
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        const dl_managed_tensor *m = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (m->major != DL_MAJOR) {
            REJECT(row->name, ("is of DLPack %u.%u", m->major, m->minor), ("must be of %d.x", DL_MAJOR));
            return NULL;
        }
        if (m->flags & DL_PADDED && m->tensor.dtype.bits < 8) {
            reject_dtype(row, "of fewer than 8 bits and padded to a byte");
            return NULL;
        }
        if (use == WRITTEN && m->flags & DL_READ_ONLY) {
            REJECT(row->name, ("is read-only"), ("must be writeable"));
            return NULL;
        }
        if (use == WRITTEN && m->flags & DL_COPIED) {
            REJECT(row->name, ("its __dlpack__ returned a copy"), ("must return its own memory, which is written"));
            return NULL;
        }
        return &m->tensor;
    }
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        const dl_unversioned_tensor *m = PyCapsule_GetPointer(capsule, "dltensor");
        if (use != WRITTEN || !is_immutable(object)) return &m->tensor;
        REJECT(row->name, ("is of type %s, which is immutable", type_name(object, type, sizeof type)),
               ("must be writeable"));
        return NULL;
    }
    REJECT(row->name, ("its __dlpack__ returned a %s", type_name(capsule, type, sizeof type)),
           ("must be a new DLPack capsule"));
    return NULL;
}

reading read_dlpack(arrays *call, PyObject *object, const operation_tensor *row, use use, nvfp4_tensor *t,
                    PyObject **capsule) {
    dl_device device;
    void *stream;
    PyObject *number = NULL;
    *capsule = NULL;
    if (!device_of(object, row->name, &device)) return READ_FAILED;
    if (device.type == DL_CUDA || device.type == DL_CUDA_MANAGED) {
        if (!stream_of(call, device.id, &stream)) PyErr_Clear(); /* fails again, before anything runs on it */
        /* 1 is the legacy default stream, which the driver also calls 0, 2 the thread's: as the driver has them */
        number = PyLong_FromUnsignedLongLong(stream ? (uintptr_t)stream : 1);
    }
    *capsule = export(object, row->name, use, number);
    Py_XDECREF(number);
    const dl_tensor *d = *capsule ? tensor_in(*capsule, object, row, use) : NULL;
    if (!d || !from_dl_tensor(object, row, d, t)) return READ_FAILED;
    int64_t count = 1;
    for (int i = 0; i < t->ndim; i++) count *= t->shape[i];
    if (d->device.type != device.type || d->device.id != device.id) {
        CONTRADICTS(row->name, ("its __dlpack__ is on device (%d, %d) but its __dlpack_device__ says (%d, %d)",
                                d->device.type, d->device.id, device.type, device.id));
        return READ_FAILED;
    }
    if (t->data || count == 0) return READ;
    CONTRADICTS(row->name, ("its __dlpack__ has no memory"));
    return READ_FAILED;
}

/* ---- streams ---- */

const dl_exchange_table *exchange_table(PyObject *type) {
    PyObject *published = attribute(type, "__dlpack_c_exchange_api__");
    const dl_exchange_table *table = NULL;
    if (published && PyCapsule_IsValid(published, "dlpack_exchange_api"))
        table = PyCapsule_GetPointer(published, "dlpack_exchange_api");
    else if (published && PyLong_Check(published)) /* before torch 2.11 */
        table = PyLong_AsVoidPtr(published);
    Py_XDECREF(published);
    while (table && table->major != DL_MAJOR) table = table->previous;
    PyErr_Clear();
    return table;
}

int library_stream(PyObject *array, int32_t device, void **stream) {
    char name[64];
    *stream = NULL;
    const dl_exchange_table *table = exchange_table((PyObject *)Py_TYPE(array));
    if (table) {
        if (table->current_stream(DL_CUDA, device, stream) == 0) return 1;
        fail_by_exception("stream", "the exchange table");
        return 0;
    }
    PyObject *package = package_of(array, name, sizeof name), *cuda = attribute(package, "cuda");
    PyObject *function = attribute(cuda, "get_current_stream");
    PyObject *current = function ? PyObject_CallFunction(function, "i", (int)device) : NULL;
    PyObject *pointer = current ? PyObject_GetAttrString(current, "ptr") : NULL;
    if (pointer) *stream = PyLong_AsVoidPtr(pointer);
    int ok = !function || (pointer && !PyErr_Occurred());
    if (!ok) fail_by_exception(name, "its cuda.get_current_stream");
    Py_XDECREF(pointer);
    Py_XDECREF(current);
    Py_XDECREF(function);
    Py_XDECREF(cuda);
    Py_XDECREF(package);
    return ok;
}

/* ---- results ---- */

/* Host memory that the object and everything that was exported share. */
typedef struct shared_memory {
    atomic_int owners;
    _Alignas(64) char data[]; /* JAX copies what is aligned to less */
} shared_memory;

typedef struct host_result {
    PyObject_HEAD;
    shared_memory *memory;
    nvfp4_tensor tensor;
} host_result;

static void let_go(shared_memory *memory) {
    if (memory && atomic_fetch_sub(&memory->owners, 1) == 1) free(memory);
}

/* Either kind of managed tensor, with room for what it points to. Released by its consumer, maybe without the GIL. */
typedef struct exported {
    union {
        dl_managed_tensor now;
        dl_unversioned_tensor before;
    } managed;
    shared_memory *memory;
    int64_t shape[NVFP4_MAX_DIMS], stride[NVFP4_MAX_DIMS];
} exported;

static void release_now(dl_managed_tensor *self) {
    let_go(((exported *)self)->memory);
    free(self);
}

static void release_before(dl_unversioned_tensor *self) {
    let_go(((exported *)self)->memory);
    free(self);
}

/* The destructor of a capsule. A consumer renames the capsule; one that nobody consumed is released here. */
static void destroy_capsule(PyObject *capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor_versioned"))
        release_now(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    else if (PyCapsule_IsValid(capsule, "dltensor"))
        release_before(PyCapsule_GetPointer(capsule, "dltensor"));
}

static dl_dtype dtype_to_dlpack(int32_t dtype) {
    static const dl_dtype words[] = {
        [NVFP4_UINT8] = {DL_UINT, 8, 1},  [NVFP4_FP16] = {DL_FLOAT, 16, 1}, [NVFP4_BF16] = {DL_BFLOAT, 16, 1},
        [NVFP4_FP32] = {DL_FLOAT, 32, 1}, [NVFP4_INT32] = {DL_INT, 32, 1},
    };
    return words[dtype];
}

/* __dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None): for the library's from_dlpack alone, which
 * gets memory that nothing else refers to and is free to copy it. */
static PyObject *host_result_dlpack(PyObject *self, PyObject *arguments, PyObject *keywords) {
    host_result *result = (host_result *)self;
    (void)arguments;
    PyObject *version = keywords ? PyDict_GetItemString(keywords, "max_version") : NULL;
    int versioned = version && PyTuple_Check(version) && PyTuple_Size(version) == 2 &&
                    PyLong_AsLong(PyTuple_GetItem(version, 0)) >= DL_MAJOR;
    exported *e = PyErr_Occurred() ? NULL : calloc(1, sizeof *e);
    if (!e) return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    memcpy(e->shape, result->tensor.shape, sizeof e->shape);
    memcpy(e->stride, result->tensor.stride, sizeof e->stride);
    dl_tensor tensor = {
        .data = result->tensor.data,
        .device = {DL_CPU, 0},
        .ndim = result->tensor.ndim,
        .dtype = dtype_to_dlpack(result->tensor.dtype),
        .shape = e->shape,
        .strides = e->stride,
    };
    if (versioned)
        e->managed.now =
            (dl_managed_tensor){.major = DL_MAJOR, .minor = DL_MINOR, .release = release_now, .tensor = tensor};
    else
        e->managed.before = (dl_unversioned_tensor){.tensor = tensor, .release = release_before};
    PyObject *capsule = PyCapsule_New(e, versioned ? "dltensor_versioned" : "dltensor", destroy_capsule);
    if (capsule) {
        e->memory = result->memory;
        atomic_fetch_add(&e->memory->owners, 1);
    } else {
        free(e);
    }
    return capsule;
}

static PyObject *host_result_device(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    return Py_BuildValue("(ii)", DL_CPU, 0);
}

static void host_result_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    let_go(((host_result *)self)->memory);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyTypeObject *host_result_type; /* made at first use, kept for the life of the process; guarded by the GIL */

static PyTypeObject *find_host_result_type(void) {
    static PyMethodDef methods[] = {
        {"__dlpack__", (PyCFunction)(void (*)(void))host_result_dlpack, METH_VARARGS | METH_KEYWORDS, NULL},
        {"__dlpack_device__", host_result_device, METH_NOARGS, NULL},
        {NULL, NULL, 0, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_dealloc, host_result_free},
        {Py_tp_methods, methods},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "nvfp4._C.host_result",
        .basicsize = sizeof(host_result),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = slots,
    };
    if (!host_result_type) host_result_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return host_result_type;
}

/* The function that makes an array of the library from memory: from_dlpack of its namespace, or of <package>.dlpack. */
static PyObject *from_dlpack_of(PyObject *like) {
    char name[64];
    PyObject *function = of_namespace(like, "from_dlpack");
    if (!function) {
        PyObject *package = package_of(like, name, sizeof name), *dlpack = attribute(package, "dlpack");
        function = attribute(dlpack, "from_dlpack");
        Py_XDECREF(dlpack);
        Py_XDECREF(package);
    }
    return function;
}

PyObject *allocate_host_result(PyObject *like, int ndim, const int64_t *shape, int32_t dtype) {
    char text[64];
    PyObject *from_dlpack = from_dlpack_of(like);
    if (!from_dlpack) { /* before anything is computed */
        fail(NVFP4_UNSUPPORTED, "result: the library of %s has no from_dlpack to make it with",
             type_name(like, text, sizeof text));
        return NULL;
    }
    Py_DECREF(from_dlpack);
    if (dtype == NVFP4_E2M1X2 || dtype == NVFP4_E4M3) dtype = NVFP4_UINT8;
    nvfp4_tensor t = {.dtype = dtype, .device = NVFP4_HOST, .ndim = ndim};
    int64_t count = 1, bytes = 0;
    int overflow = 0;
    for (int i = ndim - 1; i >= 0; i--) {
        t.shape[i] = shape[i];
        t.stride[i] = count;
        overflow |= __builtin_mul_overflow(count, shape[i], &count);
    }
    overflow |= __builtin_mul_overflow(count, dtype_to_dlpack(dtype).bits / 8, &bytes);
    overflow |= __builtin_add_overflow(bytes, (int64_t)sizeof(shared_memory) + 63, &bytes);
    PyTypeObject *type = find_host_result_type();
    shared_memory *memory = overflow || !type ? NULL : aligned_alloc(64, (size_t)bytes / 64 * 64);
    host_result *result = memory ? (host_result *)PyType_GenericAlloc(type, 0) : NULL;
    if (!result) {
        free(memory);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    atomic_init(&memory->owners, 1);
    t.data = memory->data;
    result->memory = memory;
    result->tensor = t;
    return (PyObject *)result;
}

PyObject *allocate_gpu_result(PyObject *like, PyObject *shape, int32_t dtype) {
    char text[64];
    if (dtype == NVFP4_E2M1X2 || dtype == NVFP4_E4M3) dtype = NVFP4_UINT8;
    type_name(like, text, sizeof text);
    PyObject *empty = of_namespace(like, "empty");
    PyObject *word = empty ? of_namespace(like, nvfp4_dtype_name(dtype)) : NULL, *result = NULL;
    if (!empty)
        fail(NVFP4_UNSUPPORTED, "result: the library of %s has no empty() to make it with on a GPU", text);
    else if (!word)
        fail(NVFP4_UNSUPPORTED, "result: the library of %s has no %s", text, nvfp4_dtype_name(dtype));
    PyObject *arguments = word ? PyTuple_Pack(1, shape) : NULL;
    PyObject *keywords = arguments ? Py_BuildValue("{sO}", "dtype", word) : NULL;
    if (keywords) {
        result = PyObject_Call(empty, arguments, keywords);
        if (!result) fail_by_exception("result", "its library's empty");
    }
    Py_XDECREF(keywords);
    Py_XDECREF(arguments);
    Py_XDECREF(word);
    Py_XDECREF(empty);
    return result;
}

int is_host_result(PyObject *object) {
    return host_result_type && Py_TYPE(object) == host_result_type;
}

void read_host_result(PyObject *object, nvfp4_tensor *t) {
    *t = ((host_result *)object)->tensor;
}

int finish_host_result(PyObject *like, PyObject **result) {
    PyObject *from_dlpack = from_dlpack_of(like);
    PyObject *array = from_dlpack ? PyObject_CallFunctionObjArgs(from_dlpack, *result, NULL) : NULL;
    if (!array) {
        char what[96];
        snprintf(what, sizeof what, "from_dlpack of its library, given %s,",
                 nvfp4_dtype_name(((host_result *)*result)->tensor.dtype));
        fail_by_exception("result", what);
    }
    Py_XDECREF(from_dlpack);
    Py_DECREF(*result);
    *result = array;
    return array != NULL;
}
