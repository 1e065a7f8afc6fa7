/* Reading and making tensors of torch, NumPy and, by dlpack_array.h, other libraries; what has been found of the two.
 */
#include "bindings/python/tensor.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "bindings/python/dlpack_array.h"
#include "common/error.h"

enum { DTYPE_COUNT = NVFP4_INT64 + 1 };

/* The parts of torch and NumPy that were found in sys.modules. They are kept for the life of the process, guarded by
 * the GIL. */
static struct {
    PyTypeObject *tensor, *parameter;
    const dl_exchange_table *table; /* NULL: of an unknown version, every tensor goes through the dispatcher */
    PyObject *is_grad_enabled;
    PyObject *empty_keywords[DTYPE_COUNT]; /* {"dtype": torch.float16} ... */
    uint32_t (*get_num_threads)(uint32_t *count);
} torch;

static struct {
    PyTypeObject *array, *memmap;
    PyObject *empty;
} numpy;

/* A module's attribute, or NULL without an exception. */
static PyObject *attribute(PyObject *object, const char *name) {
    PyObject *value = PyObject_GetAttrString(object, name);
    if (!value) PyErr_Clear();
    return value;
}

/* A module that is loaded, or NULL. */
static PyObject *loaded_module(const char *name) {
    PyObject *key = PyUnicode_FromString(name), *module = key ? PyImport_GetModule(key) : NULL;
    Py_XDECREF(key);
    if (!module) PyErr_Clear();
    return module;
}

const char *describe(PyObject *object, const char *name, char *text, size_t size) {
    PyObject *value = name ? attribute(object, name) : Py_NewRef(object);
    PyObject *string = value ? PyObject_Str(value) : NULL;
    const char *utf8 = string ? PyUnicode_AsUTF8AndSize(string, NULL) : NULL;
    PyErr_Clear();
    strncpy(text, utf8 ? utf8 : "unknown", size - 1);
    text[size - 1] = 0;
    Py_XDECREF(string);
    Py_XDECREF(value);
    return text;
}

/* 1 if torch is loaded and known, 0 if it is not loaded, -1 with an error message if it cannot be used. */
static int find_torch(void) {
    if (torch.tensor) return 1;
    PyObject *module = loaded_module("torch");
    PyObject *tensor = module ? attribute(module, "Tensor") : NULL;
    PyObject *nn = tensor ? attribute(module, "nn") : NULL;
    PyObject *parameter = nn ? attribute(nn, "Parameter") : NULL;
    PyObject *is_grad_enabled = parameter ? attribute(module, "is_grad_enabled") : NULL;
    int found = 0;
    if (!is_grad_enabled) goto done; /* not loaded, or halfway through its import */
    if (!PyObject_HasAttrString(tensor, "__dlpack_c_exchange_api__")) {
        char version[64];
        fail(NVFP4_UNSUPPORTED, "torch: version is %s; must be 2.10 or newer",
             describe(module, "__version__", version, sizeof version));
        found = -1;
        goto done;
    }
    for (int32_t dtype = NVFP4_UINT8; dtype < DTYPE_COUNT; dtype++) {
        PyObject *value = attribute(module, nvfp4_dtype_name(dtype));
        torch.empty_keywords[dtype] = value ? Py_BuildValue("{sN}", "dtype", value) : NULL;
    }
    /* dlopen finds a loaded library by its soname and, told so, loads none. */
    void *library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    if (library) *(void **)&torch.get_num_threads = dlsym(library, "torch_get_num_threads");
    torch.table = exchange_table(tensor);
    torch.is_grad_enabled = Py_NewRef(is_grad_enabled);
    torch.parameter = (PyTypeObject *)Py_NewRef(parameter);
    torch.tensor = (PyTypeObject *)Py_NewRef(tensor);
    found = 1;
done:
    Py_XDECREF(is_grad_enabled);
    Py_XDECREF(parameter);
    Py_XDECREF(nn);
    Py_XDECREF(tensor);
    Py_XDECREF(module);
    PyErr_Clear();
    return found;
}

