"""NVFP4 matrix products, exact, on a CPU and on NVIDIA GPUs.

NVFP4 stores a value in 4 bits (e2m1: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives), two to a byte, with one 8-bit
scale (e4m3) for every 16 values along K.

    gemm            C = alpha * (A . B^T) + beta * C + bias
    grouped_gemm    the same for groups of rows, each by a matrix of its own (experts)
    gated_grouped_gemm   with the gated activation of two such products, the first half of an expert
    gated_grouped_quantize   with this activation quantized, the input of its second half
    custom_kernel   the same product for the views of GPU MODE's competition
    quantize        converts numbers to NVFP4;  dequantize converts them back
    quantize_gemm   quantizes A and multiplies, a layer in one call
    rms_norm_quantize, silu_mul_quantize   quantize after an RMS norm, with or without a residual, or after SwiGLU
    gptq_block      rounds 16 columns of a weight by GPTQ and searches their scales
    gated_quantize  quantizes gated's result, for groups of rows too
    amax_scale      computes the global scale for quantize, on the device
    gated           computes an expert's activation: SwiGLU, gelu, relu^2 or that of gpt-oss
    moe_route       sorts a router's choices by expert;  moe_combine adds the experts' rows for each token
    swizzle         rearranges scales from the linear to the tensor core's layout;  unswizzle reverses it
    info, init      tell what this machine can run and why; load the GPU code early
    use_tuning      overrides launch plans with those that `python -m nvfp4 bench --tune` measured to be the fastest
    Linear          is torch.nn.Linear with NVFP4 weights (this and the next five need torch)
    Experts         is the module of all experts of a mixture with NVFP4 weights
    Fp8Linear       is torch.nn.Linear with FP8 weights, for checkpoints that have both;  Fp8Experts their experts
    quantize_model  replaces a model's linear layers by NVFP4 ones, in place;  dequantize_model by dense ones again
    set_batch_invariant  makes the bits of a sequence independent of its batch in these layers
    load            reads an NVFP4 checkpoint, and puts it into a model
    save            writes a model's NVFP4 layers as a checkpoint of compressed-tensors or ModelOpt
    parallel        runs such layers on several devices, for torch's parallelize_module (a module)
    transformers    loads such checkpoints in Hugging Face transformers (a module, which from_pretrained needs imported)
    peft            merges adapters of PEFT into such layers (a module, imported with the layers where PEFT is)
    vllm            runs them in vLLM, which imports the module itself
    Error           is raised for every invalid call, with an error message

help(nvfp4.gemm) is the reference. `torch.ops.nvfp4` has the same functions for compiled programs; they exist once both
torch and nvfp4 are imported, in any order (nvfp4.torch_ops).
"""

import sys

from nvfp4._api import (
    amax_scale,
    custom_kernel,
    dequantize,
    gated,
    gated_grouped_gemm,
    gated_grouped_quantize,
    gated_quantize,
    gemm,
    gptq_block,
    grouped_gemm,
    moe_combine,
    moe_route,
    quantize,
    quantize_gemm,
    rms_norm_quantize,
    silu_mul_quantize,
    swizzle,
    unswizzle,
)
from nvfp4._C import Error
from nvfp4._C import version as __version__
from nvfp4._info import info, init
from nvfp4._tuning import use_tuning

__all__ = [
    "Error",
    "__version__",
    "amax_scale",
    "custom_kernel",
    "dequantize",
    "gated",
    "gated_grouped_gemm",
    "gated_grouped_quantize",
    "gated_quantize",
    "gemm",
    "gptq_block",
    "grouped_gemm",
    "info",
    "init",
    "moe_combine",
    "moe_route",
    "quantize",
    "quantize_gemm",
    "rms_norm_quantize",
    "silu_mul_quantize",
    "swizzle",
    "unswizzle",
    "use_tuning",
]

# `import nvfp4` loads neither torch, which takes two seconds, nor typing, which takes a tenth of the rest. Hence the
# modules that are imported here have this constant in place of typing's, which type checkers know by its name, and
# `from sys import modules`, in which they look torch up.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvfp4 import parallel as parallel
    from nvfp4 import peft as peft
    from nvfp4 import transformers as transformers
    from nvfp4.checkpoints.load import load as load
    from nvfp4.checkpoints.save import save as save
    from nvfp4.layers.experts.fp8_experts import Fp8Experts as Fp8Experts
    from nvfp4.layers.experts.module import Experts as Experts
    from nvfp4.layers.fp8 import Fp8Linear as Fp8Linear
    from nvfp4.layers.invariance import set_batch_invariant as set_batch_invariant
    from nvfp4.layers.linear import Linear as Linear
    from nvfp4.quantizing.dequantize_model import dequantize_model as dequantize_model
    from nvfp4.quantizing.quantize_model import quantize_model as quantize_model

if "torch" in sys.modules:
    from nvfp4 import torch_ops as torch_ops

# Names whose modules import torch are imported at their first use. They are not in __all__, so that
# `from nvfp4 import *` needs no torch.
_LAZY = {
    "Fp8Linear": "nvfp4.layers.fp8",
    "Fp8Experts": "nvfp4.layers.experts.fp8_experts",
    "Linear": "nvfp4.layers.linear",
    "Experts": "nvfp4.layers.experts.module",
    "quantize_model": "nvfp4.quantizing.quantize_model",
    "dequantize_model": "nvfp4.quantizing.dequantize_model",
    "set_batch_invariant": "nvfp4.layers.invariance",
    "load": "nvfp4.checkpoints.load",
    "save": "nvfp4.checkpoints.save",
}
# Modules that are imported at their first use too. dir() leaves them out, as help() would import what it lists.
_MODULES = ("parallel", "peft", "transformers")

__path__.append(f"{__path__[0]}/_moved")  # modules under former names, which pickles hold


def __getattr__(name: str) -> object:
    if name not in _LAZY and name not in _MODULES:
        raise AttributeError(f"module 'nvfp4' has no attribute {name!r}")
    from importlib import import_module  # here: a plain interpreter has not loaded it

    try:
        value = import_module(f"nvfp4.{name}") if name in _MODULES else getattr(import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(f"nvfp4.{name} needs torch, which is not installed", name="torch") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
