"""How the classes of nvfp4 come into the mappings in which diffusers looks a quantizer up. It has no function for
that."""

from __future__ import annotations

from nvfp4.checkpoints import compressed_tensors, modelopt
from nvfp4.hosts.diffusers.needed import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
from nvfp4.hosts.diffusers.packed import PackedQuantizer
from nvfp4.hosts.diffusers.quantization_config import (
    CompressedTensorsConfig,
    Method,
    ModelOptConfig,
    NVFP4Config,
    SingleFileConfig,
)
from nvfp4.hosts.diffusers.single_file import SingleFileQuantizer
from nvfp4.hosts.diffusers.while_loading import OnLoadQuantizer


def register() -> None:
    """Adds the classes to diffusers' mappings. "modelopt" stays diffusers' own name for models that ModelOpt restores:
    ModelOptConfig.from_dict tells them apart."""
    AUTO_QUANTIZATION_CONFIG_MAPPING.update(
        {
            Method.ON_LOAD.value: NVFP4Config,
            Method.SINGLE_FILE.value: SingleFileConfig,
            Method.MODELOPT.value: ModelOptConfig,
            Method.COMPRESSED_TENSORS.value: CompressedTensorsConfig,
            modelopt.NAME: ModelOptConfig,
            compressed_tensors.NAME: CompressedTensorsConfig,
        }
    )
    AUTO_QUANTIZER_MAPPING.update(
        {
            Method.ON_LOAD.value: OnLoadQuantizer,
            Method.SINGLE_FILE.value: SingleFileQuantizer,
            Method.MODELOPT.value: PackedQuantizer,
            Method.COMPRESSED_TENSORS.value: PackedQuantizer,
        }
    )
