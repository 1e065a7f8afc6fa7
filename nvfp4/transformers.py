"""NVFP4 in Hugging Face transformers: `import nvfp4.transformers`, then `from_pretrained` as usual.

AutoModelForCausalLM.from_pretrained(folder)     an NVFP4 checkpoint of ModelOpt or compressed-tensors
AutoModelForCausalLM.from_pretrained(folder, quantization_config=NVFP4Config())
                                                 a dense checkpoint, quantized while it is loaded
load(folder, activations=None)                   an NVFP4 checkpoint, in another mode
"""

# First, since it says which part of transformers is missing.
from nvfp4.hosts.transformers.quantizers import (
    CompressedTensorsConfig,
    CompressedTensorsQuantizer,
    ModelOptConfig,
    ModelOptQuantizer,
    load,
)

# isort: split
from nvfp4.hosts.transformers.on_load import NVFP4Config, NVFP4Quantizer

__all__ = [
    "CompressedTensorsConfig",
    "CompressedTensorsQuantizer",
    "ModelOptConfig",
    "ModelOptQuantizer",
    "NVFP4Config",
    "NVFP4Quantizer",
    "load",
]
