"""The experts of a mixture in a checkpoint, read into the stacks of nvfp4.Experts and written back as they were.

    experts.7.gate_proj.weight      a layer for each expert, also experts.gate_proj.7.weight. w1, w3 and w2, or fc1, fc3
                                    and fc2, stand for gate, up and down; gate_up_proj for both of an expert
    experts.gate_up_proj            a stack of all experts, [E, N, K/2] or [E, K/2, N] (gpt-oss, Llama-4), whose other
                                    tensors have its name before "." or "_": experts.gate_up_proj_weight_scale

The stacks are filled expert by expert. Beside them exist one expert's tensors and one module's block scales.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType

import torch
from torch import Tensor

from nvfp4 import _C, _api
from nvfp4.checkpoints import compressed_tensors, modelopt
from nvfp4.checkpoints.common import AUTO, W4A4, W4A4_DYNAMIC, W4A16, check_names, upright
from nvfp4.experts import Experts, Stack
from nvfp4.mixture import Description, of_experts
from nvfp4.packed import BLOCK, PackedLinear, check_block_scales, check_tensor, prefix_errors, short

GATE, UP, DOWN, GATE_UP = "gate", "up", "down", "gate_up"
ROLES = {"gate_proj": GATE, "w1": GATE, "fc1": GATE, "up_proj": UP, "w3": UP, "fc3": UP}
ROLES |= {"down_proj": DOWN, "w2": DOWN, "fc2": DOWN, "gate_up_proj": GATE_UP, "w13": GATE_UP}
PLACE = re.compile(rf"((?:.*\.)?experts)\.(?:(\d{{1,9}})\.({'|'.join(ROLES)})|({'|'.join(ROLES)})(?:\.(\d{{1,9}}))?)")
FORMATS = {compressed_tensors.NAME: compressed_tensors, modelopt.NAME: modelopt}


@dataclass(frozen=True)
class Place:
    """Where a module of a checkpoint belongs: an expert's layer, or a stack of them.

    Attributes:
        container: the name of the module of all experts.
        local: what follows it, with {} for the expert's number.
        role: GATE, UP, DOWN or GATE_UP.
        expert: the number; None of a stack.
    """

    container: str
    local: str
    role: str
    expert: int | None


def place_of(module: str) -> Place | None:
    match = PLACE.fullmatch(module)
    if match is None:
        return None
    container, first, own, other, last = match.groups()
    if own is not None:
        return Place(container, f"{{}}.{own}", ROLES[own], int(first))
    return Place(
        container, other if last is None else f"{other}.{{}}", ROLES[other], None if last is None else int(last)
    )


@dataclass(frozen=True)
class Naming:
    """How a checkpoint names and stores experts, so that they are saved in the same way.

    Attributes:
        locals: of each role the name after the container's, with {} for the number of an expert; without it, a stack.
        joined: whether "_" and not "." follows a stack's name.
        transposed: whether stacks are [E, K/2, N].
        interleaved: whether rows of gate and up alternate in a stack.
        shapes: of global scales, by role and name.
    """

    locals: Mapping[str, str]
    joined: bool = False
    transposed: bool = False
    interleaved: bool = False
    shapes: Mapping[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)

    @property
    def stacked(self) -> bool:
        return "{}" not in self.locals[DOWN]

    def name(self, role: str, key: str, expert: int = 0) -> str:
        """A tensor's name after the container's."""
        local = self.locals[role].format(expert)
        if not self.joined:
            return f"{local}.{key}"
        return local if key == "weight" else f"{local}_{key}"


def naming_of(about: Description, names: Mapping[str, str] | None = None) -> Naming:
    """The naming of experts that no checkpoint had: a layer for each, or a stack if the module's parameters have K
    before N, as ModelOpt has it.

    Args:
        names: of each role the name of a layer, where it is known; of a stack as in Naming.
    """
    if about.transposed:
        scalars = {(role, key): () for role in (GATE_UP, DOWN) for key in ("weight_scale_2", "weight_global_scale")}
        locals_of = {GATE_UP: "gate_up_proj", DOWN: "down_proj"}
        return Naming(locals_of, True, True, about.interleaved, scalars)
    given = names or {GATE: "{}.gate_proj", UP: "{}.up_proj", DOWN: "{}.down_proj"}
    return Naming({role: local for role, local in given.items() if about.gated or role != GATE})


# ---- reading ----


@dataclass
class Container:
    """The tensors of all experts of one module, as they are stored.

    Attributes:
        name: of the module in the checkpoint.
        format: the module of nvfp4.checkpoints.
        modes: of its layers.
        layers: by role and expert (None: a stack), the tensors by their names in the layer.
        locals, joined: as of Naming.
    """

    name: str
    format: ModuleType
    modes: set[str] = field(default_factory=set)
    layers: dict[str, dict[int | None, Mapping[str, Tensor]]] = field(default_factory=dict)
    locals: dict[str, str] = field(default_factory=dict)
    joined: bool = False

    def add(
        self, place: Place, own: Mapping[str, Tensor], activations: str | None, joined: bool, dynamic: bool
    ) -> None:
        """Adds a layer or a stack, whose names are checked.

        Args:
            activations: "nvfp4", None, or AUTO: by the input scale.
        """
        name = place.local.format(place.expert)
        try:
            check_names(
                self.format.NAME, own, self.format.REQUIRED, (*self.format.REQUIRED, self.format.INPUT_SCALE, "bias")
            )
        except _C.Error as error:
            raise _C.Error(f"{self.name}.{name}.{error}") from None
        if self.locals.setdefault(place.role, place.local) != place.local:
            raise _C.Error(f"{self.name}.{name}: is named in another way than {self.locals[place.role].format(0)}")
        self.layers.setdefault(place.role, {})[place.expert] = own
        self.joined |= joined
        if activations != AUTO:
            self.modes.add(W4A16 if activations is None else W4A4_DYNAMIC if dynamic else W4A4)

    @property
    def mode(self) -> str:
        """W4A4, W4A4 dynamic or W4A16. Where no configuration says it, experts with an input scale are W4A4, and then
        all are: producers leave it out of experts that no sample reached."""
        if len(self.modes) > 1:
            raise _C.Error(f"{self.name}: has experts of {' and '.join(sorted(self.modes))}; must have one mode")
        if self.modes:
            return next(iter(self.modes))
        given = any(self.format.INPUT_SCALE in own for layers in self.layers.values() for own in layers.values())
        return W4A4 if given else W4A16

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for layers in self.layers.values() for own in layers.values() for t in own.values())

    def fill(self, experts: Experts, interleaved: bool, device: torch.device | None = None) -> Experts:
        """Fills a module, whose buffers are on the device, or on the meta device.

        Args:
            interleaved: whether a stack's rows of gate and up alternate.
            device: of the module afterwards; None: that of its buffers, or the CPU.

        Raises:
            nvfp4.Error: a layer is missing or has another shape or dtype, or a scale is not positive and finite.
        """
        first = self.check(experts)
        shapes: dict[tuple[str, str], tuple[int, ...]] = {}
        turned = False
        for stack, roles in ((experts.gate_up, first), (experts.down, [DOWN])):
            for p, role in enumerate(roles):
                parts = slice(p, p + 1) if len(roles) > 1 else slice(None)
                turned |= self._fill_part(stack, parts, role, interleaved, device, shapes)
            if not stack.weight.is_meta:
                self._check(stack, roles)
        experts.mode = self.mode
        experts.naming = Naming(
            dict(self.locals), self.joined, turned, interleaved and None in self.layers[first[0]], shapes
        )
        return experts

    def check(self, experts: Experts) -> list[str]:
        """Rejects layers that are missing or too many. Returns the roles of the first product."""
        if not experts.gated and GATE in self.layers and UP not in self.layers:  # w1 and w2, or fc1 and fc2
            self.layers[UP], self.locals[UP] = self.layers.pop(GATE), self.locals.pop(GATE)
        first = [GATE_UP] if GATE_UP in self.layers else [GATE, UP] if experts.gated else [UP]
        for role in (*first, DOWN):
            if role not in self.layers:
                raise _C.Error(f"{self.name}: has no layers of {role}; must have {', '.join((*first, DOWN))}")
        for role, layers in self.layers.items():
            if role not in (*first, DOWN):
                raise _C.Error(f"{self.name}.{self.locals[role].format(0)}: has no place in the model's experts")
            if None in layers and len(layers) > 1:
                raise _C.Error(f"{self.name}.{self.locals[role]}: is a stack beside layers of single experts")
            wanted = range(experts.num_experts)
            if None not in layers and layers.keys() != {*wanted}:
                absent, more = (sorted({*a} - {*b}) for a, b in ((wanted, layers), (layers, wanted)))
                what = "is missing" if absent else "is there"
                name = self._name(role, (absent or more)[0])
                raise _C.Error(f"{name}: {what}; the model has {experts.num_experts} experts")
        return first

    def _fill_part(
        self,
        stack: Stack,
        parts: slice,
        role: str,
        interleaved: bool,
        device: torch.device | None,
        shapes: dict[tuple[str, str], tuple[int, ...]],
    ) -> bool:
        """Fills some parts of all experts. Returns whether the stack is stored with K before N."""
        weight_key, scale_key, global_key = self.format.REQUIRED
        experts, _, rows, half = stack.weight.shape
        count = stack.weight[:1, parts].shape[1]
        place(stack, device)
        layers, turned = self.layers[role], False
        if None in layers:
            own, turned = self._upright(role, layers[None])
        linear = torch.empty((experts, count, rows, half * 2 // BLOCK), dtype=torch.uint8, device=stack.weight.device)
        scales: dict[str, list[Tensor | None]] = {global_key: [], self.format.INPUT_SCALE: []}
        for e in range(experts):
            if None in layers:
                one: Mapping[str, Tensor] = {
                    key: t[e] if t.ndim and t.shape[0] == experts else t for key, t in own.items()
                }
            else:
                one = layers[e]
            for key, dtype, width in (
                (weight_key, torch.uint8, half),
                (scale_key, torch.float8_e4m3fn, half * 2 // BLOCK),
            ):
                t = one[key]
                if t.dtype != dtype or t.shape != (count * rows, width):
                    with prefix_errors(self._name(role, e)):
                        check_tensor(key, t, dtype, (count * rows, width))
            stack.weight[e, parts].copy_(divided(one[weight_key], count, interleaved))
            linear[e].copy_(divided(one[scale_key].view(torch.uint8), count, interleaved))
            for key, found in scales.items():
                found.append(one.get(key))
            if ("bias" in one) != (stack.bias is not None):
                has, has_not = ("checkpoint", "model") if "bias" in one else ("model", "checkpoint")
                raise _C.Error(f"{self._name(role, e)}.bias: is in the {has} but not in the {has_not}")
            if stack.bias is not None:
                with prefix_errors(self._name(role, e)):
                    check_tensor("bias", one["bias"], None, (count * rows,))
                stack.bias[e, parts].copy_(divided(one["bias"], count, interleaved))
        swizzled = _api.swizzle(linear.reshape(experts * count, *linear.shape[2:]).view(torch.float8_e4m3fn))
        stack.weight_scale[:, parts].view(torch.uint8).copy_(
            swizzled.view(torch.uint8).reshape(experts, count, *stack.weight_scale.shape[2:])
        )
        stack.weight_global_scale[:, parts] = self._scalars(role, global_key, scales[global_key], count, shapes).to(
            stack.weight.device
        )
        given = scales[self.format.INPUT_SCALE]
        if any(t is not None for t in given):
            if stack.input_global_scale is None:
                stack.input_global_scale = torch.full_like(stack.weight_global_scale, float("nan"))
            values = self._scalars(role, self.format.INPUT_SCALE, given, count, shapes)
            stack.input_global_scale[:, parts] = values.to(stack.weight.device)
        return turned

    def _upright(self, role: str, own: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], bool]:
        """A stack's tensors with N before K, and whether K was first."""
        weight_key, scale_key, _ = self.format.REQUIRED
        result = upright({**own, "weight_scale": own[scale_key]}, weight_key)
        name = f"{self.name}.{self.locals[role]}"
        for key in (weight_key, scale_key):
            if own[key].ndim != 3:
                raise _C.Error(f"{name}.{key}: has {own[key].ndim} dimensions; must have 3")
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
        scales = stored if self.format is modelopt else stored.reciprocal()
        wrong = ~((scales > 0) & scales.isfinite())
        if key == self.format.REQUIRED[2] and not wrong.is_meta and bool(wrong.any()):
            e, p = wrong.nonzero()[0].tolist()
            raise _C.Error(f"{self._name(role, e)}.{key}: is {float(stored[e, p]):g}; must be positive and finite")
        return scales

    def _check(self, stack: Stack, roles: list[str]) -> None:
        """Rejects damaged block scales."""
        largest = stack.weight_scale.view(torch.uint8).amax((2, 3))
        suspect = (largest == 0) | (largest >= 0x7F)
        if not bool(suspect.any()):
            return
        linear = stack.linear_scales()
        for e, p in suspect.nonzero().tolist():
            role = roles[p] if len(roles) > 1 else roles[0]
            with prefix_errors(self._name(role, e)):
                packed = PackedLinear(
                    stack.weight[e, p], linear[e, p], stack.weight_global_scale[e, p], activations=None
                )
                check_block_scales("weight_scale", packed)

    def _name(self, role: str, expert: int) -> str:
        local = self.locals[role]
        return f"{self.name}.{local.format(expert)}" + ("" if "{" in local else f"[{expert}]")


