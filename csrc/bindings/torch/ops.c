/* torch.ops.nvfp4.*: boxed kernels over torch's stable C shim.
 *
 * Schemas have no optional tensors, which C could not free: a uint8 tensor of shape [0] stands for an absent one. torch
 * allocates results and workspace; nothing waits for the device. An error is thrown by libtorch through this file's
 * frames, which therefore is compiled with -fexceptions and holds nothing when it happens. */
#include "bindings/torch/ops.h"

#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "bindings/result.h"
#include "bindings/torch/shim.h"
#include "common/error.h"
#include "common/float_mode.h"

static struct {
#define X(result, name, arguments) result(*name) arguments;
    TORCH_SHIM(X)
    TORCH_SHIM_OPTIONAL(X)
#undef X
} shim;

static nvfp4_context *op_context;
static int32_t dtype_codes[NVFP4_INT64 + 1]; /* nvfp4_dtype to those of torch; -1: torch has none */

/* ---- arguments ---- */

static nvfp4_status read_dtype(int32_t code, const operation_tensor *row, int32_t *dtype) {
    for (*dtype = NVFP4_UINT8; *dtype <= NVFP4_INT64; ++*dtype)
        if (dtype_codes[*dtype] == code) return NVFP4_OK;
    return REJECT(row->name, ("dtype is torch's number %d", code), ("must be %s", dtypes_held(row->holds)));
}

/* The argument that names the dtype of a result, and memory that is allocated for one. */
static const operation_tensor named_dtype = {.name = "out_dtype", .role = OUTPUT, .holds = HOLDS_FLOATS};
static const operation_tensor allocated = {.name = "result", .role = OUTPUT, .holds = HOLDS_ANY};

static nvfp4_status read_tensor(torch_value value, const operation_tensor *row, nvfp4_tensor *t) {
    torch_tensor tensor = (torch_tensor)(uintptr_t)value;
    int64_t ndim, *sizes, *strides;
    int32_t code, type;
    if (shim.aoti_torch_get_dim(tensor, &ndim) || shim.aoti_torch_get_sizes(tensor, &sizes) ||
        shim.aoti_torch_get_strides(tensor, &strides) || shim.aoti_torch_get_dtype(tensor, &code) ||
        shim.aoti_torch_get_device_type(tensor, &type) || shim.aoti_torch_get_device_index(tensor, &t->device) ||
        shim.aoti_torch_get_data_ptr(tensor, &t->data))
        return CONTRADICTS(row->name, ("torch gives no access to its memory"));
    if (ndim > NVFP4_MAX_DIMS)
        return REJECT(row->name, ("has %d dimensions", (int)ndim), ("must have at most %d", NVFP4_MAX_DIMS));
    if (type != shim.aoti_torch_device_type_cuda()) t->device = NVFP4_HOST;
    t->ndim = (int32_t)ndim;
    memcpy(t->shape, sizes, (size_t)ndim * sizeof *sizes);
    memcpy(t->stride, strides, (size_t)ndim * sizeof *strides);
    int32_t dtype;
    nvfp4_status status = read_dtype(code, row, &dtype);
    t->dtype = (nvfp4_dtype)dtype;
    return status;
}

static nvfp4_status read_list(torch_value value, const operation *op, int32_t which, front_call *call) {
    const operation_tensor *row = &op->tensors[op->lists[which].tensor];
    const torch_list list = (torch_list)(uintptr_t)value;
    torch_value element;
    size_t count;
    if (shim.torch_list_size(list, &count)) return CONTRADICTS(row->name, ("torch gives no access to the list"));
    nvfp4_status status = start_list(op, which, (int64_t)count, call);
    for (size_t i = 0; i < count && !status; i++) {
        nvfp4_tensor t;
        if (shim.torch_list_get_item(list, i, &element))
            return CONTRADICTS(row->name, ("torch gives no access to the list"));
        status = read_tensor(element, row, &t);
        if (!status) status = add_to_list(op, which, (int64_t)i, &t, call);
    }
    return status;
}

/* Does the work of read_tensor; a uint8 tensor of shape [0] is an absent one. */
static nvfp4_status read_optional(torch_value value, const operation_tensor *row, nvfp4_tensor *t) {
    nvfp4_status status = read_tensor(value, row, t);
    if (!status && t->dtype == NVFP4_UINT8 && t->ndim == 1 && t->shape[0] == 0) t->dtype = NVFP4_NONE;
    return status;
}

