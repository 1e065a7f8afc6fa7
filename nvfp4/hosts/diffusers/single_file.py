"""The quantizer of SingleFileConfig: from_single_file of diffusers reads an NVFP4 file of ComfyUI or Black Forest Labs.

diffusers' mapping functions rename the tensors of such a file, and split and join them along the rows. They are given a
column of numbers in place of each packed weight: one for each row, which says the layer and the row there. From what
they make of these columns follows which rows of which layers a layer of the model has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.checkpoints.checkpoint import Checkpoint, check_scales
from nvfp4.checkpoints.files import check_file
from nvfp4.checkpoints.read import read
from nvfp4.checkpoints.shards import read_tensors
from nvfp4.hosts.diffusers.packed import Placing
from nvfp4.layers.fp8 import Fp8Tensors
from nvfp4.layers.packed import PackedLinear

PREFIX = "model.diffusion_model."  # of ComfyUI's files; not every mapping function takes it away
ROWS = 1 << 32  # a number is layer * ROWS + row


class SingleFileQuantizer(Placing):
    """Loads single files of ComfyUI and Black Forest Labs."""

    sources: list[Any]  # the layers of the file, PackedLinear and Fp8Tensors

    def maybe_update_loaded_keys(self, loaded_keys: list[str], checkpoint_files: list[Any]) -> list[str]:
        raise _C.Error("quantization_config: is SingleFileConfig; must be given to from_single_file")

    def maybe_update_state_dict(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The tensors for a mapping function of diffusers, from the file that the configuration names."""
        config = self.quantization_config
        check_same(state_dict, config.file)
        self.checkpoint = checkpoint = read(config.file, config.file_format, activations=config.wanted)
        check_scales(checkpoint)
        for name, reason in checkpoint.skipped.items():
            if name in checkpoint.kept.values():
                raise _C.Error(f"{name}: cannot be put into the model: {reason}")
        for name, experts in checkpoint.experts.items():
            raise _C.Error(f"{name}: is a stack of {len(experts)} experts, which a model cannot take")
        if not checkpoint.layers:
            raise _C.Error(f"{config.file}: has no NVFP4 layer; load it without quantization_config")
        given = {key.removeprefix(PREFIX): t for key, t in checkpoint.tensors.items()}
        layers: dict[str, Any] = {name.removeprefix(PREFIX): each for name, each in checkpoint.all_layers.items()}
        self.sources = [*layers.values()]
        for i, (name, packed) in enumerate(layers.items()):
            given[f"{name}.weight"] = torch.arange(packed.out_features)[:, None] + i * ROWS
            if packed.bias is not None:
                given[f"{name}.bias"] = packed.bias
        return given

    def _process_model_before_weight_loading(
        self,
        model: Any,
        state_dict: dict[str, Any] | None = None,
        keep_in_fp32_modules: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        assert self.checkpoint is not None and state_dict is not None
        found = Checkpoint(self.checkpoint.format, skipped=self.checkpoint.skipped)
        found.tensors = dict(state_dict)
        for key, t in state_dict.items():
            if is_rows(t):
                name = key.removesuffix(".weight")
                del found.tensors[key]
                packed = self.gathered(name, t[:, 0], found.tensors.pop(f"{name}.bias", None))
                layers: dict[str, Any] = found.layers if isinstance(packed, PackedLinear) else found.fp8
                layers[name] = packed
        self.place(model, found, keep_in_fp32_modules)

    def gathered(self, name: str, numbers: Tensor, bias: Tensor | None) -> PackedLinear | Fp8Tensors:
        """The layer that has these rows."""
        runs = [*runs_of(numbers)]
        own = [self.sources[layer] for layer, _, _ in runs]
        first = own[0]
        if isinstance(first, PackedLinear):
            by_row, scale, more = ["weight", "weight_scale"], "weight_global_scale", {"divisors": None}
            fixed = ["input_global_scale", "pre_quant_scale", "activations"]
        else:
            by_row, scale, more = ["weight"], "weight_scale", {"stored": None}
            fixed = ["input_scale", "activations"]
            whole = len(runs) == 1 and runs[0][2] - runs[0][1] == first.out_features
            if first.weight_scale.ndim == 2 and not whole:
                raise _C.Error(f"{name}: is a part of an FP8 layer with scales of blocks; must be a whole layer")
        for other in own[1:]:
            if type(other) is not type(first) or not all(alike(getattr(first, x), getattr(other, x)) for x in fixed):
                raise _C.Error(f"{name}: is joined of layers in different modes; must have one mode and input scale")
        parts = {key: [getattr(self.sources[i], key)[a:b] for i, a, b in runs] for key in by_row}
        scales = [getattr(each, scale) for each in own]
        if all(one.ndim == 0 and torch.equal(one, scales[0]) for one in scales):
            scales = scales[:1]
        elif scales[0].ndim != 2:
            scales = [one.expand(each.out_features)[a:b] for one, each, (_, a, b) in zip(scales, own, runs)]
        tensors = {key: joined(values) for key, values in {**parts, scale: scales}.items()}
        # Layers that are made of one have copies of what it has once: files hold no tensor under two names.
        tensors |= {x: t.clone() for x in (scale, *fixed) if isinstance(t := tensors.get(x, getattr(first, x)), Tensor)}
        return replace(first, **tensors, bias=bias, **more)


def check_same(given: Mapping[str, Any], file: Path) -> None:
    """Raises if a state dict is not that of a file: by names, shapes, and the first values of each tensor."""
    check_file(file)
    tensors, _ = read_tensors([file])
    names = sorted({*given} ^ {*tensors})
    names += [key for key, t in tensors.items() if key in given and not same(given[key], t)]
    if names:
        raise _C.Error(f"file: is {str(file)!r}, whose {names[0]} is not that of the file given to from_single_file")


def same(a: Any, b: Tensor) -> bool:
    if not isinstance(a, Tensor) or (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    first, second = (t.flatten()[:256].cpu().view(torch.uint8) for t in (a, b))  # a page of a mapped file each
    return torch.equal(first, second)


def is_rows(t: Any) -> bool:
    """Whether a tensor is a column of numbers of rows: no weight has their dtype."""
    return isinstance(t, Tensor) and t.dtype == torch.int64 and t.ndim == 2 and t.shape[1] == 1


def runs_of(numbers: Tensor) -> Iterator[tuple[int, int, int]]:
    """The rows as ranges in one layer each: the layer, the first row, the row behind the last one."""
    breaks = (numbers[1:] != numbers[:-1] + 1).nonzero().flatten() + 1
    edges = [0, *breaks.tolist(), len(numbers)]
    for start, end in zip(edges, edges[1:]):
        layer, row = divmod(int(numbers[start]), ROWS)
        yield layer, row, row + end - start


def joined(parts: list[Tensor]) -> Tensor:
    """The rows of several tensors; one stays a view."""
    if len(parts) == 1:
        return parts[0]
    if parts[0].dtype.itemsize == 1:  # torch has no cat of float8
        return torch.cat([part.view(torch.uint8) for part in parts]).view(parts[0].dtype)
    return torch.cat(parts)


def alike(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a is b or a == b