def place(stack: Stack, device: torch.device | None) -> None:
    """Gives a stack on the meta device buffers on another."""
    for name, t in stack._buffers.items():
        if t is not None and t.is_meta:
            fresh = torch.empty_like(t, device="cpu" if device is None or device.type == "meta" else device)
            if name == "weight_scale":
                fresh.view(torch.uint8).zero_()  # its padding
            stack._buffers[name] = fresh


def divided(t: Tensor, parts: int, interleaved: bool) -> Tensor:
    """One expert's [P * N, ...] as [P, N, ...], of parts that follow one another or alternate."""
    if parts > 1 and interleaved:
        return t.unflatten(0, (t.shape[0] // parts, parts)).transpose(0, 1)
    return t.unflatten(0, (parts, t.shape[0] // parts))


# ---- writing ----


def stored(experts: Experts, format: ModuleType) -> dict[str, Tensor]:
    """A module's tensors in a format, by their names after the module's, in the naming that was read."""
    naming: Naming = experts.naming or naming_of(of_experts(experts))
    weight_key, scale_key, global_key = format.REQUIRED
    result: dict[str, Tensor] = {}
    first = [GATE_UP] if GATE_UP in naming.locals else [GATE, UP] if experts.gated else [UP]
    for stack, roles in ((experts.gate_up, first), (experts.down, [DOWN])):
        linear = stack.linear_scales()
        for p, role in enumerate(roles):
            parts = slice(p, p + 1) if len(roles) > 1 else slice(None)
            scales = {global_key: stack.weight_global_scale[:, parts]}
            if stack.input_global_scale is not None:
                scales[format.INPUT_SCALE] = stack.input_global_scale[:, parts]
            if format is not modelopt:
                scales = {key: t.reciprocal() for key, t in scales.items()}
            tensors = {weight_key: stack.weight[:, parts], scale_key: linear[:, parts]}
            if stack.bias is not None:
                tensors["bias"] = stack.bias[:, parts]
            if "{" not in naming.locals[role]:
                result |= whole(naming, role, tensors, scales)
                continue
            shape = () if format is modelopt else (1,)
            for e in range(experts.num_experts):
                for key, t in tensors.items():
                    result[naming.name(role, key, e)] = t[e].flatten(0, 1)
                for key, t in scales.items():
                    if not bool(t[e].isnan().any()):
                        size = naming.shapes.get((role, key), shape)
                        result[naming.name(role, key, e)] = one_of(t[e], size).clone()
    return result


def whole(naming: Naming, role: str, tensors: Mapping[str, Tensor], scales: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a stack."""
    result = {}
    for key, t in tensors.items():
        t = t.transpose(1, 2) if naming.interleaved and t.shape[1] > 1 else t
        t = t.flatten(1, 2)
        result[naming.name(role, key)] = t.transpose(1, 2).contiguous() if naming.transposed and t.ndim == 3 else t
    for key, t in scales.items():
        result[naming.name(role, key)] = one_of(t, naming.shapes.get((role, key), tuple(t.shape))).clone()
    return result


def one_of(scales: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Scales in the shape that they had, which may have one for all, or one an expert; else in their own."""
    size = 1
    for n in shape:
        size *= n
    flat = scales.reshape(scales.shape[0], -1) if scales.ndim > 1 else scales.reshape(1, -1)
    fewer = {1: flat[:1, :1], flat.shape[0]: flat[:, :1], flat.numel(): flat}.get(size)
    if fewer is None or not bool((fewer == flat).all()):
        return scales
    return fewer.reshape(shape)
