"""What the formats share: errors by name, global scales, patterns of names."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4._text import shown, unwatched
from nvfp4.checkpoints.kv_cache import KvCache
from nvfp4.checkpoints.names import Names
from nvfp4.experts import Experts
from nvfp4.fp8 import Fp8Tensors
from nvfp4.packed import ACTIVATIONS, PackedLinear, check_block_scales, check_positive, short

AUTO = "auto"  # of `activations`: by what tensors there are
# How a layer is computed: activations quantized with a stored global scale, with one of their own, or left in 16 bits.
W4A4, W4A4_DYNAMIC, W4A16 = "W4A4", "W4A4 dynamic", "W4A16"
W4A4_AWQ, W4A16_AWQ = "W4A4 AWQ", "W4A16 AWQ"  # with a pre_quant_scale

MAX_EXPERTS = 16384  # of a stack; each takes 0.2 ms and 2 KB beside its tensors

PAIRED = ("weight_scale_2", "weight_global_scale", "input_scale", "input_global_scale")
SCALES = {"torchao": "_weight_scale", "GGUF": "weight"}  # the tensors of block scales that are no "weight_scale"


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


@dataclass(frozen=True)
class Recipe:
    """What a checkpoint's configuration says of its layers.

    Attributes:
        format: "compressed-tensors" or "modelopt".
        look: what it says of a layer of this name.
        names: all its patterns, which `sort` tells the checkpoint's modules.
        marks: places of the configuration of which at least one pattern must mean a module of the checkpoint.
        options: options that nvfp4 does not know, with a text for `skipped`.
        kv_cache: the entries that describe a KV cache.
    """

    format: str
    look: Callable[[str], Verdict]
    names: tuple[Names, ...] = ()
    marks: tuple[Names, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    kv_cache: Mapping[str, Any] = field(default_factory=dict)

    def mode(self, name: str) -> str | None:
        return self.look(name).mode


@dataclass(repr=False)
class Checkpoint:
    """What nvfp4.load read.

    Attributes:
        format: "compressed-tensors", "modelopt", "torchao", "GGUF" or "comfy-kitchen".
        layers: the NVFP4 layers by the name of their module.
        fp8: the FP8 layers by the name of their module.
        experts: the stacks of experts [E, N, K/2] by the name of their module, each a list of E layers.
        mixtures: the experts that are one nvfp4.Experts of the model, by its name.
        containers: their tensors by that name (experts.Container), until the model has them.
        tensors: all other tensors by name: embeddings, norms, layers that are not quantized or quantized otherwise.
        skipped: names of tensors, or of layers whose tensors are under `tensors` as they are stored, with the reason.
        kept: of each tensor of a skipped layer that layer's name.
        why: of each layer, stack and skipped layer the part of the configuration, or the tensors, that say how to read
            it.
        kv_cache: the scales of a KV cache, which are in `skipped` too, and what describes them; None: there are none.
        dense: the bytes of each parameter of the model, or without a model of each tensor, that is neither NVFP4 nor
            FP8 and has more than 1 MB, or more than 1 % of the whole.
        other_bytes: of all parameters and buffers of the model, or tensors, that are in neither kind of layers.
    """

    format: str
    layers: dict[str, PackedLinear] = field(default_factory=dict)
    fp8: dict[str, Fp8Tensors] = field(default_factory=dict)
    experts: dict[str, list[PackedLinear]] = field(default_factory=dict)
    mixtures: dict[str, Experts] = field(default_factory=dict)
    containers: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    kv_cache: KvCache | None = None
    dense: dict[str, int] = field(default_factory=dict)
    other_bytes: int = 0

    @property
    def packed_bytes(self) -> int:
        """The bytes of all NVFP4 layers, stacks of experts and experts of the model."""
        stacks = [packed for experts in self.experts.values() for packed in experts]
        stacks += self.mixtures.values()
        return sum(packed.nbytes for packed in (*self.layers.values(), *stacks))

    @property
    def fp8_bytes(self) -> int:
        """The bytes of all FP8 layers."""
        return sum(tensors.nbytes for tensors in self.fp8.values())

    @property
    def all_layers(self) -> dict[str, PackedLinear | Fp8Tensors]:
        """The layers of both kinds by the name of their module."""
        return {**self.layers, **self.fp8}

    def __repr__(self) -> str:
        counts = {"layers": len(self.layers), "FP8 layers": len(self.fp8), "stacks of experts": len(self.experts)}
        counts |= {"modules of experts": len(self.mixtures)}
        counts |= {"other tensors": len(self.tensors), "skipped": len(self.skipped)}
        rare = ("FP8 layers", "modules of experts")
        read = ", ".join(f"{count} {what}" for what, count in counts.items() if count or what not in rare)
        return f"<nvfp4 checkpoint: {self.format}, {read}>"


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


def check_names(format_name: str, tensors: Mapping[str, Tensor], required: Sequence[str], known: Sequence[str]) -> None:
    """Rejects a missing and an unknown name: a tensor that is not read may change what the layer computes."""
    for name in required:
        if name not in tensors:
            raise _C.Error(f"{name}: is missing; a layer of {format_name} has {', '.join(required)}")
    for name in tensors:
        if name not in known:
            raise _C.Error(f"{name}: is no tensor of an NVFP4 layer of {format_name}: {', '.join(known)}")


def read_scalar(name: str, t: Tensor) -> Tensor:
    """A stored global scale, float32 with one element, as []. It must be positive and finite."""
    if t.dtype != torch.float32:
        raise _C.Error(f"{name}: dtype is {short(t.dtype)}; must be float32")
    if t.numel() != 1:
        raise _C.Error(f"{name}: shape is {list(t.shape)}; must have 1 element")
    check_positive(name, t)
    return t.reshape(())


def reciprocal(name: str, t: Tensor) -> Tensor:
    """A divisor as a multiplier or the reverse, rounded once. There and back is off by at most 2^-23 of the value."""
    result = t.reciprocal()
    if not result.is_meta and not bool((result > 0) & result.isfinite()):
        raise _C.Error(f"{name}: is {float(t):g}; its reciprocal must be positive and finite")
    return result


def one_scale(format_name: str, packed: PackedLinear, pre_quant_scale: bool = False) -> Tensor:
    """The weight_global_scale of a layer in a format that stores one number.

    Args:
        pre_quant_scale: whether the format has that one.
    """
    if packed.pre_quant_scale is not None and not pre_quant_scale:
        raise _C.Error(f"pre_quant_scale: is there, but {format_name} cannot store it: write modelopt")
    scale = packed.weight_global_scale
    if scale.ndim:
        raise _C.Error(
            f"weight_global_scale: shape is {list(scale.shape)}; {format_name} stores one scale for a layer: "
            "write the layers before they are fused"
        )
    return scale


def resolve(activations: str | None, input_scale: str, tensors: Mapping[str, Tensor]) -> str | None:
    """The `activations` of a PackedLinear; AUTO: quantized if the tensors have the input scale of this name."""
    if activations == AUTO:
        return "nvfp4" if input_scale in tensors else None
    if activations is None and input_scale in tensors:
        raise _C.Error(f"{input_scale}: is there, but the layer is W4A16")
    return activations


def check_activations(activations: str | None) -> None:
    if activations not in (AUTO, *ACTIVATIONS):
        raise _C.Error(f"activations: is {activations!r}; must be {AUTO!r}, 'nvfp4' or None")


def chosen(
    own: dict[str, Tensor], input_scale: str, activations: str | None, wanted: str | None, dynamic: bool = False
) -> str | None:
    """The `activations` with which to read a layer's tensors. Removes an input scale that is not used, so that it is
    not checked either.

    Args:
        own: the layer's tensors, `input_scale` the name of theirs.
        activations: what the checkpoint says: "nvfp4", None or AUTO.
        wanted: what the caller says, which comes first; AUTO: nothing.
        dynamic: whether the checkpoint says that each input gives its scale.
    """
    if wanted is None or dynamic:
        own.pop(input_scale, None)
    return activations if wanted == AUTO else wanted


def check_scales(
    checkpoint: Checkpoint, checked: Collection[str] = (), step: Callable[[str], None] = unwatched
) -> None:
    """Rejects damaged block scales of any layer or expert, by the name that their tensor has in the checkpoint, except
    those of layers that are checked already. Reports each to `step`."""
    layers = {name: packed for name, packed in checkpoint.layers.items() if name not in checked}
    for name, experts in checkpoint.experts.items():
        layers |= {f"{name}[{i}]": packed for i, packed in enumerate(experts)}
    local = SCALES.get(checkpoint.format, "weight_scale")
    for name, packed in layers.items():
        step(f"check {name}")
        check_block_scales(f"{name}.{local}" if name else local, packed)


@contextlib.contextmanager
def noted(name: str, errors: dict[str, str] | None) -> Iterator[None]:
    """Puts a layer's error message into `errors`; None: raises it."""
    try:
        yield
    except _C.Error as error:
        if errors is None:
            raise
        errors[name] = str(error)


