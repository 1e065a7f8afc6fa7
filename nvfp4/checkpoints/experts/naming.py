"""How checkpoints name and store the experts of a mixture.

    experts.7.gate_proj.weight      a layer for each expert, also experts.gate_proj.7.weight. w1, w3 and w2, or fc1, fc3
                                    and fc2, stand for gate, up and down; gate_up_proj for both of an expert
    experts.gate_up_proj            a stack of all experts, [E, N, K/2] or [E, K/2, N] (gpt-oss, Llama-4), whose other
                                    tensors have its name before "." or "_": experts.gate_up_proj_weight_scale

Experts that were read are saved as they were named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from nvfp4.checkpoints.configuration import FORMATS
from nvfp4.layers.experts.mixture import Description

GATE, UP, DOWN, GATE_UP = "gate", "up", "down", "gate_up"
ROLES = {"gate_proj": GATE, "w1": GATE, "fc1": GATE, "up_proj": UP, "w3": UP, "fc3": UP}
ROLES |= {"down_proj": DOWN, "w2": DOWN, "fc2": DOWN, "gate_up_proj": GATE_UP, "w13": GATE_UP}
PLACE = re.compile(rf"((?:.*\.)?experts)\.(?:(\d{{1,9}})\.({'|'.join(ROLES)})|({'|'.join(ROLES)})(?:\.(\d{{1,9}}))?)")


@dataclass(frozen=True)
class Place:
    """The place of a module of a checkpoint: an expert's layer, or a stack of them.

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
        interleaved: whether rows of gate and up alternate in a stack, or in an expert's layer of both.
        shapes: of global scales, by role and name.
        divisors: of each role and name the global scales [E, P] as a format of divisors stores them: several may have
            the same reciprocal.
    """

    locals: Mapping[str, str]
    joined: bool = False
    transposed: bool = False
    interleaved: bool = False
    shapes: Mapping[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    divisors: Mapping[tuple[str, str], Tensor] = field(default_factory=dict)

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
        keys = ("weight_scale_2", "weight_global_scale", *(format.INPUT_SCALE for format in FORMATS.values()))
        scalars: dict[tuple[str, str], tuple[int, ...]] = {(role, key): () for role in (GATE_UP, DOWN) for key in keys}
        locals_of = {GATE_UP: "gate_up_proj", DOWN: "down_proj"}
        return Naming(locals_of, True, True, about.interleaved, scalars)
    given = names or {GATE: "{}.gate_proj", UP: "{}.up_proj", DOWN: "{}.down_proj"}
    return Naming({role: local for role, local in given.items() if about.gated or role != GATE})
