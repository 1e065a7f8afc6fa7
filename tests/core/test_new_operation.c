/* A new operation is a row of tables: this program adds one beside the library's, with a planner for the CPU and one
 * for the GPU. `scale_by` multiplies a matrix of fp32 by a number. Checks, results of the wrong kind, older arguments
 * and both ways of running follow from the row. Without a driver the GPU's launch plan alone is looked at. Prints "N
 * passed, N failed". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/row_op.h"
#include "api/rules.h"
#include "common/error.h"

static int passed, failed;

static void expect(int holds, const char *rule) {
    passed += holds != 0;
    failed += holds == 0;
    if (!holds) printf("FAILED: %s (%s)\n", rule, nvfp4_last_error());
}

/* ---- the operation ---- */

typedef struct scale_by_args {
    nvfp4_call call;
    nvfp4_tensor x, y;
    float factor;
    float offset; /* newer than the first version, which ended before it */
} scale_by_args;

typedef struct scale_by_problem {
    int64_t count;
    const float *x;
    float *y;
    float factor, offset;
} scale_by_problem;
_Static_assert(sizeof(scale_by_args) <= sizeof(operation_args), "front ends have room for it");
_Static_assert(sizeof(scale_by_problem) <= sizeof(row_op_problem), "so has a prepared call");

static void defaults(operation_args *args) {
    const scale_by_args own = {.call = {.size = sizeof own}, .factor = 1.0f};
    memcpy(args, &own, sizeof own);
}

static nvfp4_status check(const checked_call *c, prepared_call *call) {
    const scale_by_args *args = c->args;
    scale_by_problem *p = (scale_by_problem *)&call->problem;
    matrix x, y;
    nvfp4_status status = check_matrix(c, &args->x, "[R, K]", "[L, R, K]", READ_ONLY, &x);
    if (!status) status = check_matrix(c, &args->y, "[R, K]", "[L, R, K]", WRITTEN, &y);
    if (!status && (x.rows != y.rows || x.columns != y.columns))
        status = REJECT(argument_name(c, &args->y), ("is %d x %d", (int)y.rows, (int)y.columns),
                        ("must be as x, %d x %d", (int)x.rows, (int)x.columns));
    if (status) return status;
    *p = (scale_by_problem){.count = x.rows * x.columns, .factor = args->factor, .offset = args->offset};
    call->is_empty = p->count == 0;
    return NVFP4_OK;
}

static void bind(const checked_call *c, prepared_call *call) {
    const scale_by_args *args = c->args;
    scale_by_problem *p = (scale_by_problem *)&call->problem;
    p->x = args->x.data;
    p->y = args->y.data;
}

/* ---- its planners ---- */

static nvfp4_status run_host(const row_op_problem *problem, int32_t threads) {
    const scale_by_problem *p = (const scale_by_problem *)problem;
    (void)threads;
    for (int64_t i = 0; i < p->count; i++) p->y[i] = p->x[i] * p->factor + p->offset;
    return NVFP4_OK;
}

static void build(const device_props *props, const row_op_problem *problem, void *workspace, launch_plan *out) {
    const scale_by_problem *p = (const scale_by_problem *)problem;
    (void)props, (void)workspace;
    launch_step *step = add_step(out, 0, (p->count + 255) / 256, 0);
    *(scale_by_problem *)add_param(out, step, sizeof *p) = *p;
}

static const row_op_planner on_host = {.run_host = run_host};
static const row_op_planner on_gpu = {.kernels = &quantize_kernels, .build = build}; /* any kernel will do */

/* ---- its row ---- */

static const operation_tensor tensors[] = {
    {"x", offsetof(scale_by_args, x), INPUT, HOLDS_FLOAT32, 0, 0},
    {"y", offsetof(scale_by_args, y), OUTPUT, HOLDS_FLOAT32, 0, 0},
};
static const operation_scalar scalars[] = {{"factor", SCALAR_FLOAT, offsetof(scale_by_args, factor), 0, NULL}};
static const operation_result results[] = {{
    .tensor = 1,
    .dtype = NVFP4_FP32,
    .shape = {"[*batch_of(x), rows_of(x), columns_of(x)]", 0},
}};
static const operation scale_by = {
    .name = "scale_by",
    .args_bytes = sizeof(scale_by_args),
    .min_bytes = offsetof(scale_by_args, offset),
    .defaults = defaults,
    .tensors = TENSORS(tensors),
    .scalars = SCALARS(scalars),
    .results = RESULTS(results),
    .planners = {[ON_HOST] = &on_host, [ON_GPU] = &on_gpu},
    .plan = row_op_plan,
    .run = row_op_run,
    .check = check,
    .bind = bind,
};

/* ---- tests ---- */

enum { ROWS = 3, COLUMNS = 5 };
static float x[ROWS][COLUMNS], y[ROWS][COLUMNS];

