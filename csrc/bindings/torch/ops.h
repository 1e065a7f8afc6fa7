/* torch.ops.nvfp4: the functions of nvfp4.h behind torch's dispatcher. */
#ifndef NVFP4_TORCH_OPS_H
#define NVFP4_TORCH_OPS_H

#include "nvfp4.h"

/* Defines the operators in the torch that the process has loaded; once. */
nvfp4_status torch_ops_register(nvfp4_context *context);

#endif
