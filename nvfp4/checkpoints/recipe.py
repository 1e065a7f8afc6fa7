"""The recipe of a checkpoint: how its configuration says that each layer is quantized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nvfp4 import _C
from nvfp4._text import shown
from nvfp4.checkpoints.names import Names

AUTO = "auto"  # of `activations`: by what tensors there are
# How a layer is computed: activations quantized with a stored global scale, with one of their own, or left in 16 bits.
W4A4, W4A4_DYNAMIC, W4A16 = "W4A4", "W4A4 dynamic", "W4A16"
MXFP4, MXFP4_INPUTS = "MXFP4", "MXFP4 with MXFP4 inputs"  # read as W4A16, and as W4A4 dynamic
W4A4_AWQ, W4A16_AWQ = "W4A4 AWQ", "W4A16 AWQ"  # with a pre_quant_scale


@dataclass(frozen=True)
class Verdict:
    """Holds the mode that a configuration gives to a layer.

    Attributes:
        mode: "W4A4", "W4A4 dynamic", "W4A16", AUTO (by its tensors), None for a layer that is not quantized, or another
            way to quantize it: of an FP8 layer as nvfp4.checkpoints.fp8 has it, or in words of the format.
        why: the part of the configuration that says so.
        subtree: the mode of an NVFP4 layer in a subtree that the configuration ignores; None: it must not be one.
        others: the modes of further groups that have it as a target, less specific ones.
    """

    mode: str | None
    why: str
    subtree: str | None = None
    others: tuple[str, ...] = ()

    @property
    def likely(self) -> str | None:
        """The mode of a layer that has its tensors, also in a subtree that is ignored."""
        return self.subtree if self.mode is None else self.mode


@dataclass(frozen=True)
class Recipe:
    """Holds what a checkpoint's configuration says of its layers.

    Attributes:
        format: "compressed-tensors" or "modelopt".
        look: what it says of a layer of this name.
        names: all its patterns; read_modules binds them to the modules of the checkpoint.
        marks: places of the configuration of which at least one pattern must mean a module of the checkpoint.
        options: options that nvfp4 does not know, with a text for `skipped`.
        kv_cache: the entries that describe a KV cache.
        coarse: whether block scales may be for 32 values.
        other: the recipe of a second configuration, which does not count.
    """

    format: str
    look: Callable[[str], Verdict]
    names: tuple[Names, ...] = ()
    marks: tuple[Names, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    kv_cache: Mapping[str, Any] = field(default_factory=dict)
    coarse: bool = True
    other: Recipe | None = None

    def mode(self, name: str) -> str | None:
        return self.look(name).mode


def table(config: Mapping[str, Any], name: str, where: str = "") -> Mapping[str, Any]:
    """An object of a configuration; empty if it is missing or null."""
    value = config.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise _C.Error(f"{where}{name}: is {shown(value)}; must be an object")
    return value or {}


def strings(config: Mapping[str, Any], name: str, where: str = "") -> list[str]:
    """A list of strings of a configuration; empty if it is missing or null."""
    value = config.get(name)
    if value is not None and (not isinstance(value, list) or not all(isinstance(item, str) for item in value)):
        raise _C.Error(f"{where}{name}: is {shown(value)}; must be a list of strings")
    return list(value or [])
