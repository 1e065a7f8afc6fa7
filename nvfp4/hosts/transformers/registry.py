"""How classes of nvfp4 come into transformers' registries.

transformers knows "compressed-tensors" and "mxfp4". It decompresses the weights to bf16, those of MXFP4 where it has no
kernels. Once a user has imported nvfp4.transformers, its registry of configurations has CompressedTensorsConfig and
Mxfp4Config of nvfp4 instead. The first one's from_dict returns transformers' own configuration if no layer is NVFP4 or
MXFP4. transformers' quantizers stay registered: ours are registered as nvfp4-compressed-tensors and nvfp4-mxfp4.
"""

from __future__ import annotations

from nvfp4.checkpoints import compressed_tensors, modelopt, mxfp4
from nvfp4.hosts.transformers.configs import (
    CompressedTensorsConfig,
    FineGrainedFP8Config,
    Mxfp4Config,
    Replacement,
)
from nvfp4.hosts.transformers.library import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    AUTO_QUANTIZER_MAPPING,
    HfQuantizer,
    QuantizationConfigMixin,
    register_quantization_config,
    register_quantizer,
)

REPLACEMENTS: tuple[tuple[str, type[Replacement]], ...] = (
    (compressed_tensors.NAME, CompressedTensorsConfig),
    (mxfp4.NAME, Mxfp4Config),
    (modelopt.FP8, FineGrainedFP8Config),
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
    """Lets from_pretrained ask nvfp4's configurations first, unless another package has replaced transformers' own."""
    for name, ours in REPLACEMENTS:
        current = AUTO_QUANTIZATION_CONFIG_MAPPING.get(name)
        if current is ours.original or getattr(current, "__module__", None) == ours.__module__:
            AUTO_QUANTIZATION_CONFIG_MAPPING[name] = ours
