"""nvfp4.load's result: the layers and tensors of a checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from nvfp4 import _C
from nvfp4._text import shown, unwatched
from nvfp4.checkpoints.kv_cache import KvCache
from nvfp4.layers.experts.fp8_experts import Fp8Experts
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.experts.routed import RoutedExperts
from nvfp4.layers.fp8 import Fp8Tensors
from nvfp4.layers.packed import PackedLinear, check_block_scales

LONGEST = 200  # characters of how a layer is quantized, in a reason
SCALES = {"torchao": "_weight_scale", "GGUF": "weight"}  # the tensors of block scales that are no "weight_scale"


@dataclass(repr=False)
class Checkpoint:
    """Holds what nvfp4.load read.

    Attributes:
        format: "compressed-tensors", "modelopt", "mxfp4", "torchao", "GGUF" or "comfy-kitchen".
        layers: the NVFP4 layers by the name of their module.
        fp8: the FP8 layers by the name of their module.
        experts: the stacks of experts [E, N, K/2] by the name of their module, each a list of E layers.
        mixtures: the experts that are one nvfp4.Experts or Fp8Experts of the model, by its name.
        containers: their tensors by that name (experts.Container), until the model has them.
        tensors: all other tensors by name: embeddings, norms, layers that are not quantized or quantized otherwise.
        mxfp4: the layers and stacks that are MXFP4 in the source, each with its tensors there. The layer is NVFP4 with
            equal values.
        coarse: the layers with a block scale for 32 values in the source, each with its tensors there.
        reshaped: the layers with global scales of another shape than their format writes, each with its tensors in the
            source.
        skipped: the tensors and layers that were not read, each with the reason. The tensors of such a layer are in
            `tensors` as they are stored.
        kept: the tensors of skipped layers, each with the layer's name.
        why: the layers, stacks and skipped layers, each with the part of the configuration, or the tensors, that say
            how to read it.
        kv_cache: the scales of a KV cache, which are in `skipped` too, and what describes them; None: there are none.
        dense: the bytes of each large parameter of the model (without a model: of each tensor) that is neither NVFP4
            nor FP8. Large is more than 1 MB, or more than 1 % of the whole.
        other_bytes: the bytes of all parameters and buffers of the model, or tensors, that are in neither kind of
            layers.
    """

    format: str
    layers: dict[str, PackedLinear] = field(default_factory=dict)
    fp8: dict[str, Fp8Tensors] = field(default_factory=dict)
    experts: dict[str, list[PackedLinear]] = field(default_factory=dict)
    mixtures: dict[str, RoutedExperts] = field(default_factory=dict)
    containers: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    mxfp4: dict[str, Mapping[str, Tensor]] = field(default_factory=dict)
    coarse: dict[str, Mapping[str, Tensor]] = field(default_factory=dict)
    reshaped: dict[str, Mapping[str, Tensor]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    kv_cache: KvCache | None = None
    dense: dict[str, int] = field(default_factory=dict)
    other_bytes: int = 0

    @property
    def packed_bytes(self) -> int:
        """The bytes of all NVFP4 layers, stacks of experts and experts of the model."""
        packed: list[Any] = [packed for experts in self.experts.values() for packed in experts]
        packed += [*self.layers.values(), *(own for own in self.mixtures.values() if isinstance(own, Experts))]
        return sum(each.nbytes for each in packed)

    @property
    def fp8_bytes(self) -> int:
        """The bytes of all FP8 layers, and of FP8 experts of the model."""
        eight: list[Any] = [own for own in self.mixtures.values() if isinstance(own, Fp8Experts)]
        return sum(each.nbytes for each in (*self.fp8.values(), *eight))

    @property
    def all_layers(self) -> dict[str, PackedLinear | Fp8Tensors]:
        """The layers of both kinds by the name of their module."""
        return {**self.layers, **self.fp8}

    @property
    def fp8_and_experts(self) -> dict[str, Fp8Tensors]:
        """The FP8 layers and those of FP8 experts that the model does not have yet."""
        found = dict(self.fp8)
        for container in self.containers.values():
            found |= container.fp8_layers()
        return found

    def __repr__(self) -> str:
        counts = {"layers": len(self.layers), "FP8 layers": len(self.fp8), "stacks of experts": len(self.experts)}
        counts |= {"modules of experts": len(self.mixtures)}
        counts |= {"other tensors": len(self.tensors), "skipped": len(self.skipped)}
        rare = ("FP8 layers", "modules of experts")
        read = ", ".join(f"{count} {what}" for what, count in counts.items() if count or what not in rare)
        return f"<nvfp4 checkpoint: {self.format}, {read}>"


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


def in_another_way(how: str | None) -> str:
    """A reason of `Checkpoint.skipped`. `how` may be text of the file: what is long or unprintable is abbreviated."""
    text = str(how)
    return f"is quantized in another way: {text if text.isprintable() and len(text) <= LONGEST else shown(text)}"


@contextlib.contextmanager
def noted(name: str, errors: dict[str, str] | None) -> Iterator[None]:
    """Puts a layer's error message into `errors`; None: raises it."""
    try:
        yield
    except _C.Error as error:
        if errors is None:
            raise
        errors[name] = str(error)
