/* The functions behind info() and init(): driver, devices, and how a shape would be run. */
#include "api/context.h"
#include "bindings/python/module.h"
#include "plan/gemm_backend.h"
#ifdef NVFP4_DUMP
#include "api/debug.h"
#endif

enum {
    DEVICE,
    BACKEND,
    A_DTYPE,
    M,
    N,
    K,
    L,
    FLAGS,
    SHAPE_COUNT,
    GROUPS = SHAPE_COUNT,
    OPERATION
}; /* the arguments that describe a shape */

/* 1, or 0 with an error message or a Python exception. */
static int read_shape(arguments a, nvfp4_shape *shape) {
    int64_t device, flags;
    *shape = NVFP4_SHAPE;
    const char *a_dtype = a[A_DTYPE] == Py_None ? NULL : PyUnicode_AsUTF8AndSize(a[A_DTYPE], NULL);
    if (a[A_DTYPE] != Py_None && !a_dtype) return 0;
    if ((a_dtype && dtype_from_name("a_dtype", a_dtype, (int32_t *)&shape->a_dtype) != NVFP4_OK) ||
        !read_integer(a[DEVICE], "device", NVFP4_HOST, INT32_MAX, &device) ||
        !read_backend(a[BACKEND], (int32_t *)&shape->backend) || !read_integer(a[M], "m", 0, INT32_MAX, &shape->m) ||
        !read_integer(a[N], "n", 0, INT32_MAX, &shape->n) || !read_integer(a[K], "k", 0, INT32_MAX, &shape->k) ||
        !read_integer(a[L], "l", 0, INT32_MAX, &shape->l) || !read_integer(a[FLAGS], "flags", 0, UINT32_MAX, &flags))
        return 0;
    shape->device = (int32_t)device;
    shape->flags = (uint32_t)flags;
    return 1;
}

/* plan(shape..., groups, operation), the last two of which may be missing: how it would be run on a device, as a dict
 * with the names of nvfp4_plan. */
PyObject *python_plan(PyObject *module, arguments a, Py_ssize_t count) {
    nvfp4_shape shape;
    nvfp4_plan plan;
    int64_t operation = NVFP4_SHAPE_PRODUCT;
    (void)module;
    if (count != GROUPS && count != OPERATION && !check_count("plan", count, OPERATION + 1)) return NULL;
    if (!read_shape(a, &shape) || (count > GROUPS && !read_integer(a[GROUPS], "groups", 0, INT32_MAX, &shape.groups)) ||
        (count > OPERATION && !read_integer(a[OPERATION], "operation", 0, INT32_MAX, &operation)))
        return raise_error();
    shape.operation = (nvfp4_shape_operation)operation;
    if (nvfp4_plan_shape(python_context, &shape, &plan) != NVFP4_OK) return raise_error();
    return Py_BuildValue(
        "{ss,ss,ss,si,si,si,si,sN,si,sL,sn,si,si,si,sd,sd,sN,sz}", "backend", nvfp4_backend_name(plan.backend),
        "kernel", plan.name, "reason", plan.reason, "tile_m", plan.tile_m, "tile_n", plan.tile_n, "tile_k", plan.tile_k,
        "stages", plan.stages, "swap_ab", PyBool_FromLong(plan.swap_ab), "split_k", plan.split_k, "grid",
        (long long)plan.grid, "workspace", (Py_ssize_t)plan.workspace, "prefetch_stages", plan.prefetch_stages,
        "ctas_per_sm", plan.ctas_per_sm, "candidates", plan.candidates, "modelled_us", plan.modelled_us, "single_us",
        plan.single_us, "fused", PyBool_FromLong(plan.is_fused), "model", plan.model);
}

/* ---- the table of backends ---- */