def add_layer(
    checkpoint: Checkpoint,
    name: str,
    own: Mapping[str, Tensor],
    weight: str,
    read: Callable[[Mapping[str, Tensor]], PackedLinear],
    rows: bool = False,
) -> None:
    """Reads a layer, or a stack of experts if own[weight] is [E, N, K/2], into the checkpoint.

    Args:
        rows: whether rows of the tensors are rows of the layer, as ours.
    """
    if weight in own and own[weight].ndim == 3:
        one = functools.partial(read_halves, weight=weight, read=read) if rows else read
        checkpoint.experts[name] = read_experts(name, upright(own, weight) if rows else own, weight, one)
        return
    try:
        checkpoint.layers[name] = read(own)
    except _C.Error as error:
        raise _C.Error(f"{name}.{error}" if name else str(error)) from None


def read_experts(
    name: str, own: Mapping[str, Tensor], weight: str, read: Callable[[Mapping[str, Tensor]], PackedLinear]
) -> list[PackedLinear]:
    """The layers of a stack of E experts. Its tensors are stacked too, or have one element, for all experts.

    Args:
        name: of the module, for error messages.
        own: the module's tensors.
        weight: the name of the one that has the shape [E, N, K/2].
        read: reads one expert's tensors.
    """
    count, size = own[weight].shape[0], own[weight].numel()
    if count > MAX_EXPERTS or (count and not size):
        raise _C.Error(
            f"{name}.{weight}: shape is {list(own[weight].shape)}; must have values, and at most {MAX_EXPERTS} experts"
        )
    for local, t in own.items():
        if t.numel() != 1 and (t.ndim == 0 or t.shape[0] != count):
            raise _C.Error(f"{name}.{local}: shape is {list(t.shape)}; must begin with {count}, the number of experts")
    layers = []
    for i in range(count):
        expert = {local: t[i] if t.ndim and t.shape[0] == count else t for local, t in own.items()}
        try:
            layers.append(read(expert))
        except _C.Error as error:
            raise _C.Error(f"{name}[{i}].{error}") from None
    return layers