static int find_numpy(void) {
    if (numpy.array) return 1;
    PyObject *module = loaded_module("numpy");
    PyObject *empty = module ? attribute(module, "empty") : NULL;
    PyObject *memmap = empty ? attribute(module, "memmap") : NULL;
    PyObject *array = memmap ? attribute(module, "ndarray") : NULL;
    if (array) {
        numpy.empty = Py_NewRef(empty);
        numpy.memmap = (PyTypeObject *)Py_NewRef(memmap);
        numpy.array = (PyTypeObject *)Py_NewRef(array);
    }
    Py_XDECREF(array);
    Py_XDECREF(memmap);
    Py_XDECREF(empty);
    Py_XDECREF(module);
    return numpy.array != NULL;
}

static int is_numpy(PyObject *object) {
    return find_numpy() && (Py_TYPE(object) == numpy.array || Py_TYPE(object) == numpy.memmap);
}

static int is_torch(PyObject *object) {
    return find_torch() > 0 && PyObject_TypeCheck(object, torch.tensor);
}

/* Whether the object is an array of another library. Subclasses of NumPy's arrays are none: the __dlpack__ of masked
 * arrays, for example, drops what they add. */
static int is_other(PyObject *object) {
    return !(find_numpy() && PyObject_TypeCheck(object, numpy.array)) && !is_torch(object) && is_dlpack_array(object);
}

int is_tensor(PyObject *object) {
    if (object == Py_None || PyFloat_Check(object) || PyLong_Check(object)) return 0;
    return is_torch(object) || is_numpy(object) || is_other(object);
}

/* ---- torch ---- */

static int grad_enabled(void) {
    PyObject *answer = PyObject_CallNoArgs(torch.is_grad_enabled);
    int enabled = answer == Py_True;
    Py_XDECREF(answer);
    return enabled;
}

/* Whether the sign of every value is a flag beside the memory. z.conj().imag is the way to such a view: it keeps the
 * strides of z, whose parts lie two apart, so an odd stride says no. */
static int is_negated(PyObject *object, const nvfp4_tensor *t) {
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] > 1 && t->stride[i] % 2 != 0) return 0;
    static PyObject *is_neg;
    if (!is_neg) is_neg = PyUnicode_InternFromString("is_neg");
    PyObject *answer = is_neg ? PyObject_CallMethodObjArgs(object, is_neg, NULL) : NULL;
    int negated = answer == Py_True;
    Py_XDECREF(answer);
    PyErr_Clear();
    return negated;
}

/* torch's dispatcher has no words of its own for nested tensors, whose layout may be torch.strided. */
static int check_not_nested(PyObject *object, const char *name) {
    char nested[64];
    if (strcmp(describe(object, "is_nested", nested, sizeof nested), "True") != 0) return 1;
    REJECT(name, ("layout is nested"), ("must be torch.strided"));
    return 0;
}

static int check_strided(PyObject *object, const char *name) {
    char layout[64];
    if (!check_not_nested(object, name)) return 0;
    if (strcmp(describe(object, "layout", layout, sizeof layout), "torch.strided") == 0) return 1;
    REJECT(name, ("layout is %s", layout), ("must be torch.strided"));
    return 0;
}

/* Rejects a tensor for which the caller might expect a gradient: nothing here has one. */
static int check_no_grad(PyObject *object, const char *name) {
    static PyObject *requires_grad;
    if (!requires_grad) requires_grad = PyUnicode_InternFromString("requires_grad");
    PyObject *value = requires_grad ? PyObject_GetAttr(object, requires_grad) : NULL;
    int rejected = value == Py_True && grad_enabled();
    Py_XDECREF(value);
    PyErr_Clear();
    if (rejected)
        REJECT(name, ("requires grad"), ("nvfp4 computes no gradients: pass %s.detach() or use torch.no_grad()", name));
    return !rejected;
}

static int has_elements(const nvfp4_tensor *t) {
    int64_t count = 1;
    for (int i = 0; i < t->ndim; i++) count *= t->shape[i];
    return count != 0;
}

