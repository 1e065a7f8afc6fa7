"""The files of a checkpoint, written whole or not at all.

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C, _text
from nvfp4._text import shown
from nvfp4.checkpoints import compressed_tensors, fp8, kv_cache, modelopt
from nvfp4.checkpoints.configuration import FORMATS, mode_of, quantization_configs
from nvfp4.checkpoints.experts.stored import stored as stored_experts
from nvfp4.checkpoints.experts.stored import stored_stack
from nvfp4.checkpoints.output import check_target, copy, target
from nvfp4.checkpoints.recipe import W4A4_DYNAMIC
from nvfp4.checkpoints.shards import INDEX
from nvfp4.layers.checks import prefix_errors, short
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.fp8 import Fp8Tensors
from nvfp4.layers.packed import PackedLinear

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
    stacks: Mapping[str, list[PackedLinear]] | None = None,
) -> SaveReport:
    """Writes a checkpoint's folder, with copies of other files and the scales of a KV cache; see save.

    Args:
        stacks: stacks of experts, as ModelOpt has those of gpt-oss.
    """
    try:
        import safetensors.torch
        from safetensors import SafetensorError
    except ModuleNotFoundError:
        raise ModuleNotFoundError("nvfp4.save needs safetensors: pip install safetensors", name="safetensors") from None
    check_target(path)
    experts, stacks = experts or {}, stacks or {}
    report = SaveReport(format)
    for name, packed in layers.items():
        (report.layers if isinstance(packed, PackedLinear) else report.fp8).append(name)
    report.layers += [*experts, *stacks]
    stored = dict(tensors)
    for name, mixture in experts.items():
        stored |= expert_tensors(name, mixture, report)
    for name, stack in stacks.items():
        stored |= stored_stack(name, stack)
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
    modes |= {name: mode_of(stack[0]) for name, stack in stacks.items()}
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
        if stack.weight_global_scale.ndim == 3:
            shape = list(stack.weight_global_scale.shape)
            raise _C.Error(
                f"{name}.{key}.weight_global_scale: shape is {shape}; {report.format} stores one of a matrix"
            )
        for scale in ("weight_global_scale", "input_global_scale"):
            before = getattr(stack, scale)
            if before is None or before.is_meta or report.format == modelopt.NAME:
                continue
            error = float((before.reciprocal().reciprocal().double() / before.double() - 1).abs().nan_to_num(0).max())
            if error:
                report.rounded[f"{name}.{key}.{scale}"] = error
    return {f"{name}.{key}": t for key, t in stored_experts(experts, FORMATS[report.format]).items()}


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