static nvfp4_tensor dense(float (*data)[COLUMNS]) {
    return (nvfp4_tensor){.data = data,
                          .dtype = NVFP4_FP32,
                          .device = NVFP4_HOST,
                          .ndim = 2,
                          .shape = {ROWS, COLUMNS},
                          .stride = {COLUMNS, 1}};
}

static scale_by_args arguments(void) {
    operation_args all;
    scale_by_args args;
    scale_by.defaults(&all);
    memcpy(&args, &all, sizeof args);
    args.x = dense(x);
    args.y = dense(y);
    args.factor = 2.0f;
    memset(y, 0x77, sizeof y);
    return args;
}

static int is_untouched(void) {
    for (size_t i = 0; i < sizeof y; i++)
        if (((const uint8_t *)y)[i] != 0x77) return 0;
    return 1;
}

static void check_rejected(nvfp4_context *context, const scale_by_args *args, const char *message) {
    expect(operation_call(context, &scale_by, args) == NVFP4_INVALID && !strcmp(nvfp4_last_error(), message) &&
               is_untouched(),
           message);
}

static void check_rules(nvfp4_context *context) {
    scale_by_args args = arguments();
    args.y.dtype = NVFP4_NONE;
    check_rejected(context, &args, "y: is missing; must be a tensor");
    args = arguments();
    args.x.dtype = NVFP4_FP16;
    check_rejected(context, &args, "x: dtype is float16; must be float32");
    args = arguments();
    args.y.device = 0;
    check_rejected(context, &args, "y: is on cuda:0 but x is on the CPU");
    args = arguments();
    args.x = args.y;
    check_rejected(context, &args, "y: shares memory with x; must not overlap it, it is written");
    args = arguments();
    args.x.data = NULL;
    check_rejected(context, &args, "x: has no data; must not be a fake or meta tensor");
    args = arguments();
    args.y.shape[0]--;
    check_rejected(context, &args, "y: is 2 x 5; must be as x, 3 x 5");
    args = arguments();
    args.call.size--;
    expect(operation_call(context, &scale_by, &args) == NVFP4_OK, "a size between two versions is completed");
    args = arguments();
    args.call.size = offsetof(scale_by_args, offset) - 1;
    expect(operation_call(context, &scale_by, &args) == NVFP4_INVALID && is_untouched(), "a shorter one is rejected");
}

static void check_results(nvfp4_context *context) {
    scale_by_args args = arguments();
    args.offset = 1.0f;
    expect(operation_call(context, &scale_by, &args) == NVFP4_OK && y[2][4] == 2 * x[2][4] + 1, "it runs");
    args = arguments();
    args.offset = 1.0f;
    args.call.size = offsetof(scale_by_args, offset);
    expect(operation_call(context, &scale_by, &args) == NVFP4_OK && y[2][4] == 2 * x[2][4],
           "of an older program the newer field has its default");
    args = arguments();
    args.x.shape[0] = args.y.shape[0] = 0;
    expect(operation_call(context, &scale_by, &args) == NVFP4_OK && is_untouched(), "nothing of nothing");
}

/* The GPU's planner, and what its launch holds; with a driver that runs nothing (FAKE_CC), the launch itself. */
static void check_launch(nvfp4_context *context) {
    scale_by_args args = arguments();
    const checked_call c = {&scale_by, &args};
    static launch_plan out;
    prepared_call call;
    expect(operation_prepare(context, &c, &call) == NVFP4_OK, "it is prepared");
    scale_by.bind(&c, &call);
    launch_plan_init(&out);
    on_gpu.build(NULL, &call.problem.row_op, NULL, &out);
    const scale_by_problem *p = (const scale_by_problem *)(out.params + out.step[0].param_offset[0]);
    expect(out.steps == 1 && out.step[0].grid_x == 1 && out.step[0].grid_z == 1 && out.step[0].params == 1, "a launch");
    expect(p->x == x[0] && p->y == y[0] && p->count == ROWS * COLUMNS && p->factor == 2.0f, "its parameter");
    if (!getenv("FAKE_CC")) return;
    args.x.device = args.y.device = 0;
    expect(operation_call(context, &scale_by, &args) == NVFP4_OK && is_untouched(), "it is launched");
    operation elsewhere = scale_by;
    elsewhere.planners[ON_GPU] = NULL;
    expect(operation_call(context, &elsewhere, &args) == NVFP4_UNSUPPORTED &&
               !strcmp(nvfp4_last_error(), "x: is on a GPU; scale_by runs elsewhere alone"),
           "without a planner there is an error");
}

int main(void) {
    nvfp4_context *context = NULL;
    if (nvfp4_create(&context)) return 1;
    for (int i = 0; i < ROWS * COLUMNS; i++) x[i / COLUMNS][i % COLUMNS] = (float)(i * 3 - 7);
    check_rules(context);
    check_results(context);
    check_launch(context);
    nvfp4_destroy(context);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
