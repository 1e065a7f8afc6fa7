"""The models and planners of csrc/, asked from Python.

gcc compiles c_model.c at the first use. Structs are those of csrc/: names, kinds and offsets of their members come from
the compiler (describe() in c_model.c), defaults of constants from the headers. A struct has no other attributes than
its members, so a misspelled constant is an error.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
CSRC = HERE.parent / "csrc"
KINDS = {"i": ctypes.c_int32, "q": ctypes.c_int64, "d": ctypes.c_double, "s": ctypes.c_char_p}


class Struct(ctypes.Structure):
    """A struct of csrc/."""

    __slots__ = ()

    def copy(self, **changes: float) -> Struct:
        """With some members changed."""
        made = type(self).from_buffer_copy(self)
        for name, value in changes.items():
            setattr(made, name, value)
        return made

    def members(self) -> dict[str, Any]:
        return {field[0]: getattr(self, field[0]) for field in self._fields_}


class Config(NamedTuple):
    """An instantiation of the sm100 kernel: a row of SM100_GEMM_CONFIGS."""

    name: str
    cta_group: int
    mma_tile_n: int
    stages: int
    accumulators: int
    cp_async: int
    multicast: int = 1


@dataclass(frozen=True)
class Constant:
    name: str
    value: float
    unit: str
    source: str


class Library:
    """c_model.c, compiled: with the planners of sm80 and sm90, or with other instantiations of the sm100 kernel."""

    def __init__(self, configs: tuple[Config, ...] = ()) -> None:
        sources = [HERE / "c_model.c"]
        options = []
        if configs:
            rows = " ".join(f"X(config_{i}, {', '.join(map(str, row[1:]))})" for i, row in enumerate(configs))
            options += [f"-DSM100_GEMM_CONFIGS(X)={rows}", "-DONLY_SM100"]
        else:
            folders = (CSRC / "kernels/sm80", CSRC / "kernels/sm90", CSRC / "kernels/units")
            sources += sorted(path for folder in folders for path in folder.glob("*.c"))
            sources += [CSRC / "common/error.c", CSRC / "plan/reject.c"]
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "c_model.so"
            command = ["gcc", "-std=c11", "-O1", "-shared", "-fPIC", "-Wl,--no-undefined", f"-I{CSRC}", *options]
            subprocess.run([*command, "-o", made, *sources, "-lm"], check=True)
            self.c = ctypes.CDLL(str(made))
        self.c.describe.restype = ctypes.c_char_p
        self.facts: dict[str, list[list[str]]] = defaultdict(list)
        for line in self.c.describe().decode().splitlines():
            kind, *values = line.split("\t")
            self.facts[kind].append(values)

    def configs(self) -> list[Config]:
        return [Config(name.removeprefix("sm100_gemm_"), *map(int, values)) for name, *values in self.facts["config"]]

    def structs(self) -> dict[str, type[Struct]]:
        return {
            owner: struct(owner, int(size), [values[1:] for values in self.facts["field"] if values[0] == owner])
            for owner, size in self.facts["size"]
        }


def struct(name: str, size: int, rows: list[list[str]]) -> type[Struct]:
    """From rows of (member, kind, offset, bytes). All its members must be there."""
    fields = [(member, KINDS.get(kind, ctypes.c_char * int(size))) for member, kind, _, size in rows]
    made = type(name, (Struct,), {"__slots__": (), "_fields_": fields})
    if ctypes.sizeof(made) != size or any(getattr(made, row[0]).offset != int(row[2]) for row in rows):
        raise TypeError(f"describe() of c_model.c does not have all members of {name}")
    return made


@functools.cache
def library(configs: tuple[Config, ...] = ()) -> Library:
    return Library(configs)


@functools.cache
def _structs() -> dict[str, type[Struct]]:
    return library().structs()


def new(name: str, **members: float) -> Struct:
    """A struct, zero but for these members."""
    return _structs()[name]().copy(**members)


def exported(struct_name: str, variable: str) -> Struct:
    """A copy of a variable of the library."""
    return _structs()[struct_name].in_dll(library().c, variable).copy()


def model(backend: str, **changes: float) -> Struct:
    """The constants of "sm100", or of "sm90" on an H200, some changed."""
    if backend == "sm90":
        return sm90_on(device("h200")).copy(**changes)
    return exported(f"{backend}_model", f"{backend}_model_defaults").copy(**changes)


def sm90_on(on: Struct) -> Struct:
    """The constants of sm90 on a device: of the card that was measured, or of the nearest one, scaled."""
    made = new("sm90_model")
    library().c.sm90_constants_on(*map(ctypes.byref, (on, made)))
    return made


def sm90_name(on: Struct) -> str:
    """The text of nvfp4_plan.model: the source of these constants."""
    function = library().c.sm90_constants_are
    function.restype = ctypes.c_char_p
    return bytes(function(ctypes.byref(on))).decode()


def without_pdl(constants: Struct) -> Struct:
    """The sm100 constants by which the competition's file ranks."""
    made = constants.copy()
    library().c.sm100_model_without_pdl(*map(ctypes.byref, (constants, made)))
    return made


def device(name: str) -> Struct:
    """Properties of an "h100", "h200", "gh200", "h20" or "b200"."""
    return exported("device_props", f"{name}_props")


def answering(on: Struct, clusters: Sequence[int]) -> Struct:
    """The device where it says how many clusters of 2, 4 and 8 run at a time with one CTA an SM, then with two."""
    made, field = on.copy(), type(on).clusters
    ctypes.memmove(ctypes.addressof(made) + field.offset, (ctypes.c_int32 * 6)(*clusters), field.size)
    return made


