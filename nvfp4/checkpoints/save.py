"""nvfp4.save: a model's NVFP4 layers as a checkpoint of ModelOpt or compressed-tensors."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.checkpoints import kv_cache
from nvfp4.checkpoints.configuration import FORMATS
from nvfp4.checkpoints.tensors import check_kind
from nvfp4.checkpoints.write import SaveReport, shard_bytes, write
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.experts.routed import RoutedExperts
from nvfp4.layers.experts.stack import left_out_of_state
from nvfp4.layers.fp8 import Fp8Linear, Fp8Tensors
from nvfp4.layers.fused import FusedPart
from nvfp4.layers.hosts import is_model_of
from nvfp4.layers.linear import Linear
from nvfp4.layers.packed import PackedLinear


def save(
    model: torch.nn.Module, path: str | Path, format: str = "modelopt", max_shard_size: int | str = "5GB"
) -> SaveReport:
    """Writes a model with NVFP4 layers as a checkpoint, which nvfp4.load and the format's other readers read.

    Args:
        model (torch.nn.Module): a model that has nvfp4.Linear layers or nvfp4.Experts, which are stored in the format,
            and so are its nvfp4.Fp8Linear layers. Experts have the names and the layout with which they were read.
            Layers that quantize_model joined are stored one by one.
            All other tensors of the state dict are stored as they are. A tensor with several names is stored once,
            under the first.
            `model.config`, a dict or an object with `to_dict`, is written into config.json. NaN and infinities in it,
            which JSON does not have, are written as transformers writes them: {"__float__": "NaN"}.
        path (str or PathLike): a folder that is new or empty.
        format (str, optional): "modelopt" or "compressed-tensors". Default: "modelopt".
            ModelOpt cannot store W4A4 without an input_global_scale. compressed-tensors stores it as `dynamic: true`.
        max_shard_size (int or str, optional): bytes, or a number with the unit KB, MB, GB, KiB, MiB or GiB. Default:
            "5GB".
            A file holds no more tensors than that, except a tensor that is larger by itself.

    FP8 layers and the scales of a KV cache are stored as nvfp4.load read them, if it read them from this format.
    ModelOpt has no FP8 layers with dynamic scales of the whole input or of blocks, and compressed-tensors no
    pre_quant_scale.

    The function needs safetensors. Weights and block scales are stored byte for byte, [N, K/2] uint8 and [N, K/16]
    float8_e4m3fn in the linear layout. ModelOpt stores the global scales as they are. compressed-tensors stores their
    rounded reciprocals: a scale that quantize_model made survives. So does one that nvfp4.load read from
    compressed-tensors, which is stored as it was. Any other may change by 2^-23 of its value.

    Returns:
        A SaveReport.

    Raises:
        nvfp4.Error: an argument breaks a rule, the model has no NVFP4 layer or is one itself, a tensor is on the meta
            device or sparse or of a dtype that safetensors does not store, or a layer cannot be stored: the message
            names it. Nothing is written then.

    Examples:
        >>> import nvfp4, tempfile, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
        >>> report = nvfp4.quantize_model(model, ignore=["2"], activations=None)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nvfp4.save(model, folder, "modelopt").layers, list(nvfp4.load(folder).tensors)
        (['0'], ['2.bias', '2.weight'])
    """
    check_format(format)
    limit = shard_bytes(max_shard_size)
    layers, experts, tensors, ignore = collect(model)
    cache = kv_cache.of(model)
    return write(Path(path), format, layers, tensors, ignore, config_of(model), limit, cache=cache, experts=experts)


# ---- the model ----


def collect(
    model: torch.nn.Module,
) -> tuple[dict[str, PackedLinear | Fp8Tensors], dict[str, Experts], dict[str, Tensor], list[str]]:
    """The NVFP4 and FP8 layers, the modules of experts, the other tensors of the state dict, and the names of the other
    linear layers."""
    layers: dict[str, PackedLinear | Fp8Tensors] = {}
    experts: dict[str, Experts] = {}
    inside: set[str] = set()
    ignore: list[str] = []
    stored: set[int] = set()
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, (Linear, FusedPart, Fp8Linear, Experts)):
            if not name:
                raise _C.Error(f"model: is a {type(module).__name__} itself; must be a module that has it as a child")
            if not is_under(name, inside):  # not the layer inside a FusedPart
                inside.add(name)
                if id(module) not in stored:
                    if isinstance(module, Experts):
                        experts[name] = module
                    else:
                        layers[name] = module.packed()
                    stored.add(id(module))
        elif isinstance(module, torch.nn.Linear):
            ignore.append(name)
    ignore += routers(model)
    if not experts and not any(isinstance(packed, PackedLinear) for packed in layers.values()):
        raise _C.Error("model: has no nvfp4.Linear and no nvfp4.Experts; must have 1 or more")
    tensors: dict[str, Tensor] = {}
    seen: set[Any] = set()
    with left_out_of_state(model):
        state = model.state_dict(keep_vars=True)
    for name, t in state.items():
        if is_under(name, inside):
            continue
        check_kind(name, t)
        key = (t.device, t.data_ptr(), t.dtype, t.shape, t.stride()) if t.numel() and not t.is_meta else id(t)
        if key not in seen:
            seen.add(key)
            tensors[name] = t.detach()
    return layers, experts, tensors, ignore


def routers(model: torch.nn.Module) -> list[str]:
    """The names of modules beside experts that have a matrix of their own and are no linear layer by their type, which
    other readers may take for one."""
    found = []
    for name, module in model.named_modules():
        children = dict(module.named_children())
        if not any(isinstance(child, RoutedExperts) for child in children.values()):
            continue
        for key, child in children.items():
            weight = child._parameters.get("weight")
            if not isinstance(child, torch.nn.Linear) and weight is not None and weight.ndim == 2:
                found.append(f"{name}.{key}" if name else key)
    return found


def is_under(name: str, modules: Collection[str]) -> bool:
    """Whether a module or tensor belongs to one of these modules."""
    while "." in name:
        name = name.rpartition(".")[0]
        if name in modules:
            return True
    return False


def config_of(model: torch.nn.Module) -> dict[str, Any]:
    if is_model_of("diffusers", model):  # its configuration holds a dtype, paths and that of its quantizer
        text: Any = model.to_json_string
        return {key: value for key, value in json.loads(text()).items() if key != "quantization_config"}
    config = getattr(model, "config", None)
    to_dict = getattr(config, "to_dict", None)
    if callable(to_dict):
        config = to_dict()
    if not isinstance(config, Mapping):
        return {}
    content = dict(config)
    if callable(to_dict) and not content.get("architectures"):  # as transformers' save_pretrained
        content["architectures"] = [type(model).__name__]
    return content


# ---- the configuration ----


def check_format(format: str) -> None:
    if format not in FORMATS:
        raise _C.Error(f"format: is {format!r}; must be {' or '.join(map(repr, FORMATS))}")


# ---- files ----
