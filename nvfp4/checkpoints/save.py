"""nvfp4.save: a model's NVFP4 layers as a checkpoint of ModelOpt or compressed-tensors.

    config.json                   the model's configuration, with quantization_config
    hf_quant_config.json          the same for readers of ModelOpt's checkpoints
    model.safetensors             or model-00001-of-00002.safetensors ... with model.safetensors.index.json

Everything is checked first and written into a temporary folder, which is renamed at the end (output.py).
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from nvfp4 import _C, _text
from nvfp4._text import shown
from nvfp4.checkpoints import compressed_tensors, fp8, kv_cache, modelopt
from nvfp4.checkpoints.common import W4A4, W4A4_AWQ, W4A4_DYNAMIC, W4A16, W4A16_AWQ
from nvfp4.checkpoints.experts import container as mixtures
from nvfp4.checkpoints.output import check_target, copy, target
from nvfp4.checkpoints.read import FORMATS
from nvfp4.checkpoints.shards import INDEX
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.experts.stack import left_out_of_state
from nvfp4.layers.fp8 import Fp8Linear, Fp8Tensors
from nvfp4.layers.linear import Linear
from nvfp4.layers.packed import PackedLinear, prefix_errors, short
from nvfp4.layers.traversal import FusedPart

UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass
class SaveReport:
    """Reports the files and layers that nvfp4.save wrote.

    Attributes:
        format (str): "modelopt" or "compressed-tensors".
        files (dict of int): the names of the *.safetensors files, each with its bytes of tensors.
        layers (list of str): the names of the NVFP4 layers.
        fp8 (list of str): the names of the FP8 layers.
        rounded (dict of float): the global scales that nvfp4.load does not give back to the bit, with their relative
            error, at most 2^-23. Only compressed-tensors has such scales: it stores a divisor, the rounded reciprocal.
        skipped (dict of str): the names of tensors that are not written, with the reason: scales of a KV cache that
            were read from the other format.
        expanded (dict of int): the tensors with fewer values in memory than in their shape (torch.Tensor.expand), with
            their bytes in the file, which holds all values.
    """

    format: str
    files: dict[str, int] = field(default_factory=dict)
    layers: list[str] = field(default_factory=list)
    fp8: list[str] = field(default_factory=list)
    rounded: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    expanded: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        rows = [(name, str(count)) for name, count in self.files.items()]
        table = _text.plain(("file", "bytes"), rows, (True, False))
        counts = f"{self.format}: {len(self.layers)} NVFP4 layers"
        counts += f", {len(self.fp8)} FP8 layers" if self.fp8 else ""
        rounded = [f"rounded: {name}: relative error {error:.1e}" for name, error in self.rounded.items()]
        skipped = [f"skipped: {name}: {reason}" for name, reason in self.skipped.items()]
        return "\n".join([table, counts, *rounded, *skipped])


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
    rounded reciprocals: a scale that quantize_model made, or that nvfp4.load read from compressed-tensors, survives.
    Any other may change by 2^-23 of its value.

    Returns:
        A SaveReport.

    Raises:
        nvfp4.Error: an argument breaks a rule, the model has no NVFP4 layer or is one itself, a tensor is on the meta
            device or sparse or of a dtype that safetensors does not store, or a layer cannot be stored: the message
            names it. Nothing is written then.

    Example:
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
        if not isinstance(t, Tensor):
            raise _C.Error(f"{name}: is of type {type(t).__name__}; must be a torch.Tensor")
        if t.layout != torch.strided or t.is_nested:
            raise _C.Error(f"{name}: layout is {'nested' if t.is_nested else short(t.layout)}; must be strided")
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
        if not any(isinstance(child, Experts) for child in children.values()):
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


Mode: TypeAlias = "str | fp8.Fp8Mode"


def mode_of(packed: PackedLinear | Fp8Tensors | Experts) -> Mode:
    if isinstance(packed, Experts):
        return packed.mode
    if isinstance(packed, Fp8Tensors):
        return fp8.mode_of(packed)
    if packed.activations is None:
        return W4A16 if packed.pre_quant_scale is None else W4A16_AWQ
    if packed.input_global_scale is None:
        return W4A4_DYNAMIC
    return W4A4 if packed.pre_quant_scale is None else W4A4_AWQ


def quantization_configs(
    format: str, layers: Mapping[str, Mode], ignore: Iterable[str], experts: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """`quantization_config` of config.json, and the content of hf_quant_config.json if the format has one; of layers
    with their modes, of which some are modules of experts."""
    modes: dict[Mode, list[str]] = {}
    for name, mode in layers.items():
        modes.setdefault(mode, []).append(name)
    # With one mode the class is the target, as the producers write it; else vLLM would take a group by its class
    # before it looks up the parts of a fused layer by name.
    targets = {mode: ["Linear"] if len(modes) == 1 else names for mode, names in modes.items()}
    names = sorted(set(ignore) - set(layers))
    if format == modelopt.NAME:
        return modelopt.configs(targets, modes, names)
    # Its own readers look up each expert's layer.
    targets = {
        mode: [rf"re:{re.escape(name)}\..*" if name in experts else name for name in targets]
        for mode, targets in targets.items()
    }
    return compressed_tensors.config(targets, names), None


# ---- files ----


def shard_bytes(size: int | str) -> int:
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)", str(size).strip())
    unit = UNITS.get(match[2].upper()) if match else None
    if isinstance(size, bool) or match is None or unit is None or int(float(match[1]) * unit) <= 0:
        raise _C.Error(
            f"max_shard_size: is {shown(size)}; must be a positive number of bytes, or one with a unit: '5GB'"
        )
    return int(float(match[1]) * unit)


def write(
    path: Path,
    format: str,
    layers: Mapping[str, PackedLinear | Fp8Tensors],
    tensors: Mapping[str, Tensor],
    ignore: Iterable[str],
    config: Mapping[str, Any],
    limit: int,
    files: Iterable[Path] = (),
    cache: kv_cache.KvCache | None = None,
    experts: Mapping[str, Experts] | None = None,
) -> SaveReport:
    """Writes a checkpoint's folder, with copies of other files and the scales of a KV cache; see save."""
    try:
        import safetensors.torch
        from safetensors import SafetensorError
    except ModuleNotFoundError:
        raise ModuleNotFoundError("nvfp4.save needs safetensors: pip install safetensors", name="safetensors") from None
    check_target(path)
    experts = experts or {}
    report = SaveReport(format)
    for name, packed in layers.items():
        (report.layers if isinstance(packed, PackedLinear) else report.fp8).append(name)
    report.layers += experts
    stored = dict(tensors)
    for name, mixture in experts.items():
        stored |= expert_tensors(name, mixture, report)
    for name, packed in layers.items():
        stored |= packed_tensors(name, packed, report)
    if cache is not None and cache.format == format:
        stored |= cache.scales
    elif cache is not None:
        report.skipped |= dict.fromkeys(cache.scales, f"is a scale of the KV cache, as {cache.format} stores it")
    for name, t in stored.items():
        if t.is_meta:
            raise _C.Error(f"{name}: is on the meta device; must have values")
        if t.is_quantized or not is_stored(t.dtype):
            raise _C.Error(f"{name}: dtype is {short(t.dtype)}; must be one that safetensors stores")
        if t.nbytes > t.untyped_storage().nbytes():
            report.expanded[name] = t.nbytes
    modes = {name: mode_of(packed) for name, packed in (*layers.items(), *experts.items())}
    quantization, other = quantization_configs(format, modes, ignore, experts)
    if cache is not None and cache.format == format:
        entries, more = cache.configs()
        quantization |= entries
        if other is not None:
            other["quantization"] |= more
    texts = {"config.json": {**config, "quantization_config": quantization}}
    if other is not None:
        texts["hf_quant_config.json"] = other
    shards = split(stored, limit)
    report.files = {name: sum(stored[key].nbytes for key in keys) for name, keys in shards.items()}
    if len(shards) > 1:
        where = {key: name for name, keys in shards.items() for key in keys}
        texts[INDEX] = {"metadata": {"total_size": sum(report.files.values())}, "weight_map": where}
    try:
        encoded = {
            name: json.dumps(finite(content), indent=2, allow_nan=False) + "\n" for name, content in texts.items()
        }
    except (TypeError, ValueError) as error:
        raise _C.Error(f"model.config: cannot be written as JSON: {error}") from None

    with target(path) as folder:
        for file in files:
            copy(file, folder)
        for name, text in encoded.items():
            (folder / name).write_text(text, encoding="utf-8")
        for name, keys in shards.items():
            try:
                safetensors.torch.save_file(own({key: stored[key] for key in keys}), folder / name, {"format": "pt"})
            except SafetensorError as error:
                raise _C.Error(f"path: {path} cannot be written: {error}") from None
            (folder / name).chmod((folder / "config.json").stat().st_mode)  # safetensors 0.8 gives its files 0600
    return report