static nvfp4_status read_float(torch_value value, const char *name, float *number) {
    double wide;
    memcpy(&wide, &value, sizeof wide);
    *number = (float)wide;
    if (isinf(*number) && !isinf(wide)) return CONTRADICTS(name, ("is beyond the largest float32, 3.4e38"));
    return NVFP4_OK;
}

static nvfp4_status read_name(torch_value value, const char *argument, name_parser *parse, int32_t *number) {
    const torch_string string = (torch_string)(uintptr_t)value;
    const char *name;
    size_t length;
    if (shim.torch_string_c_str(string, &name) || shim.torch_string_length(string, &length))
        return CONTRADICTS(argument, ("could not be read"));
    if (strlen(name) != length) return REJECT(argument, ("contains a null character"), ("must be a name"));
    return parse(name, number);
}

static nvfp4_status read_flags(torch_value value, const char *name, uint32_t *flags) {
    const int64_t wide = (int64_t)value;
    *flags = (uint32_t)wide;
    if (wide < 0 || wide > UINT32_MAX)
        return REJECT(name, ("is %lld", (long long)wide), ("must be between 0 and %u", UINT32_MAX));
    return NVFP4_OK;
}

static nvfp4_status read_size(torch_value value, const char *name, int64_t *size) {
    *size = (int64_t)value;
    if (*size >= 0 && *size <= INT32_MAX) return NVFP4_OK;
    return REJECT(name, ("is %lld", (long long)*size), ("must be between 0 and %d", INT32_MAX));
}

/* ---- results ---- */

/* Allocates what a tensor describes, beside `like`. */
static nvfp4_status new_tensor(torch_value like, nvfp4_tensor *t, torch_value *result) {
    torch_tensor source = (torch_tensor)(uintptr_t)like, tensor;
    int32_t type, index;
    if (shim.aoti_torch_get_device_type(source, &type) || shim.aoti_torch_get_device_index(source, &index) ||
        shim.aoti_torch_empty_strided(t->ndim, t->shape, t->stride, dtype_codes[t->dtype], type, index, &tensor))
        return fail(NVFP4_OUT_OF_MEMORY, "torch could not allocate a result of dtype %s", nvfp4_dtype_name(t->dtype));
    *result = (torch_value)(uintptr_t)tensor;
    return read_tensor(*result, &allocated, t);
}

static int32_t thread_count(void) {
    uint32_t count = 0;
    return shim.torch_get_num_threads(&count) ? 0 : (int32_t)count;
}

static nvfp4_status current_stream(int32_t device, void **stream) {
    *stream = NULL;
    if (device == NVFP4_HOST) return NVFP4_OK;
    if (!shim.aoti_torch_get_current_cuda_stream || shim.aoti_torch_get_current_cuda_stream(device, stream))
        return fail(NVFP4_UNSUPPORTED, "torch: this build has no CUDA, but a tensor is on cuda:%d", device);
    return NVFP4_OK;
}

static void delete_tensor(torch_value value) {
    if (value) shim.aoti_torch_delete_tensor_object((torch_tensor)(uintptr_t)value);
}

/* A list holds the handles of its elements, which outlive it. */
static void delete_list(torch_value value) {
    const torch_list list = (torch_list)(uintptr_t)value;
    torch_value element;
    size_t count;
    if (shim.torch_list_size(list, &count)) count = 0;
    for (size_t i = 0; i < count; i++)
        if (!shim.torch_list_get_item(list, i, &element)) delete_tensor(element);
    shim.torch_delete_list(list);
}

/* ---- calls ---- */

/* An operation has several operators, which differ in this alone. */
typedef struct operator_form {
    int results_given, lists_given; /* of tensors, where a list may stand for a tensor */
} operator_form;

/* Which list stands for a tensor; -1: none. */
static int32_t list_given(const operation *op, operator_form form, int32_t tensor) {
    return form.lists_given ? list_of(op, tensor) : -1;
}

/* Whether a scalar follows the results that are given: a schema has no argument without a default behind one with. */
static int is_last(const operation_scalar *scalar, operator_form form) {
    return form.results_given && scalar->schema_default;
}

typedef struct workspace {
    torch_value like, tensor;
} workspace;

static void *allocate(void *owner, size_t bytes) {
    workspace *w = owner;
    nvfp4_tensor memory = {.dtype = NVFP4_UINT8, .ndim = 1, .shape = {(int64_t)bytes}, .stride = {1}};
    return new_tensor(w->like, &memory, &w->tensor) == NVFP4_OK ? memory.data : NULL;
}