static reading read_torch(PyObject *object, const operation_tensor *row, use use, nvfp4_tensor *t) {
    dl_tensor d;
    if (!torch.table) return READ_BY_TORCH;
    if (torch.table->borrow(object, &d) != 0) {
        PyErr_Clear();
        return check_strided(object, row->name) ? READ_BY_TORCH : READ_FAILED;
    }
    if (!from_dl_tensor(object, row, &d, t)) return READ_FAILED;
    if (!t->data && has_elements(t)) return READ_BY_TORCH; /* as functionalize's and ZeroTensor's are */
    if (use == FORMAT || t->dtype < NVFP4_FP16) return READ;
    if (!check_no_grad(object, row->name)) return READ_FAILED;
    if (!is_negated(object, t)) return READ;
    if (use != WRITTEN) return READ_BY_TORCH;
    REJECT(row->name, ("is a negated view"), ("must be plain memory, it is written"));
    return READ_FAILED;
}

/* ---- NumPy ---- */

static int32_t dtype_of_array(PyObject *object, const char *typestr, int64_t *item) {
    static const struct {
        const char *typestr, *name;
        int32_t dtype, item;
    } known[] = {
        {"|u1", NULL, NVFP4_UINT8, 1},
        {"<f2", NULL, NVFP4_FP16, 2},
        {"<f4", NULL, NVFP4_FP32, 4},
        {"<i4", NULL, NVFP4_INT32, 4},
        {"<i8", NULL, NVFP4_INT64, 8},
        /* ml_dtypes' types, which the interface calls opaque */
        {NULL, "bfloat16", NVFP4_BF16, 2},
        {NULL, "float8_e4m3fn", NVFP4_E4M3, 1},
    };
    char name[64];
    describe(object, "dtype", name, sizeof name);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].typestr ? strcmp(typestr, known[i].typestr) != 0 : strcmp(name, known[i].name) != 0) continue;
        *item = known[i].item;
        return known[i].dtype;
    }
    return NVFP4_NONE;
}

/* The interface is a dict: {"data": (address, read_only), "typestr": "<f2", "shape": (..), "strides": None or (..)};
 * strides count bytes. */
static reading read_interface(PyObject *object, PyObject *interface, const operation_tensor *row, use use,
                              nvfp4_tensor *t) {
    PyObject *shape = PyDict_GetItemString(interface, "shape"), *strides = PyDict_GetItemString(interface, "strides");
    PyObject *data = PyDict_GetItemString(interface, "data"), *typestr = PyDict_GetItemString(interface, "typestr");
    const char *type = typestr ? PyUnicode_AsUTF8AndSize(typestr, NULL) : NULL;
    if (!type || !shape || !data || !PyTuple_Check(data)) {
        CONTRADICTS(row->name, ("its __array_interface__ is incomplete"));
        return READ_FAILED;
    }
    int64_t item, count = 1;
    t->dtype = dtype_of_array(object, type, &item);
    if (t->dtype == NVFP4_NONE) {
        char dtype[64];
        return reject_dtype(row, describe(object, "dtype", dtype, sizeof dtype));
    }
    if (PyTuple_Size(shape) > NVFP4_MAX_DIMS) {
        REJECT(row->name, ("has %d dimensions", (int)PyTuple_Size(shape)), ("must have at most %d", NVFP4_MAX_DIMS));
        return READ_FAILED;
    }
    t->device = NVFP4_HOST;
    t->ndim = (int32_t)PyTuple_Size(shape);
    t->data = PyLong_AsVoidPtr(PyTuple_GetItem(data, 0));
    if (use == WRITTEN && PyObject_IsTrue(PyTuple_GetItem(data, 1))) {
        REJECT(row->name, ("is read-only"), ("must be writeable"));
        return READ_FAILED;
    }
    for (int i = t->ndim - 1; i >= 0; i--) {
        t->shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        t->stride[i] = count;
        count *= t->shape[i];
        if (!strides || !PyTuple_Check(strides)) continue;
        int64_t bytes = PyLong_AsLongLong(PyTuple_GetItem(strides, i));
        t->stride[i] = bytes / item;
        if (bytes % item != 0 && t->shape[i] > 1) {
            REJECT(row->name, ("stride of dimension %d is %lld bytes", i, (long long)bytes),
                   ("must be a multiple of its element's %lld", (long long)item));
            return READ_FAILED;
        }
    }
    return PyErr_Occurred() ? READ_FAILED : READ;
}

