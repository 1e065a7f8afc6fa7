"""The experts of a checkpoint, read into the stacks of nvfp4.Experts.

The stacks are filled expert by expert. Beside them exist one expert's tensors and one module's block scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.checkpoints import modelopt, mxfp4
from nvfp4.checkpoints.configuration import Mode
from nvfp4.checkpoints.experts.naming import DOWN, GATE, GATE_UP, UP, Naming, Place, naming_of
from nvfp4.checkpoints.recipe import AUTO, W4A4, W4A4_DYNAMIC, W4A16
from nvfp4.checkpoints.stacks import upright
from nvfp4.checkpoints.tensors import check_names, is_coarse, of_blocks
from nvfp4.layers.checks import check_tensor, prefix_errors, short
from nvfp4.layers.experts.mixture import Description, of_experts
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.experts.routed import RoutedExperts
from nvfp4.layers.experts.stack import Stack, swizzled
from nvfp4.layers.fp8 import Fp8Tensors
from nvfp4.layers.packed import BLOCK, PackedLinear, check_block_scales

# ---- reading ----


@dataclass
class Container:
    """The tensors of all experts of one module, as they are stored.

    Attributes:
        name: of the module in the checkpoint.
        format: the module of nvfp4.checkpoints.
        modes: of its layers.
        layers: by role and expert (None: a stack), the tensors by their names in the layer.
        locals, joined, divisors: as of Naming.
        coarse: whether a layer's block scales are for 32 values in the source.
        by_rows: whether a matrix may have a global scale for each row, as MXFP4 of a large span takes it.
        wanted: load's `activations`, which come before the checkpoint's; AUTO: none.
    """

    name: str
    format: ModuleType
    wanted: str | None = AUTO
    modes: set[str] = field(default_factory=set)
    layers: dict[str, dict[int | None, Any]] = field(default_factory=dict)
    locals: dict[str, str] = field(default_factory=dict)
    joined: bool = False
    by_rows: bool = False
    coarse: bool = False
    divisors: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    def add(
        self, place: Place, own: Mapping[str, Tensor], activations: str | None, joined: bool, dynamic: bool
    ) -> None:
        """Adds a layer or a stack, and checks its names.

        Args:
            activations: "nvfp4", None, or AUTO: by the input scale.
        """
        name = place.local.format(place.expert)
        with prefix_errors(f"{self.name}.{name}"):
            if self.format is mxfp4:
                mxfp4.pair(own)
            else:
                required = self.format.REQUIRED
                check_names(self.format.NAME, own, required, (*required, self.format.INPUT_SCALE, "bias"))
                self.coarse |= is_coarse(own[required[0]], own[required[1]])
                own = {**own, required[1]: of_blocks(own[required[0]], own[required[1]])}
        self.put(place, own)
        self.joined |= joined
        if activations != AUTO:
            self.modes.add(W4A16 if activations is None else W4A4_DYNAMIC if dynamic else W4A4)

    def put(self, place: Place, own: Any) -> None:
        if self.locals.setdefault(place.role, place.local) != place.local:
            name = place.local.format(place.expert)
            raise _C.Error(f"{self.name}.{name}: is named in another way than {self.locals[place.role].format(0)}")
        self.layers.setdefault(place.role, {})[place.expert] = own

    @property
    def mode(self) -> str:
        """W4A4, W4A4 dynamic or W4A16. Where nothing says it, experts with an input scale are W4A4, and then all are:
        producers leave it out of experts that no sample reached."""
        if len(self.modes) > 1:
            raise _C.Error(f"{self.name}: has experts of {' and '.join(sorted(self.modes))}; must have one mode")
        if self.modes:
            return next(iter(self.modes))
        given = any(self.format.INPUT_SCALE in own for layers in self.layers.values() for own in layers.values())
        return W4A4 if given else W4A16

    def modes_of(self, name: str) -> dict[str, Mode]:
        """The modes of what stands in the model's module `name`."""
        return {name: self.mode}

    def fp8_layers(self) -> dict[str, Fp8Tensors]:
        """The FP8 layers by their names in the checkpoint; NVFP4 experts have none."""
        return {}

    def make(self, about: Description, dtype: torch.dtype) -> RoutedExperts:
        """A module for these experts on the meta device, which `fill` fills.

        Args:
            dtype: of its biases.
        """
        self.check(about.gated, about.experts)
        return about.make("meta", dtype)

    def fill(self, experts: RoutedExperts, interleaved: bool, device: torch.device | None = None) -> RoutedExperts:
        """Fills a module that has its buffers on the device, or on the meta device.

        Args:
            interleaved: whether a stack's rows of gate and up alternate.
            device: of the module afterwards; None: that of its buffers, or the CPU.

        Raises:
            nvfp4.Error: a layer is missing or has another shape or dtype, a scale is not positive and finite, or no
                expert of W4A4 has an input scale.
        """
        assert isinstance(experts, Experts)
        if self.format is mxfp4:
            self._as_modelopt().fill(experts, interleaved, device)
            if experts.naming is not None and experts.naming.stacked:  # in which ModelOpt has K before N
                experts.naming = naming_of(of_experts(experts))
            return experts
        first = self.check(experts.gated, experts.num_experts)
        shapes: dict[tuple[str, str], tuple[int, ...]] = {}
        turned = False
        for stack, roles in ((experts.gate_up, first), (experts.down, [DOWN])):
            prepare(stack, device)
            found: list[tuple[list[Tensor], list[Tensor]]] = []
            for p, role in enumerate(roles):
                parts = range(p, p + 1) if len(roles) > 1 else range(stack.shape[1])
                values, upside_down = self._read_part(stack, parts, role, interleaved, shapes)
                found += values
                turned |= upside_down
            fill_matrices(stack, found)
            if self.mode == W4A4 and self.wanted == AUTO and stack.input_global_scale is None:
                name = f"{self._name(roles[0], 0)}.{self.format.INPUT_SCALE}"
                raise _C.Error(f"{name}: is missing, as those of all other experts are; the mode is {W4A4}")
        experts.activations = None if self.mode == W4A16 else "nvfp4"
        alternate = interleaved and first == [GATE_UP]
        experts.naming = Naming(dict(self.locals), self.joined, turned, alternate, shapes, self.divisors)
        return experts

    def _as_modelopt(self) -> Container:
        """These experts of MXFP4 with ModelOpt's tensors. Scales are new, values are not copied."""
        layers: dict[str, dict[int | None, Mapping[str, Tensor]]] = {}
        for role, stored in self.layers.items():
            one: dict[int | None, PackedLinear] = {}
            for e, own in stored.items():
                if e is None:
                    one |= enumerate(mxfp4.read_stack(f"{self.name}.{self.locals[role]}", own))
                else:
                    with prefix_errors(self._name(role, e)):
                        one[e] = mxfp4.read(own)
            layers[role] = {}
            for e, packed in one.items():
                tensors = {"weight": packed.weight, "weight_scale": packed.weight_scale, "bias": packed.bias}
                tensors["weight_scale_2"] = packed.weight_global_scale
                layers[role][e] = {key: t for key, t in tensors.items() if t is not None}
        return replace(self, format=modelopt, layers=layers, by_rows=True)

    def check(self, gated: bool, experts: int) -> list[str]:
        """Rejects layers that are missing or too many. Returns the roles of the first product."""
        if not gated and GATE in self.layers and UP not in self.layers:  # w1 and w2, or fc1 and fc2
            self.layers[UP], self.locals[UP] = self.layers.pop(GATE), self.locals.pop(GATE)
        first = [GATE_UP] if GATE_UP in self.layers else [GATE, UP] if gated else [UP]
        for role in (*first, DOWN):
            if role not in self.layers:
                raise _C.Error(f"{self.name}: has no layers of {role}; must have {', '.join((*first, DOWN))}")
        for role, layers in self.layers.items():
            if role not in (*first, DOWN):
                raise _C.Error(f"{self.name}.{self.locals[role].format(0)}: has no place in the model's experts")
            if None in layers and len(layers) > 1:
                raise _C.Error(f"{self.name}.{self.locals[role]}: is a stack beside layers of single experts")
            wanted = range(experts)
            if None not in layers and layers.keys() != {*wanted}:
                absent, more = (sorted({*a} - {*b}) for a, b in ((wanted, layers), (layers, wanted)))
                what = "is missing" if absent else "is there"
                name = self._name(role, (absent or more)[0])
                raise _C.Error(f"{name}: {what}; the model has {experts} experts")
        return first

    def _read_part(
        self, stack: Stack, parts: range, role: str, interleaved: bool, shapes: dict[tuple[str, str], tuple[int, ...]]
    ) -> tuple[list[tuple[list[Tensor], list[Tensor]]], bool]:
        """Some parts of all experts: their values and linear scales, which are checked, and whether they are stored
        with K before N. Fills global scales and biases."""
        weight_key, scale_key, global_key = self.format.REQUIRED
        experts, _, rows, columns = stack.shape
        count, layers, turned = len(parts), self.layers[role], False
        sizes = {weight_key: (torch.uint8, columns // 2), scale_key: (torch.float8_e4m3fn, columns // BLOCK)}
        if None in layers:
            own, turned = self._upright(role, layers[None])
            layers = {e: {key: part_of(t, e, experts) for key, t in own.items()} for e in range(experts)}
        values: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in parts]
        for e in range(experts):
            one = layers[e]
            for key, (dtype, width) in sizes.items():
                if one[key].dtype != dtype or one[key].shape != (count * rows, width):
                    with prefix_errors(self._name(role, e)):
                        check_tensor(key, one[key], dtype, (count * rows, width))
            for p in range(count):
                for found, key in zip(values[p], (weight_key, scale_key)):
                    found.append(divided(one[key], count, p, interleaved))
            if ("bias" in one) != (stack.bias is not None):
                has, has_not = ("checkpoint", "model") if "bias" in one else ("model", "checkpoint")
                raise _C.Error(f"{self._name(role, e)}.bias: is in the {has} but not in the {has_not}")
            if stack.bias is not None:
                with prefix_errors(self._name(role, e)):
                    check_tensor("bias", one["bias"], None, (count * rows,))
                for p in range(count):
                    stack.bias[e, parts[p]] = divided(one["bias"], count, p, interleaved)
        for weights, scales in values:
            self._check(torch.stack([t.view(torch.uint8) for t in scales]), weights, role)
        indices = slice(parts.start, parts.stop)
        given = [layers[e].get(self.format.INPUT_SCALE) for e in range(experts)]
        scales_of = [layers[e][global_key] for e in range(experts)]
        if self.by_rows and any(t.ndim for t in scales_of):
            fill_row_scales(stack, parts, scales_of, interleaved)
        else:
            factors = self._scalars(role, global_key, scales_of, count, shapes).to(stack.weight_global_scale.device)
            own = stack.weight_global_scale
            own[:, indices] = factors if own.ndim == 2 else factors.unsqueeze(-1)
        if any(t is not None for t in given):
            if stack.input_global_scale is None:
                stack.input_global_scale = stack.weight_global_scale.new_full(stack.shape[:2], float("nan"))
            inputs = self._scalars(role, self.format.INPUT_SCALE, given, count, shapes)
            stack.input_global_scale[:, indices] = inputs.to(stack.input_global_scale.device)
        return values, turned

    def _upright(self, role: str, own: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], bool]:
        """A stack's tensors with N before K, and whether K was first."""
        weight_key, scale_key, _ = self.format.REQUIRED
        name = f"{self.name}.{self.locals[role]}"
        for key in (weight_key, scale_key):
            if own[key].ndim != 3:
                raise _C.Error(f"{name}.{key}: has {own[key].ndim} dimensions; must have 3")
        result = upright({**own, "weight_scale": own[scale_key]}, weight_key)
        return result, result[weight_key] is not own[weight_key]

    def _scalars(
        self,
        role: str,
        key: str,
        given: list[Tensor | None],
        count: int,
        shapes: dict[tuple[str, str], tuple[int, ...]],
    ) -> Tensor:
        """Global scales as multipliers [E, P]; NaN where there is none."""
        whole = None
        if None in self.layers[role]:
            whole = self.layers[role][None].get(key)
        example = whole if whole is not None else next(t for t in given if t is not None)
        shapes[role, key] = tuple(example.shape)
        flat = []
        for e, t in enumerate(given):
            if t is None:
                t = example.new_full((1,), float("nan"))
            elif t.dtype != torch.float32 or t.numel() not in (1, count):
                with prefix_errors(self._name(role, e)):
                    wanted = "1 element" if count == 1 else f"1 or {count} elements"
                    rule = "must be float32" if t.dtype != torch.float32 else f"must have {wanted}"
                    raise _C.Error(f"{key}: is {short(t.dtype)} {list(t.shape)}; {rule}")
            flat.append(t.reshape(-1).expand(count) if t.numel() == 1 else t.reshape(-1))
        stored = torch.stack(flat)
        if self.format is modelopt:
            scales = stored
        else:
            self.divisors[role, key], scales = stored, stored.reciprocal()
        wrong = ~((scales > 0) & scales.isfinite())
        wrong[[e for e, t in enumerate(given) if t is None]] = False
        used = key == self.format.REQUIRED[2] or self.mode != W4A16
        if used and not wrong.is_meta and bool(wrong.any()):
            e, p = wrong.nonzero()[0].tolist()
            raise _C.Error(f"{self._name(role, e)}.{key}: is {float(stored[e, p]):g}; must be positive and finite")
        return scales

    def _check(self, linear: Tensor, weights: list[Tensor], role: str) -> None:
        """Rejects damaged block scales [E, N, K/16]."""
        if linear.is_meta or not linear.numel():
            return
        largest = linear.amax((1, 2))
        for e in ((largest == 0) | (largest >= 0x7F)).nonzero().flatten().tolist():
            scale = linear[e].view(torch.float8_e4m3fn)
            with prefix_errors(self._name(role, e)):
                check_block_scales("weight_scale", PackedLinear(weights[e], scale, torch.ones(()), activations=None))

    def _name(self, role: str, expert: int) -> str:
        local = self.locals[role]
        return f"{self.name}.{local.format(expert)}" + ("" if "{" in local else f"[{expert}]")


