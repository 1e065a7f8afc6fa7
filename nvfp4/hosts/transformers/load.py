"""nvfp4.transformers.load: from_pretrained with options that it has not."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvfp4 import _C
from nvfp4.checkpoints import modelopt
from nvfp4.checkpoints.configuration import HF_QUANT, READ, as_quantization_config, describes, second_counts
from nvfp4.checkpoints.files import read_json
from nvfp4.checkpoints.recipe import AUTO
from nvfp4.checkpoints.tensors import check_activations
from nvfp4.hosts.transformers.configs import ACTIVATIONS, REGISTERED
from nvfp4.hosts.transformers.library import AutoConfig, AutoModelForCausalLM, cached_file
from nvfp4.layers.checks import check_type
from nvfp4.layers.invariance import set_batch_invariant

HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")


def load(
    path: str | os.PathLike[str],
    *,
    auto_class: Any = AutoModelForCausalLM,
    activations: str | None = AUTO,
    batch_invariant: bool = False,
    **kwargs: Any,
) -> Any:
    """Loads an NVFP4 checkpoint of either format, by `auto_class.from_pretrained(path, **kwargs)`.

    Plain from_pretrained does the same, but has no `activations` and no `batch_invariant`, reads hf_quant_config.json
    only beside a quantization_config in config.json, and leaves configurations without NVFP4 layers to transformers.

    Args:
        path (str or PathLike): a folder or a name on the Hub.
            The configuration is `quantization_config` of config.json, with the quant_method "compressed-tensors" or
            "modelopt", if it describes the layers, or else hf_quant_config.json (ModelOpt).
        auto_class (class, optional): a class with from_pretrained, such as AutoModel or LlamaForCausalLM.
            Default: AutoModelForCausalLM.
        activations (str, optional): "auto", "nvfp4" or None, as in nvfp4.load. Default: "auto".
            If the mode differs from the checkpoint's, `save_pretrained` writes a configuration of the model's own
            layers.
        batch_invariant (bool, optional): makes the bits of a sequence independent of its batch in all NVFP4 layers, see
            nvfp4.set_batch_invariant. Default: False.
        **kwargs: arguments of from_pretrained, such as dtype (float16, bfloat16 or float32) and device_map.

    Returns:
        The model, in eval mode. Its layers that are NVFP4 in the checkpoint are nvfp4.Linear. On a CPU their weights
        [N, K/2] uint8 are the bytes of the mapped files, except those that a file does not align to 8 bytes.
        FP8 layers are nvfp4.Fp8Linear.
        `model.hf_quantizer.skipped` has the names of the KV cache's scales, which are skipped with a warning.
        `save_pretrained` writes the format that was read, with these scales.

    Raises:
        nvfp4.Error: the checkpoint is damaged, is no NVFP4, or does not fit the model, or has a layer that cannot be
            batch invariant. The message names the tensor or the layer.

    Examples:
        >>> import nvfp4.transformers
        >>> model = nvfp4.transformers.load("Llama-NVFP4", dtype="bfloat16")  # doctest: +SKIP
    """
    check_activations(activations)
    check_type("batch_invariant", batch_invariant, bool, "a bool")
    hub = {name: kwargs[name] for name in HUB if kwargs.get(name) is not None}
    config = kwargs.pop("config", None)
    if config is None:
        trust = {name: kwargs[name] for name in ("trust_remote_code", "code_revision") if name in kwargs}
        config = AutoConfig.from_pretrained(path, **hub, **trust)
        for name in [name for name in kwargs if hasattr(config, name) and name not in ("dtype", "torch_dtype")]:
            setattr(config, name, kwargs.pop(name))
    else:
        config = copy.deepcopy(config)
    quantization = _quantization(config, path, hub)
    method = quantization.get("quant_method")
    if method not in READ and not (method == modelopt.FP8 and modelopt.has_nvfp4(quantization)):
        raise _C.Error(f"{path}: quant_method is {method!r}; must be one of {', '.join(READ)}")
    registered = REGISTERED.get(str(method), method)
    config.quantization_config = quantization | {"quant_method": registered, ACTIVATIONS: activations}
    model = auto_class.from_pretrained(path, config=config, **kwargs)
    if batch_invariant:
        set_batch_invariant(model)
    return model


def _quantization(config: Any, path: str | os.PathLike[str], hub: Mapping[str, Any]) -> dict[str, Any]:
    """The content of quantization_config, or of hf_quant_config.json in its form where that counts."""
    found: dict[str, Any] = {}
    for own in (config, config.get_text_config(decoder=True)):
        given = getattr(own, "quantization_config", None)
        if given is not None:
            beside = getattr(config, "expert_dtype", None)  # of DeepSeek-V4, which transformers 5.24 moves
            more = {} if beside is None else {"expert_dtype": beside}
            found = more | dict(given if isinstance(given, Mapping) else given.to_dict())
            break
    if describes(found):
        return found
    file = cached_file(path, HF_QUANT, _raise_exceptions_for_missing_entries=False, **hub)
    other = {} if file is None else read_json(Path(file))
    if second_counts(found, other):
        return as_quantization_config(other)
    if not found:
        raise _C.Error(f"{path}: has no quantization_config in config.json and no {HF_QUANT}")
    return found
