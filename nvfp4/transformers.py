"""NVFP4 in Hugging Face transformers: `import nvfp4.transformers`, then `from_pretrained` as usual.

AutoModelForCausalLM.from_pretrained(folder)     an NVFP4 or MXFP4 checkpoint of ModelOpt or
                                                 compressed-tensors, and gpt-oss
AutoModelForCausalLM.from_pretrained(folder, quantization_config=NVFP4Config())
                                                 a dense checkpoint, quantized while it is loaded
load(folder, activations=None)                   an NVFP4 checkpoint, in another mode
fuse_quantizers(model)                           norms and activations quantize the next layer's input (W4A4)

Saving a model that quantize_model or nvfp4.load changed needs no import: the model's quantizer comes with its layers.
"""

from nvfp4.hosts.transformers.configs import (
    CompressedTensorsConfig,
    FineGrainedFP8Config,
    ModelOptConfig,
    Mxfp4Config,
)
from nvfp4.hosts.transformers.fuse_quantizers import fuse_quantizers
from nvfp4.hosts.transformers.load import load
from nvfp4.hosts.transformers.on_load import NVFP4Config, NVFP4Quantizer
from nvfp4.hosts.transformers.quantizers import (
    CompressedTensorsQuantizer,
    FineGrainedFP8Quantizer,
    ModelOptQuantizer,
    Mxfp4Quantizer,
)
from nvfp4.hosts.transformers.registry import replace_original

__all__ = [
    "CompressedTensorsConfig",
    "CompressedTensorsQuantizer",
    "FineGrainedFP8Config",
    "FineGrainedFP8Quantizer",
    "ModelOptConfig",
    "ModelOptQuantizer",
    "Mxfp4Config",
    "Mxfp4Quantizer",
    "NVFP4Config",
    "NVFP4Quantizer",
    "fuse_quantizers",
    "load",
]

replace_original()