@functools.cache
def is_stored(dtype: torch.dtype) -> bool:
    """Whether safetensors stores tensors of this dtype."""
    import safetensors.torch

    try:
        safetensors.torch.save({"t": torch.empty(0, dtype=dtype)})
    except (KeyError, ValueError, TypeError, RuntimeError, safetensors.SafetensorError):
        return False
    return True


def finite(content: Any) -> Any:
    """Content of JSON, with NaN and infinities as transformers' configurations write them."""
    if isinstance(content, float) and not math.isfinite(content):
        return {"__float__": "NaN" if math.isnan(content) else "Infinity" if content > 0 else "-Infinity"}
    if isinstance(content, Mapping):
        return {key: finite(value) for key, value in content.items()}
    return [finite(value) for value in content] if isinstance(content, (list, tuple)) else content


def packed_tensors(name: str, packed: PackedLinear | Fp8Tensors, report: SaveReport) -> dict[str, Tensor]:
    """A layer's tensors by their full names. Notes global scales that change."""
    if isinstance(packed, Fp8Tensors):
        with prefix_errors(name):
            return {f"{name}.{key}": t for key, t in fp8.write(packed, report.format).items()}
    if report.format == modelopt.NAME and mode_of(packed) == W4A4_DYNAMIC:
        raise _C.Error(
            f"{name}: is W4A4 without an input_global_scale; {report.format} cannot store that: calibrate the layer, "
            f"or write {compressed_tensors.NAME}"
        )
    format = FORMATS[report.format]
    try:
        tensors = format.write(packed)
        again = format.read(tensors, packed.activations)
    except _C.Error as error:
        raise _C.Error(f"{name}.{error}") from None
    for key in ("weight_global_scale", "input_global_scale"):
        before, after = getattr(packed, key), getattr(again, key)
        if before is not None and not before.is_meta and not torch.equal(before, after):
            report.rounded[f"{name}.{key}"] = abs(float(after.double() / before.double()) - 1)
    return {f"{name}.{key}": t for key, t in tensors.items()}