static reading read_numpy(PyObject *object, const operation_tensor *row, use use, nvfp4_tensor *t) {
    PyObject *interface = PyObject_GetAttrString(object, "__array_interface__");
    if (!interface) return READ_FAILED;
    reading result = read_interface(object, interface, row, use, t);
    Py_DECREF(interface);
    return result;
}

/* ---- any ---- */

static reading read_other(arrays *call, PyObject *object, const operation_tensor *row, use use, nvfp4_tensor *t) {
    PyObject *capsule;
    reading result = read_dlpack(call, object, row, use, t, &capsule);
    if (capsule) call->exports[call->count++] = capsule;
    return result;
}

void release_arrays(arrays *call) {
    if (call->count == 0) return;
    PyObject *type, *value, *traceback; /* a library's destructor may run Python, which must find no exception */
    PyErr_Fetch(&type, &value, &traceback);
    while (call->count > 0) Py_DECREF(call->exports[--call->count]);
    PyErr_Restore(type, value, traceback);
}

reading read_tensor(arrays *call, PyObject *object, const operation_tensor *row, use use, nvfp4_tensor *tensor) {
    PyTypeObject *type = Py_TYPE(object);
    if (object == Py_None) {
        tensor->dtype = NVFP4_NONE;
        return READ;
    }
    if (type == torch.tensor || type == torch.parameter) return read_torch(object, row, use, tensor);
    if (is_numpy(object)) return read_numpy(object, row, use, tensor);
    int found = torch.tensor ? 1 : find_torch();
    if (found < 0) return READ_FAILED;
    if (found && (type == torch.tensor || type == torch.parameter)) return read_torch(object, row, use, tensor);
    if (found && PyObject_TypeCheck(object, torch.tensor))
        return check_not_nested(object, row->name) ? READ_BY_TORCH : READ_FAILED;
    if (is_host_result(object)) {
        read_host_result(object, tensor);
        return READ;
    }
    if (is_other(object)) return read_other(call, object, row, use, tensor);
    char text[64];
    REJECT(row->name, ("is of type %s", describe((PyObject *)Py_TYPE(object), "__name__", text, sizeof text)),
           ("must be a torch.Tensor, a numpy.ndarray or an array with __dlpack__"));
    return READ_FAILED;
}

static PyObject *allocate_numpy(PyObject *shape, int32_t dtype) {
    if (dtype == NVFP4_E2M1X2 || dtype == NVFP4_E4M3) dtype = NVFP4_UINT8;
    if (dtype != NVFP4_BF16) return PyObject_CallFunction(numpy.empty, "Os", shape, nvfp4_dtype_name(dtype));
    PyObject *ml_dtypes = loaded_module("ml_dtypes");
    PyObject *bfloat16 = ml_dtypes ? attribute(ml_dtypes, "bfloat16") : NULL;
    PyObject *result = NULL;
    if (bfloat16)
        result = PyObject_CallFunctionObjArgs(numpy.empty, shape, bfloat16, NULL);
    else
        fail(NVFP4_UNSUPPORTED, "out_dtype: is bfloat16, which NumPy has only when ml_dtypes has been imported");
    Py_XDECREF(bfloat16);
    Py_XDECREF(ml_dtypes);
    return result;
}

static PyObject *allocate_torch(PyObject *like, PyObject *shape, int32_t dtype) {
    static PyObject *new_empty;
    if (!new_empty) new_empty = PyUnicode_InternFromString("new_empty");
    if (!torch.empty_keywords[dtype]) {
        fail(NVFP4_UNSUPPORTED, "torch: has no dtype %s", nvfp4_dtype_name(dtype));
        return NULL;
    }
    PyObject *method = new_empty ? PyObject_GetAttr(like, new_empty) : NULL;
    PyObject *arguments = method ? PyTuple_Pack(1, shape) : NULL;
    PyObject *result = arguments ? PyObject_Call(method, arguments, torch.empty_keywords[dtype]) : NULL;
    Py_XDECREF(arguments);
    Py_XDECREF(method);
    return result;
}