static nvfp4_status read_scalar(torch_value value, const operation *op, const operation_scalar *scalar,
                                front_call *call) {
    void *to = scalar_to_fill(scalar, call);
    switch (scalar->kind) {
    case SCALAR_FLOAT:
        return read_float(value, scalar_name(op, scalar), to);
    case SCALAR_FLAGS:
        return read_flags(value, scalar->name, to);
    case SCALAR_SIZE:
        return read_size(value, scalar->name, to);
    default:
        return read_name(value, scalar->name, parser_of(scalar->kind), to);
    }
}

/* An operator's arguments lie on the stack in the order of its schema: tensors that are read, scalars, then the results
 * that are given and the scalars with a default, or the dtype that the caller names for a result. */
static nvfp4_status read_call(const operation *op, operator_form form, const torch_value *stack, front_call *call) {
    nvfp4_status status = NVFP4_OK;
    int at = 0;
    op->defaults(&call->args);
    call->out_dtype = NVFP4_NONE;
    for (int32_t t = 0; t < op->tensor_count && !status; t++) {
        const operation_tensor *row = &op->tensors[t];
        nvfp4_tensor *tensor = tensor_to_fill(op, t, &call->args);
        if (!is_front_input(op, t)) continue;
        const torch_value value = stack[at++];
        const int32_t list = list_given(op, form, t);
        if (list >= 0)
            status = read_list(value, op, list, call);
        else
            status = row->optional ? read_optional(value, row, tensor) : read_tensor(value, row, tensor);
    }
    for (int32_t i = 0; i < op->scalar_count && !status; i++)
        if (!is_last(&op->scalars[i], form)) status = read_scalar(stack[at++], op, &op->scalars[i], call);
    for (int32_t i = 0; i < op->result_count && form.results_given && !status; i++) {
        const int32_t t = op->results[i].tensor;
        status = read_tensor(stack[at++], &op->tensors[t], tensor_to_fill(op, t, &call->args));
    }
    for (int32_t i = 0; i < op->scalar_count && !status; i++)
        if (is_last(&op->scalars[i], form)) status = read_scalar(stack[at++], op, &op->scalars[i], call);
    if (!status && !form.results_given && takes_out_dtype(op))
        status = read_dtype((int32_t)stack[at], &named_dtype, &call->out_dtype);
    for (int32_t i = 0; i < op->result_count && !form.results_given && !status; i++)
        status = describe_result(op, i, call);
    return status ? status : op->adapt ? op->adapt(&call->args) : NVFP4_OK;
}

static void delete_scalar(torch_value value, const operation_scalar *scalar) {
    if (parser_of(scalar->kind)) shim.torch_delete_string((torch_string)(uintptr_t)value);
}

/* Frees the tensors, lists and strings among an operator's arguments. */
static void delete_arguments(const operation *op, operator_form form, const torch_value *stack) {
    int at = 0;
    for (int32_t t = 0; t < op->tensor_count; t++)
        if (list_given(op, form, t) >= 0)
            delete_list(stack[at++]);
        else if (is_front_input(op, t))
            delete_tensor(stack[at++]);
    for (int32_t i = 0; i < op->scalar_count; i++)
        if (!is_last(&op->scalars[i], form)) delete_scalar(stack[at++], &op->scalars[i]);
    for (int32_t i = 0; i < op->result_count && form.results_given; i++) delete_tensor(stack[at++]);
    for (int32_t i = 0; i < op->scalar_count; i++)
        if (is_last(&op->scalars[i], form)) delete_scalar(stack[at++], &op->scalars[i]);
}

static nvfp4_status run(const operation *op, operator_form form, const torch_value *stack, front_call *call,
                        torch_value *results) {
    prepared_call prepared;
    workspace w = {.like = stack[0]};
    const checked_call c = {op, &call->args};
    nvfp4_call *how = &call->args.call;
    nvfp4_status status = read_call(op, form, stack, call);
    if (!status) status = operation_prepare(op_context, &c, &prepared);
    for (int32_t i = 0; i < op->result_count && !form.results_given && !status; i++) {
        status = new_tensor(stack[0], tensor_to_fill(op, op->results[i].tensor, &call->args), &results[i]);
        if (!status) status = check_new_result(op, i, call);
    }
    if (status) return status;
    how->threads = thread_count();
    how->allocate = allocate;
    how->owner = &w;
    status = current_stream(tensor_at(op, 0, &call->args)->device, &how->stream);
    if (!status) status = operation_run(op_context, &c, &prepared);
    delete_tensor(w.tensor);
    return status;
}

