/* The plan of a product: how it is chosen, and the errors where there is none. */
#ifndef NVFP4_API_PLAN_H
#define NVFP4_API_PLAN_H

#include "api/call.h"
#include "plan/choose.h"

/* Chooses the plan of the product p, which may be a step of the call, on the call's target. */
nvfp4_status plan_product(nvfp4_context *context, const product_problem *p, uint32_t flags, prepared_call *call);
/* The same on a GPU, of a product that is not empty, by these overridden settings and this rank (nvfp4_set_candidate).
 */
nvfp4_status plan_on_gpu(nvfp4_context *context, const product_problem *p, uint32_t flags,
                         const plan_settings *override, int32_t rank, prepared_call *call);

/* ---- no_backend.c ---- */

/* Drops the backends of a mask that do not take the product. */
uint32_t backends_taking(uint32_t backends, const gemm_problem *p);
/* The error where no backend that may run the call takes it: it names those that do, on this device or else anywhere.
 */
nvfp4_status reject_backends(const nvfp4_context *context, const target *where, const gemm_problem *p);
/* The error where no backend has one order of additions for every M: it names the backends of the device that do. */
nvfp4_status reject_batch_invariant(const nvfp4_context *context, const target *where, const plan_query *query);
/* Each backend that takes the product says why it has no candidate. */
nvfp4_status reject_product(const plan_query *query);

/* ---- shape.c ---- */

/* The rules of a shape. The struct of an older program is shorter: it lacks the operation, or groups too. */
nvfp4_status check_shape(const nvfp4_shape *shape);
int64_t groups_of_shape(const nvfp4_shape *shape);
int32_t operation_of_shape(const nvfp4_shape *shape);
/* The problem that a shape describes, as the check of its operation leaves it. */
void set_problem_of_shape(const nvfp4_shape *shape, prepared_call *call);

#endif
