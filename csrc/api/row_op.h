/* The row ops: where a call runs, and the launch. */
#ifndef NVFP4_API_ROW_OP_H
#define NVFP4_API_ROW_OP_H

#include "api/operation.h"

/* `.planners = ROW_OP(name)` in the row of a row op. */
#define PLANNERS(name) {[ON_HOST] = &cpu_##name##_planner, [ON_GPU] = &gpu_##name##_planner}
#define ROW_OP(name)   PLANNERS(name), .plan = row_op_plan, .run = row_op_run

nvfp4_status row_op_plan(nvfp4_context *context, const checked_call *c, prepared_call *call);
/* Launches or computes a row op by its planners. */
nvfp4_status row_op_launch(nvfp4_context *context, const row_op_planner *const planners[ROW_OP_TARGETS],
                           const nvfp4_call *how, const target *where, const row_op_problem *problem);
nvfp4_status row_op_run(nvfp4_context *context, const checked_call *c, const prepared_call *call);

#endif
