"""How classes of nvfp4 come into transformers' registries.

transformers knows "compressed-tensors", and decompresses the weights to bf16. Once a user has imported
nvfp4.transformers, its registry of configurations has CompressedTensorsConfig instead, whose from_dict returns
transformers' own configuration if no layer is NVFP4. transformers' quantizer stays registered: ours is registered as
nvfp4-compressed-tensors.
"""

from __future__ import annotations

from nvfp4.checkpoints import compressed_tensors
from nvfp4.hosts.transformers.configs import CompressedTensorsConfig
from nvfp4.hosts.transformers.library import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    AUTO_QUANTIZER_MAPPING,
    HfQuantizer,
    OriginalConfig,
    QuantizationConfigMixin,
    register_quantization_config,
    register_quantizer,
)


def register(method: str, config: type[QuantizationConfigMixin], quantizer: type[HfQuantizer]) -> None:
    """Registers two classes with transformers, for configurations of this method. A second import of their file
    (importlib.reload) replaces its own classes, and nobody else's."""
    for mapping, own in ((AUTO_QUANTIZATION_CONFIG_MAPPING, config), (AUTO_QUANTIZER_MAPPING, quantizer)):
        if method in mapping and mapping[method].__module__ == own.__module__:
            del mapping[method]
    register_quantization_config(method)(config)
    register_quantizer(method)(quantizer)


def replace_original() -> None:
    """Lets from_pretrained ask CompressedTensorsConfig first, unless another package has replaced transformers' own."""
    current = AUTO_QUANTIZATION_CONFIG_MAPPING.get(compressed_tensors.NAME)
    if current is OriginalConfig or getattr(current, "__module__", None) == CompressedTensorsConfig.__module__:
        AUTO_QUANTIZATION_CONFIG_MAPPING[compressed_tensors.NAME] = CompressedTensorsConfig
