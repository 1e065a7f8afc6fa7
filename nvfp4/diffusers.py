"""NVFP4 in Hugging Face diffusers: `import nvfp4.diffusers`, then `from_pretrained` as usual.

FluxTransformer2DModel.from_pretrained(folder)     an NVFP4 checkpoint of ModelOpt or compressed-tensors
FluxTransformer2DModel.from_pretrained(folder, quantization_config=NVFP4Config())
                                                   a dense model, quantized while it is loaded
FluxTransformer2DModel.from_single_file(file, quantization_config=SingleFileConfig(file))
                                                   an NVFP4 file of ComfyUI or of Black Forest Labs
"""

from nvfp4.hosts.diffusers.mappings import register
from nvfp4.hosts.diffusers.quantization_config import NVFP4Config, SingleFileConfig

__all__ = ["NVFP4Config", "SingleFileConfig"]

register()