def expert_tensors(name: str, experts: Experts, report: SaveReport) -> dict[str, Tensor]:
    """The tensors of a module of experts by their full names. Notes global scales that change."""
    if report.format == modelopt.NAME and experts.mode == W4A4_DYNAMIC:
        raise _C.Error(
            f"{name}: is W4A4 without an input_global_scale; {report.format} cannot store that; write "
            f"{compressed_tensors.NAME}"
        )
    for key, stack in (("gate_up", experts.gate_up), ("down", experts.down)):
        for scale in ("weight_global_scale", "input_global_scale"):
            before = getattr(stack, scale)
            if before is None or before.is_meta or report.format == modelopt.NAME:
                continue
            error = float((before.reciprocal().reciprocal().double() / before.double() - 1).abs().nan_to_num(0).max())
            if error:
                report.rounded[f"{name}.{key}.{scale}"] = error
    return {f"{name}.{key}": t for key, t in mixtures.stored(experts, FORMATS[report.format]).items()}


def split(tensors: Mapping[str, Tensor], limit: int) -> dict[str, list[str]]:
    """File names with the names of their tensors, in the order of the tensors. huggingface_hub splits alike, but need
    not be installed."""
    shards: list[list[str]] = []
    room = 0
    for name, t in tensors.items():
        if not shards or t.nbytes > room:
            shards.append([])
            room = limit
        shards[-1].append(name)
        room -= t.nbytes
    if len(shards) == 1:
        return {"model.safetensors": shards[0]}
    return {f"model-{i:05}-of-{len(shards):05}.safetensors": names for i, names in enumerate(shards, start=1)}


def own(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors with a storage of their own, as save_file needs them."""
    taken: set[int] = set()
    result = {}
    for name, t in tensors.items():
        t = t.contiguous()
        if t.untyped_storage().nbytes() != t.nbytes or t.untyped_storage().data_ptr() in taken:
            t = t.clone()
        taken.add(t.untyped_storage().data_ptr())
        result[name] = t
    return result
