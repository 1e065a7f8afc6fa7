"""NVFP4 in Hugging Face transformers: `import nvfp4.transformers`, then `from_pretrained` as usual.

AutoModelForCausalLM.from_pretrained(folder)     an NVFP4 checkpoint of ModelOpt or compressed-tensors
AutoModelForCausalLM.from_pretrained(folder, quantization_config=NVFP4Config())
                                                 a dense checkpoint, quantized while it is loaded
load(folder, activations=None)                   an NVFP4 checkpoint, in another mode
"""

import nvfp4._pretrained  # noqa: F401  first: it says if transformers is missing or too old
from nvfp4._on_load import NVFP4Config, NVFP4Quantizer
from nvfp4._pretrained import (
    CompressedTensorsConfig,
    CompressedTensorsQuantizer,
    ModelOptConfig,
    ModelOptQuantizer,
    load,
)

__all__ = [
    "CompressedTensorsConfig",
    "CompressedTensorsQuantizer",
    "ModelOptConfig",
    "ModelOptQuantizer",
    "NVFP4Config",
    "NVFP4Quantizer",
    "load",
]