static PyObject *allocate_like(PyObject *like, const nvfp4_tensor *t) {
    if (t->device == NVFP4_HOST && is_other(like)) return allocate_host_result(like, t->ndim, t->shape, t->dtype);
    PyObject *sizes = PyTuple_New(t->ndim);
    for (int i = 0; sizes && i < t->ndim; i++) {
        PyObject *size = PyLong_FromLongLong(t->shape[i]);
        if (!size || PyTuple_SetItem(sizes, i, size) != 0) {
            Py_DECREF(sizes);
            return NULL;
        }
    }
    if (!sizes) return NULL;
    PyObject *result = is_numpy(like)   ? allocate_numpy(sizes, t->dtype)
                       : is_other(like) ? allocate_gpu_result(like, sizes, t->dtype)
                                        : allocate_torch(like, sizes, t->dtype);
    Py_DECREF(sizes);
    return result;
}

reading new_result(arrays *call, nvfp4_tensor *tensor, PyObject **result) {
    static const operation_tensor row = {.name = "result", .role = OUTPUT, .holds = HOLDS_ANY};
    int32_t device = tensor->device;
    *result = allocate_like(call->leader, tensor);
    reading done =
        *result ? read_tensor(call, *result, &row, is_other(call->leader) ? WRITTEN : FORMAT, tensor) : READ_FAILED;
    if (done == READ && tensor->device != device) { /* a library may allocate on a device that is current to it */
        REJECT("result", ("its library allocated it on device %d", tensor->device),
               ("must be %d, that of the arguments: make that device current", device));
        done = READ_FAILED;
    }
    if (done != READ) Py_CLEAR(*result);
    return done;
}

int finish_result(arrays *call, PyObject **result) {
    return !is_host_result(*result) || finish_host_result(call->leader, result);
}

/* Called by torch's allocator; the first line of its message says what is missing. */
static void workspace_error(void *bytes, const char *kind, const char *message) {
    fail(NVFP4_OUT_OF_MEMORY, "workspace: torch could not allocate %zu bytes: %s: %.*s", *(size_t *)bytes, kind,
         (int)strcspn(message, "\n"), message);
}

int allocate_workspace(arrays *call, int32_t device, size_t bytes, workspace *w) {
    int64_t shape = (int64_t)bytes, stride = 1;
    if (device == NVFP4_HOST) {
        w->data = w->owner = aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (!w->data) fail(NVFP4_OUT_OF_MEMORY, "workspace: no memory for %zu bytes", bytes);
        return w->data != NULL;
    }
    if (is_other(call->leader)) {
        nvfp4_tensor memory = {.dtype = NVFP4_UINT8, .device = device, .ndim = 1, .shape = {shape}};
        PyObject *array;
        int ok = new_result(call, &memory, &array) == READ;
        Py_XDECREF(array); /* its export keeps the memory */
        if (ok) w->data = memory.data;
        return ok;
    }
    dl_tensor prototype = {
        .device = {DL_CUDA, device}, .ndim = 1, .dtype = {DL_UINT, 8, 1}, .shape = &shape, .strides = &stride};
    dl_managed_tensor *managed;
    if (torch.table->allocate(&prototype, &managed, &bytes, workspace_error) != 0) return 0;
    w->owner = managed;
    w->data = (char *)managed->tensor.data + managed->tensor.byte_offset;
    return 1;
}

void *allocate_for(void *owner, size_t bytes) {
    workspace_owner *o = owner;
    return allocate_workspace(o->call, o->device, bytes, &o->memory) ? o->memory.data : NULL;
}

void free_workspace(int32_t device, workspace *w) {
    dl_managed_tensor *managed = w->owner;
    if (device == NVFP4_HOST)
        free(w->owner);
    else if (managed && managed->release)
        managed->release(managed);
}

int stream_of(arrays *call, int32_t device, void **stream) {
    *stream = NULL;
    if (is_other(call->leader)) return library_stream(call->leader, device, stream);
    return !torch.table || !is_torch(call->leader) || torch.table->current_stream(DL_CUDA, device, stream) == 0;
}

int32_t current_threads(void) {
    uint32_t count = 0;
    find_torch();
    if (torch.get_num_threads && torch.get_num_threads(&count) != 0) count = 0;
    return (int32_t)count;
}