def clusters_that_fit(on: Struct, cluster: int, per_sm: int = 1) -> int:
    """The values of that many CTAs, by the sm100 plan."""
    function = library().c.clusters_that_fit
    function.restype = ctypes.c_int64
    return function(ctypes.byref(on), ctypes.c_int32(cluster), ctypes.c_int32(per_sm))


def dense_gated(constants: Struct, m: int, n: int, k: int) -> tuple[float, int]:
    """Microseconds of one dense group of m rows with an activation of two matrices on a B200, and the tile's rows."""
    function, rows = library().c.sm100_dense_gated_us, ctypes.c_int32()
    function.restype = ctypes.c_double
    sizes = map(ctypes.c_int64, (m, n, k))
    return function(ctypes.byref(constants), ctypes.byref(device("b200")), *sizes, ctypes.byref(rows)), rows.value


def number(name: str) -> int:
    """A number that csrc/ defines."""
    return {name: int(value) for name, value in library().facts["number"]}[name]


def constants_of(backend: str) -> list[Constant]:
    """The constants of "sm100", or of "sm90" on an H200: each with its unit, and its source or meaning."""
    values, owner = model(backend).members(), f"{backend}_model"
    facts = [fact[1:] for fact in library().facts["constant"] if fact[0] == owner]
    return [Constant(name, values[name], unit, source) for name, unit, source in facts]


@functools.cache
def traits(m: int, n: int, k: int, l: int = 1, a: int | None = None) -> Struct:
    """The traits of contiguous operands; a: the nvfp4_dtype of a 16-bit A."""
    made, a_type = new("gemm_traits"), ctypes.c_int32(number("VALUES_E2M1") if a is None else a)
    library().c.contiguous_traits(*map(ctypes.c_int64, (m, n, k, l)), a_type, ctypes.byref(made))
    return made


def candidates(constants: Struct, on: Struct, of: Struct, configs: tuple[Config, ...] = ()) -> list[Struct]:
    """A backend's candidates for a product, with modelled times. The type of the constants selects the backend."""
    function = getattr(library(configs).c, type(constants).__name__.replace("_model", "_candidates"))
    found = (_structs()["gemm_candidate"] * number("MAX_CANDIDATES"))()
    return found[: function(*map(ctypes.byref, (constants, on, of)), found)]


@functools.cache
def grouped_traits(rows: int, n: int, k: int, l: int, groups: int, a: int) -> Struct:
    """The traits of rows in groups, with an A of this nvfp4_dtype; l: all matrices."""
    made = new("gemm_traits")
    sizes = map(ctypes.c_int64, (rows, n, k, l))
    library().c.grouped_traits(*sizes, *map(ctypes.c_int32, (groups, a)), ctypes.byref(made))
    return made


def hopper_plans(constants: Struct, on: Struct, of: Struct, is_gated: bool) -> list[tuple[Struct, bool]]:
    """All plans of a product on a Hopper GPU under these constants of sm90, from the chosen one on; and whether it
    computes the activation too."""
    most = 2 * number("MAX_CANDIDATES")
    found, fused = (_structs()["gemm_candidate"] * most)(), (ctypes.c_int32 * most)()
    count = library().c.hopper_plans(*map(ctypes.byref, (constants, on, of)), ctypes.c_int32(is_gated), found, fused)
    return list(zip(found[:count], map(bool, fused)))


class TimedProducts:
    """Measured plans of products, for hopper_loss: each product with its traits, whether its activation belongs to it,
    and its plans as the members of timed_plan."""

    def __init__(self, measured: Sequence[tuple[Struct, bool, Sequence[dict[str, float]]]]) -> None:
        product, plan = _structs()["timed_product"], _structs()["timed_plan"]
        self.products = (product * len(measured))()
        self.plans = (plan * sum(len(plans) for _, _, plans in measured))()
        at = 0
        for one, (of, is_gated, plans) in zip(self.products, measured):
            field = product.traits
            ctypes.memmove(ctypes.addressof(one) + field.offset, ctypes.addressof(of), field.size)
            one.is_gated, one.first, one.end = is_gated, at, at + len(plans)
            for members in plans:
                for name, value in members.items():
                    setattr(self.plans[at], name, value)
                at += 1

    def loss(self, constants: Struct, on: Struct) -> float:
        function = library().c.hopper_loss
        function.restype = ctypes.c_double
        return float(function(ctypes.byref(constants), ctypes.byref(on), self.products, len(self.products), self.plans))


def sm100_work(
    on: Struct, of: Struct, kernel: int, swap_ab: bool, split_k: int, ctas_per_sm: int, configs: tuple[Config, ...]
) -> Struct:
    """Counted work of one of the instantiations; ctas_per_sm of 0: by the plan's rule."""
    made = new("sm100_work")
    settings = map(ctypes.c_int32, (kernel, swap_ab, split_k, ctas_per_sm))
    library(configs).c.count_sm100_work(ctypes.byref(on), ctypes.byref(of), *settings, ctypes.byref(made))
    return made


def sm100_times(constants: Struct, on: Struct, work: Struct) -> tuple[Struct, Struct]:
    """(times of the parts, times of a call)."""
    made = new("sm100_times"), new("sm100_call")
    library().c.time_sm100_work(*map(ctypes.byref, (constants, on, work, *made)))
    return made