def upright(own: Mapping[str, Tensor], weight: str) -> Mapping[str, Tensor]:
    """A stack's tensors with N before K. The shapes of weight and block scales say which of them comes first."""
    values, scale = own[weight], own.get("weight_scale")
    if scale is None or scale.ndim != 3 or values.shape[2] != scale.shape[2] or values.shape[1] != scale.shape[1] * 8:
        return own
    return {**own, weight: values.transpose(1, 2), "weight_scale": scale.transpose(1, 2)}


def read_halves(
    own: Mapping[str, Tensor], weight: str, read: Callable[[Mapping[str, Tensor]], PackedLinear]
) -> PackedLinear:
    """An expert's layer. Gate and up that are joined along N may have a global scale each, in a tensor of two."""
    pairs = {local for local, t in own.items() if local.endswith(PAIRED) and t.numel() == 2}
    if not pairs or own[weight].shape[0] % 2:
        return read(own)
    rows = own[weight].shape[0] // 2
    halves = []
    for i in range(2):
        part = {
            local: t[i * rows : (i + 1) * rows] if t.ndim and t.shape[0] == 2 * rows else t for local, t in own.items()
        }
        halves.append(read(part | {local: own[local].flatten()[i] for local in pairs}))
    first = halves[0]
    given = [half.input_global_scale for half in halves if half.input_global_scale is not None]
    if len(given) == 2 and not given[0].is_meta and not torch.equal(*given):
        values = " and ".join(f"{float(t):g}" for t in given)
        raise _C.Error(f"input_global_scale: is {values} for gate and up, which have one input; must be equal")
    scales = [half.weight_global_scale.expand(rows) for half in halves]
    return PackedLinear(
        own[weight],
        own["weight_scale"],
        torch.cat(scales),
        first.input_global_scale,
        own.get("bias"),
        first.activations,
        first.pre_quant_scale,
    )