def prepare(stack: Stack, device: torch.device | None) -> None:
    """Gives small buffers on the meta device values on another. Those of weights are made when they are filled."""
    for name in ("weight_global_scale", "bias"):
        t = stack._buffers[name]
        if t is not None and t.is_meta:
            place = "cpu" if device is None or device.type == "meta" else device
            stack._buffers[name] = torch.empty_like(t, device=place)


def fill_row_scales(stack: Stack, parts: range, scales: list[Tensor], interleaved: bool) -> None:
    """Gives some parts of a stack a global scale for each row, from an expert's [] or [rows of these parts]."""
    if stack.weight_global_scale.ndim == 2:
        stack.weight_global_scale = stack.weight_global_scale.unsqueeze(-1).repeat(1, 1, stack.shape[2])
    for e, t in enumerate(scales):
        rows = t.expand(len(parts) * stack.shape[2])
        for p, part in enumerate(parts):
            stack.weight_global_scale[e, part] = divided(rows, len(parts), p, interleaved)


def fill_matrices(stack: Stack, parts: list[tuple[list[Tensor], list[Tensor]]]) -> None:
    """Gives a stack its matrices. On a CPU tensors that lie there, row after row, are kept where they are."""
    device = stack.weight_global_scale.device
    if device.type == "cpu" and all(t.is_contiguous() and t.device == device for weights, _ in parts for t in weights):
        for p, (weights, scales) in enumerate(parts):
            stack.keep(p, weights, scales)
        return
    if stack.weight is None or stack.weight.is_meta:
        stack._buffers.update(stack.blank(device))
    assert stack.weight is not None and stack.weight_scale is not None
    for p, (weights, scales) in enumerate(parts):
        for e, t in enumerate(weights):
            stack.weight[e, p].copy_(t)
        stack.weight_scale[:, p] = swizzled(torch.stack([t.view(torch.uint8) for t in scales]).to(device))


def part_of(t: Tensor, expert: int, experts: int) -> Tensor:
    """An expert's tensor in a stack; one of other sizes is of all experts."""
    return t[expert] if t.ndim and t.shape[0] == experts else t


def divided(t: Tensor, parts: int, part: int, interleaved: bool) -> Tensor:
    """A part of one expert's [P * N, ...]; its parts follow one another or alternate."""
    if parts == 1:
        return t
    rows = t.shape[0] // parts
    return t[part::parts] if interleaved else t[part * rows : (part + 1) * rows]


# ---- writing ----