/* The names of the types of A that a mask of gemm_planner has. */
static PyObject *types_of(uint32_t types) {
    PyObject *names = PyList_New(0);
    if (types & TAKES_E2M1) types |= 1u << NVFP4_UINT8 | 1u << NVFP4_E2M1X2;
    for (int32_t d = NVFP4_UINT8; names && types >> d; d++) {
        PyObject *name = types >> d & 1 ? PyUnicode_FromString(nvfp4_dtype_name((nvfp4_dtype)d)) : NULL;
        if ((types >> d & 1) && (!name || PyList_Append(names, name) != 0)) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

/* {"gemm": [types of A], "gemm_nn": ...}, without the kinds of products that the backend does not take. */
static PyObject *kinds_of(const gemm_backend *backend, int linear_scales) {
    static const char *const names[] = {[PRODUCT_GEMM] = "gemm",
                                        [PRODUCT_GEMM_NN] = "gemm_nn",
                                        [PRODUCT_GROUPED] = "grouped_gemm",
                                        [PRODUCT_GROUPED_NN] = "grouped_gemm_nn"};
    _Static_assert(sizeof names / sizeof *names == PRODUCT_KINDS, "each kind has a name");
    PyObject *all = PyDict_New();
    for (int32_t o = 0; all && o < PRODUCT_KINDS; o++) {
        const gemm_planner *planner = backend->planners[o];
        if (!planner) continue;
        PyObject *types = types_of(linear_scales ? planner->a_types & ~planner->tma_a_types : planner->a_types);
        if (!types || PyDict_SetItemString(all, names[o], types) != 0) Py_CLEAR(all);
        Py_XDECREF(types);
    }
    return all;
}

static PyObject *number_or_none(int has, int32_t number) {
    return has ? PyLong_FromLong(number) : Py_NewRef(Py_None);
}

static PyObject *roundings_of(const rounding_bound *r) {
    if (!r->block_k) return Py_NewRef(Py_None);
    return Py_BuildValue("{si,si,si}", "per_block", r->per_block, "block_k", r->block_k, "constant", r->constant);
}

static PyObject *describe_backend(int32_t number) {
    const gemm_backend *backend = gemm_backends[number];
    const kernel_set *kernels = backend->kernels;
    const gemm_planner *gemm = backend->planners[PRODUCT_GEMM];
    PyObject *architectures = PyUnicode_FromString(backend->architectures);
    PyObject *split = architectures ? PyUnicode_Split(architectures, NULL, -1) : NULL;
    Py_XDECREF(architectures);
    if (!split) return NULL;
    const rounding_bound *of_a16 = backend->a16_roundings.block_k ? &backend->a16_roundings : &backend->roundings;
    return Py_BuildValue(
        "{ss,si,ss,sN,sN,sN,sN,sN,sN,sN,sN}", "name", backend->name, "number", number, "runs_on", backend->runs_on,
        "architectures", split, "min_capability",
        number_or_none(kernels != NULL, kernels ? kernels->min_capability : 0), "max_capability",
        number_or_none(kernels && kernels->max_capability < INT32_MAX, kernels ? kernels->max_capability : 0),
        "product_kinds", kinds_of(backend, 0), "linear_scales", kinds_of(backend, 1), "a16_rows",
        number_or_none(gemm && gemm->a16_rows, gemm ? gemm->a16_rows : 0), "roundings",
        roundings_of(&backend->roundings), "a16_roundings", roundings_of(of_a16));
}

/* Every backend as a dict, by number. */
PyObject *python_backends(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    PyObject *all = PyList_New(0);
    for (int32_t b = NVFP4_AUTO + 1; all && b < GEMM_BACKENDS; b++) {
        PyObject *one = describe_backend(b);
        if (!one || PyList_Append(all, one) != 0) Py_CLEAR(all);
        Py_XDECREF(one);
    }
    return all;
}

/* nvfp4_set_candidate: force the plan of that rank. */
PyObject *python_set_candidate(PyObject *module, PyObject *candidate) {
    (void)module;
    int64_t place;
    if (!read_integer(candidate, "candidate", 0, INT32_MAX, &place) ||
        nvfp4_set_candidate(python_context, (int32_t)place) != NVFP4_OK)
        return raise_error();
    Py_RETURN_NONE;
}

/* nvfp4_set_default_backend; None: auto. */
PyObject *python_set_default_backend(PyObject *module, PyObject *name) {
    (void)module;
    int32_t backend;
    if (!read_backend(name, &backend) || nvfp4_set_default_backend(python_context, (nvfp4_backend)backend) != NVFP4_OK)
        return raise_error();
    Py_RETURN_NONE;
}

/* nvfp4_override_plan, the plan by its settings. */
PyObject *python_override_plan(PyObject *module, arguments a, Py_ssize_t count) {
    enum { KERNEL = SHAPE_COUNT, SWAP_AB, SPLIT_K, PREFETCH_STAGES, CTAS_PER_SM, COUNT };
    nvfp4_shape shape;
    (void)module;
    if (!check_count("override_plan", count, COUNT)) return NULL;
    int64_t split_k, prefetch_stages, ctas_per_sm;
    int swap_ab = PyObject_IsTrue(a[SWAP_AB]);
    const char *kernel = PyUnicode_AsUTF8AndSize(a[KERNEL], NULL);
    if (swap_ab < 0 || !kernel) return NULL;
    if (!read_shape(a, &shape) || !read_integer(a[SPLIT_K], "split_k", 1, INT32_MAX, &split_k) ||
        !read_integer(a[PREFETCH_STAGES], "prefetch_stages", 0, INT32_MAX, &prefetch_stages) ||
        !read_integer(a[CTAS_PER_SM], "ctas_per_sm", 0, 2, &ctas_per_sm))
        return raise_error();
    const nvfp4_plan plan = {.name = kernel,
                             .swap_ab = swap_ab,
                             .split_k = (int32_t)split_k,
                             .prefetch_stages = (int32_t)prefetch_stages,
                             .ctas_per_sm = (int32_t)ctas_per_sm};
    if (nvfp4_override_plan(python_context, &shape, &plan) != NVFP4_OK) return raise_error();
    Py_RETURN_NONE;
}

PyObject *python_clear_overrides(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    nvfp4_clear_overrides(python_context);
    Py_RETURN_NONE;
}

/* {"version": 13000, "needed": 12000, "devices": 1}, or the reason why there is no driver, as a string. */
PyObject *python_driver(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    int32_t count, version;
    if (nvfp4_driver_info(python_context, &count, &version) != NVFP4_OK)
        return PyUnicode_FromString(nvfp4_last_error());
    return Py_BuildValue("{si,si,si}", "version", version, "needed", nvfp4_driver_needed(), "devices", count);
}

PyObject *python_device(PyObject *module, PyObject *ordinal) {
    (void)module;
    int64_t device;
    nvfp4_device d;
    if (!read_integer(ordinal, "device", 0, INT32_MAX, &device) ||
        nvfp4_device_info(python_context, (int32_t)device, &d) != NVFP4_OK)
        return raise_error();
    return Py_BuildValue("{ss,si,si,si,si,si,si,sL,sL,sN,sN,ss}", "name", d.name, "compute_capability",
                         d.compute_capability, "sm_count", d.sm_count, "shared_per_block", d.shared_per_block,
                         "shared_per_sm", d.shared_per_sm, "clock_mhz", d.clock_mhz, "memory_gb_s", d.memory_gb_s,
                         "l2_bytes", (long long)d.l2_bytes, "memory_bytes", (long long)d.memory_bytes,
                         "reads_host_memory", PyBool_FromLong(d.reads_host_memory), "usable", PyBool_FromLong(d.usable),
                         "reason", d.unusable_reason);
}

/* The clusters of 2, 4 and 8 CTAs that a device says run at a time, with one CTA an SM and with two; 0: it has not
 * said, -1: none. Loads its code. */
PyObject *python_clusters(PyObject *module, PyObject *ordinal) {
    (void)module;
    int64_t device;
    target where;
    if (!read_integer(ordinal, "device", 0, INT32_MAX, &device) ||
        find_target(python_context, NVFP4_AUTO, (int32_t)device, &where) != NVFP4_OK)
        return raise_error();
    const int32_t (*fit)[3] = where.props->clusters;
    return Py_BuildValue("((iii)(iii))", fit[0][0], fit[0][1], fit[0][2], fit[1][0], fit[1][1], fit[1][2]);
}

PyObject *python_load(PyObject *module, PyObject *ordinal) {
    (void)module;
    int64_t device;
    if (!read_integer(ordinal, "device", 0, INT32_MAX, &device) ||
        nvfp4_init_device(python_context, (int32_t)device) != NVFP4_OK)
        return raise_error();
    Py_RETURN_NONE;
}

PyObject *python_cpu_kernel(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyUnicode_FromString(nvfp4_cpu_kernel());
}

#ifdef NVFP4_DUMP
/* nvfp4_dump(memory, cta, k_block), memory being an address; 0 ends it. Returns the bytes that a dump takes. */
PyObject *python_dump(PyObject *module, arguments a, Py_ssize_t count) {
    enum { MEMORY, CTA, K_BLOCK, COUNT };
    (void)module;
    if (!check_count("dump", count, COUNT)) return NULL;
    int64_t memory, cta, k_block;
    if (!read_integer(a[MEMORY], "memory", 0, INT64_MAX, &memory) || !read_integer(a[CTA], "cta", 0, INT32_MAX, &cta) ||
        !read_integer(a[K_BLOCK], "k_block", 0, INT32_MAX, &k_block))
        return raise_error();
    nvfp4_dump(python_context, (void *)(uintptr_t)memory, (int32_t)cta, (int32_t)k_block);
    return PyLong_FromSize_t(nvfp4_dump_bytes());
}

/* nvfp4_placement(device, memory), memory being an address; 0 ends it. */
PyObject *python_placement(PyObject *module, arguments a, Py_ssize_t count) {
    enum { DEVICE, MEMORY, COUNT };
    (void)module;
    if (!check_count("placement", count, COUNT)) return NULL;
    int64_t device, memory;
    if (!read_integer(a[DEVICE], "device", 0, INT32_MAX, &device) ||
        !read_integer(a[MEMORY], "memory", 0, INT64_MAX, &memory) ||
        nvfp4_placement(python_context, (int32_t)device, (void *)(uintptr_t)memory) != NVFP4_OK)
        return raise_error();
    Py_RETURN_NONE;
}
#endif