/* The body of each operator. Nothing is held when torch throws the error through it. */
static void call_operation(const operation *op, operator_form form, torch_value *stack) {
    torch_value results[OPERATION_MAX_TENSORS] = {0};
    front_call call;
    const int count = form.results_given ? 0 : op->result_count;
    const float_mode before = set_float_mode(OWN_FLOAT_MODE);
    memset(call.lists, 0, sizeof call.lists);
    nvfp4_status status = run(op, form, stack, &call, results);
    free_lists(&call);
    set_float_mode(before);
    delete_arguments(op, form, stack);
    for (int i = 0; i < count; i++) {
        if (status) delete_tensor(results[i]);
        stack[i] = results[i];
    }
    if (status) shim.aoti_torch_check(false, "nvfp4", __FILE__, __LINE__, error_message_in(&python_words));
}

/* torch gives a kernel no data of its own, so each operator has a function. */
#define KERNEL(function, name, results_given, lists_given)                                                             \
    static void function(torch_value *stack, uint64_t inputs, uint64_t outputs) {                                      \
        (void)inputs, (void)outputs;                                                                                   \
        call_operation(&operation_##name, (operator_form){results_given, lists_given}, stack);                         \
    }
#define FRONT_OPERATION(name)                                                                                          \
    KERNEL(name##_kernel, name, operation_##name.given == RESULTS_GIVEN, 0)                                            \
    KERNEL(name##_out_kernel, name, 1, 0)                                                                              \
    KERNEL(name##_list_kernel, name, 0, 1)                                                                             \
    KERNEL(name##_list_out_kernel, name, 1, 1)
#include "bindings/front_operations.def"
#undef KERNEL

/* ---- registration ---- */

enum { NAME_BYTES = 64, SCHEMA_BYTES = 640 };

typedef struct text {
    char *at, *end;
} text;

__attribute__((format(printf, 2, 3))) static void append(text *t, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(t->at, (size_t)(t->end - t->at), format, arguments);
    va_end(arguments);
    t->at += length < t->end - t->at ? length : t->end - t->at - 1;
}

/* "Tensor x", or of the n-th that is written "Tensor(a!) x". */
static void append_tensor(text *t, const operation_tensor *row, const char *separator, char *alias) {
    if (row->role == INPUT)
        append(t, "%sTensor %s", separator, row->name);
    else
        append(t, "%sTensor(%c!) %s", separator, (*alias)++, row->name);
}

static void append_scalar(text *t, const operation_scalar *scalar) {
    static const char *const types[SCALAR_KINDS] = {
        [SCALAR_FLOAT] = "float", [SCALAR_LAYOUT] = "str", [SCALAR_BLOCK_SCALE] = "str", [SCALAR_ACTIVATION] = "str",
        [SCALAR_BACKEND] = "str", [SCALAR_FLAGS] = "int",  [SCALAR_SIZE] = "SymInt",
    };
    const char *quote = parser_of(scalar->kind) ? "\"" : "";
    append(t, ", %s %s", types[scalar->kind], scalar->name);
    if (scalar->schema_default) append(t, "=%s%s%s", quote, scalar->schema_default, quote);
}

/* The schema of an operator: see read_call for the order. */
static void write_schema(const operation *op, const char *name, operator_form form, char schema[SCHEMA_BYTES]) {
    static const char *const returned[OPERATION_MAX_RESULTS + 1] = {
        [1] = "Tensor", [2] = "(Tensor, Tensor)", [3] = "(Tensor, Tensor, Tensor)"};
    text t = {schema, schema + SCHEMA_BYTES};
    const char *separator = "";
    char alias = 'a';
    append(&t, "%s(", name);
    for (int32_t i = 0; i < op->tensor_count; i++, separator = ", ")
        if (list_given(op, form, i) >= 0)
            append(&t, "%sTensor[] %s", separator, op->tensors[i].name);
        else if (is_front_input(op, i))
            append_tensor(&t, &op->tensors[i], separator, &alias);
    for (int32_t i = 0; i < op->scalar_count; i++)
        if (!is_last(&op->scalars[i], form)) append_scalar(&t, &op->scalars[i]);
    for (int32_t i = 0; i < op->result_count && form.results_given; i++)
        append_tensor(&t, &op->tensors[op->results[i].tensor], ", ", &alias);
    for (int32_t i = 0; i < op->scalar_count; i++)
        if (is_last(&op->scalars[i], form)) append_scalar(&t, &op->scalars[i]);
    if (!form.results_given && takes_out_dtype(op)) append(&t, ", ScalarType out_dtype");
    append(&t, ") -> %s", form.results_given ? "()" : returned[op->result_count]);
}

static const struct {
    const operation *op;
    torch_kernel *kernels[2][2]; /* by whether lists are given, then by whether results may be new and are given */
} operators[] = {
#define FRONT_OPERATION(name)                                                                                          \
    {&operation_##name, {{name##_kernel, name##_out_kernel}, {name##_list_kernel, name##_list_out_kernel}}},
#include "bindings/front_operations.def"
};

typedef int32_t registrar(torch_library library, const operation *op, const char *name, operator_form form,
                          torch_kernel *kernel);

static int32_t define(torch_library library, const operation *op, const char *name, operator_form form,
                      torch_kernel *kernel) {
    char schema[SCHEMA_BYTES];
    (void)kernel;
    write_schema(op, name, form, schema);
    return shim.aoti_torch_library_def(library, schema);
}

static int32_t implement(torch_library library, const operation *op, const char *name, operator_form form,
                         torch_kernel *kernel) {
    (void)op, (void)form;
    return shim.aoti_torch_library_impl(library, name, kernel);
}

/* Applies `registrar` to every operator: one of the operation's name, one with `_list` where lists may stand for
 * tensors, and one of each with `_out` where results may be given. */
static int32_t for_each_operator(registrar *one, torch_library library) {
    int32_t error = 0;
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        const operation *op = operators[i].op;
        for (int lists = 0; lists <= (op->list_count > 0); lists++)
            for (int out = 0; out <= (op->given == RESULTS_NEW_OR_GIVEN) && !error; out++) {
                const operator_form form = {out || op->given == RESULTS_GIVEN, lists};
                char name[NAME_BYTES];
                snprintf(name, sizeof name, "%s%s%s", op->name, lists ? "_list" : "", out ? "_out" : "");
                error = one(library, op, name, form, operators[i].kernels[lists][out]);
            }
    }
    return error;
}

static nvfp4_status open_shim(void) {
    /* Finds the libraries by soname, and only if they are loaded already. */
    void *cpu = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    void *cuda = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    if (!cpu) return fail(NVFP4_UNSUPPORTED, "torch: libtorch_cpu.so is not loaded in this process");
#define X(result, function, arguments)                                                                                 \
    *(void **)&shim.function = dlsym(cpu, #function);                                                                  \
    if (!shim.function && cuda) *(void **)&shim.function = dlsym(cuda, #function);
    TORCH_SHIM_OPTIONAL(X)
#undef X
#define X(result, function, arguments)                                                                                 \
    *(void **)&shim.function = dlsym(cpu, #function);                                                                  \
    if (!shim.function) return fail(NVFP4_UNSUPPORTED, "torch: has no %s; torch 2.10 or newer is needed", #function);
    TORCH_SHIM(X)
#undef X
    dtype_codes[NVFP4_NONE] = -1;
    dtype_codes[NVFP4_UINT8] = shim.aoti_torch_dtype_uint8();
    dtype_codes[NVFP4_E2M1X2] = shim.torch_dtype_float4_e2m1fn_x2 ? shim.torch_dtype_float4_e2m1fn_x2() : -1;
    dtype_codes[NVFP4_E4M3] = shim.aoti_torch_dtype_float8_e4m3fn();
    dtype_codes[NVFP4_FP16] = shim.aoti_torch_dtype_float16();
    dtype_codes[NVFP4_BF16] = shim.aoti_torch_dtype_bfloat16();
    dtype_codes[NVFP4_FP32] = shim.aoti_torch_dtype_float32();
    dtype_codes[NVFP4_INT32] = shim.aoti_torch_dtype_int32();
    dtype_codes[NVFP4_INT64] = shim.aoti_torch_dtype_int64();
    return NVFP4_OK;
}

nvfp4_status torch_ops_register(nvfp4_context *context) {
    static const char *const keys[] = {"CPU", "CUDA"};
    torch_library library;
    if (op_context) return NVFP4_OK;
    nvfp4_status status = open_shim();
    if (status) return status;
    /* The libraries are torch's for the life of the process. */
    int32_t error = shim.aoti_torch_library_init_fragment("nvfp4", __FILE__, __LINE__, &library);
    if (!error) error = for_each_operator(define, library);
    for (size_t k = 0; k < sizeof keys / sizeof *keys && !error; k++) {
        error = shim.aoti_torch_library_init_impl("nvfp4", keys[k], __FILE__, __LINE__, &library);
        if (!error) error = for_each_operator(implement, library);
    }
    if (error) return fail(NVFP4_UNSUPPORTED, "torch: refused the operators of nvfp4");
    op_context = context;
    return NVFP4_OK;
}
