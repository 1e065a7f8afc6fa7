"""Proves with the static verifier sentryward, over every schedule, that a launch has no deadlock and no race, and uses
barriers and tensor memory only while they are alive.

The proof is of the PTX that nvcc writes for the product, with the arguments that a Launch passes, for one cluster of
CTAs (CTAs do not communicate beyond their cluster) and the number of K stages listed. docs/proof.md, "Every
schedule", lists what the verifier does not see and how the PTX is rewritten for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import re
import resource
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy
from paths import CSRC

from harness.headers import Config, Struct
from harness.launch import Generator, Problem, Product, TensorMap, only_entry, ptx_of
from harness.predecessor import Predecessor

MEMORY_MB, SECONDS = 6000, 600  # what one proof may take
SCALARS = {ctypes.c_int64: "u64", ctypes.c_uint64: "u64", ctypes.c_int32: "u32", ctypes.c_uint32: "u32"}
SCALARS |= {ctypes.c_float: "f32"}
ELEMENTS, SWIZZLES = {0: "u8", 1: "u16"}, {0: "none", 2: "64B", 3: "128B"}  # the codes that launch.py takes


class Launch:
    """Calls of one kernel, which the emulator runs and the verifier proves. A backend gives the fields `note`, `stages`
    and `split_k`, the types of the parameters, and what is marked as its own."""

    note: str
    split_k: int
    schedule: type[Struct]
    problem: type[Struct] = Problem
    aligned = True  # scales are 4-byte aligned, output rows 32-byte: the verifier cannot compute it
    late = ""  # the operand that a grid before writes late
    inlined: ClassVar[tuple[str, ...]] = ()  # files below csrc that mutations edit, as the kernel includes them
    config: Config

    @property
    def name(self) -> str:
        return f"{self.config.short} {self.note}"

    @property
    def for_verifier(self) -> bool:
        """It takes one grid of one cluster, on the kernel that Config names."""
        return not self.late

    @property
    def device(self) -> str:
        return self.config.headers.name

    @property
    def kernel(self) -> str:
        return self.config.kernel

    @property
    def size(self) -> tuple[int, int, int]:
        """M, N and K; the backend's own."""
        raise NotImplementedError

    def start(self, emulator: Any, module: Any, generator: Generator) -> list[Product]:
        """Launches the calls without waiting for them; the backend's own."""
        raise NotImplementedError

    def readable(self, text: str) -> str:
        """The kernel's PTX without what the verifier does not support; the backend's own."""
        return text

    def grid_before(self, emulator: Any, product: Product) -> contextlib.AbstractContextManager[None]:
        """What the block launches follows a grid that writes the operand `late`, if there is one."""
        if not self.late:
            return contextlib.nullcontext()
        before = Predecessor(emulator, self.device)
        before.writes(product.memory(self.late))
        return before.launched()

    def source(self) -> str:
        """The kernel's file with the launched instantiation alone. Inlined files stand in place of their includes."""
        text = self.config.source.read_text()
        (listed,) = re.findall(r"\b\w+_CONFIGS\(KERNEL\)", text)
        text = text.replace(listed, f"KERNEL({self.config.row})")
        for name in self.inlined:
            include = f'#include "{name}"\n'
            assert include in text, f"{name} is not included"
            text = text.replace(include, (CSRC / name).read_text(), 1).replace(include, "")
        return text

    def ptx(self) -> str:
        """The PTX of the whole file."""
        return ptx_of(self.config)


@dataclass(frozen=True)
class Verdict:
    result: str  # race_free, or what was found
    seconds: float  # of processor time
    megabytes: float
    details: list[str] = field(default_factory=list)


# ---- launches as the verifier's input -----------------------------------------------------------------------------


class Placed:
    """An array that has an address but no memory."""

    def __init__(self, address: int) -> None:
        self.address = address


class Recorder:
    """Replaces the emulator and records a launch."""

    OBJECTS = ("A", "SFA", "B", "SFB", "OUT", "DEQUANTIZED")  # in the order in which a Product makes them

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.maps: list[dict[str, Any]] = []
        self.launched: dict[str, Any] = {}

    def empty(self, shape: Any = None, dtype: Any = None) -> Placed:
        placed = Placed(len(self.names) + 1 << 40)
        self.names[placed.address] = f"OTHER_{len(self.names)}"
        if len(self.names) <= len(self.OBJECTS):
            self.names[placed.address] = self.OBJECTS[len(self.names) - 1]
        return placed

    array = empty

    def tensor_map(
        self, kind: int, array: Placed, dims: Sequence[int], strides: Sequence[int], box: Sequence[int], swizzle: int
    ) -> bytes:
        self.maps.append(
            {
                "object": self.names[array.address],
                "element_type": ELEMENTS[kind],
                "global_shape": list(dims),
                "global_strides_bytes": list(strides),
                "box_shape": list(box),
                "element_strides": [1] * len(box),
                "swizzle": SWIZZLES[swizzle],
                "interleave": "none",
                "oob_fill": "zero",
            }
        )
        return len(self.maps).to_bytes(ctypes.sizeof(TensorMap), "little")

    def launch(self, kernel: str, **how: Any) -> None:
        self.launched = {"kernel": kernel, **how}

    def __getitem__(self, name: str) -> str:  # replaces the module too
        return name


def fields(struct: ctypes.Structure, base: int = 0) -> Iterator[tuple[type | None, int, Any]]:
    """Type (None: a pointer), offset and value of the fields of a struct, nested structs flattened."""
    for name, kind in struct._fields_:
        offset, value = base + getattr(type(struct), name).offset, getattr(struct, name)
        if isinstance(value, ctypes.Structure) and kind is not TensorMap:
            yield from fields(value, offset)
        else:
            yield None if name in struct.pointers else kind, offset, value


def recorded_input(recorder: Recorder, parameters: Sequence[type[ctypes.Structure]]) -> dict[str, Any]:
    """The verifier's input for the recorded launch; parameters: the kernel's, in order."""
    arguments, declarations, maps = [], [], []
    for parameter, (struct, data) in enumerate(zip(parameters, recorder.launched["args"])):
        for kind, offset, value in fields(struct.from_buffer_copy(data)):
            place = {"parameter": parameter, "offset": offset}
            if kind is TensorMap:
                if index := int.from_bytes(bytes(value), "little"):
                    maps.append({**place, **recorder.maps[index - 1]})
            elif kind is None and value:
                declarations.append({**place, "type": "pointer", "space": "global", "object": recorder.names[value]})
            elif kind is None or kind in SCALARS:
                value = min(value, 3e38)  # JSON has no infinity
                arguments.append({**place, "type": SCALARS.get(kind, "u64"), "value": value})
    how = recorder.launched
    grid = how["grid"] if isinstance(how["grid"], tuple) else (how["grid"],)
    return {
        "schema": "spverify.kernel-input/v1",
        "entry": how["kernel"],
        "launch": {
            "grid_dim": [*grid, 1, 1][:3],
            "block_dim": [how["block"], 1, 1],
            "cluster_dim": [how["cluster"] or 1, 1, 1],
            "dynamic_shared_bytes": how["shared"],
        },
        "declarations": declarations,
        "tma_descriptors": maps,
        "arguments": arguments,
    }


# ---- proof ---------------------------------------------------------------------------------------------------------


def alignment_branch(text: str, line: int, aligned: bool) -> dict[str, Any]:
    """Whether that branch is taken. Addresses of tensors are symbols to the verifier, so `aligned` states their
    alignment; a branch that depends on anything else is an error."""
    lines = text.split("\n")

    def definition(register: str) -> str:
        return [one for one in lines[:line] if re.search(rf"^[\w.]+ {register},", one)][-1]

    def is_alignment(predicate: str, equal: bool) -> bool:
        test = re.search(r"setp\.(eq|ne)\.s64 %p\d+, (%rd\d+), 0;", definition(predicate))
        bits = test and re.search(r"and\.b64 %rd\d+, (%rd\d+), (3|7|15|16|31|%rd\d+);", definition(test[2]))
        if bits and bits[2].startswith("%"):  # one of two masks
            bits = re.search(r"selp\.b64 %rd\d+, (3|7|15|31), (3|7|15|31), ", definition(bits[1]))
        return bool(bits) and (test[1] == "eq") == equal

    guard = re.search(r"@(!?)(%p\d+) bra", lines[line - 1])
    assert guard, f"line {line} is no branch: {lines[line - 1]}"
    both = re.search(r"and\.pred %p\d+, (%p\d+), (%p\d+);", definition(guard[2]))
    if both and (is_alignment(both[1], True) or is_alignment(both[2], True)):  # the other is known, and true
        holds = aligned
    elif is_alignment(guard[2], True) or is_alignment(guard[2], False):
        holds = aligned == is_alignment(guard[2], True)
    else:
        raise ValueError(f"line {line} depends on more than an alignment: {definition(guard[2])}")
    return {"line": line, "taken": holds != bool(guard[1])}


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def prove(launch: Launch, ptx: str, seconds: float = SECONDS) -> Verdict:
    """ptx: of the whole file or of that kernel. seconds: time limit."""
    assert launch.for_verifier
    recorder = Recorder()
    launch.start(recorder, recorder, numpy.random.default_rng(0))
    text = launch.readable(only_entry(ptx, launch.kernel))
    return judge(text, recorded_input(recorder, (launch.problem, launch.schedule)), launch.aligned, seconds)


def judge(text: str, given: dict[str, Any], aligned: bool, seconds: float = SECONDS) -> Verdict:
    """Verifies one entry, deciding alignment branches one by one."""
    from sentryward import verify

    before = processor_seconds()
    given["branch_decisions"] = []
    with tempfile.TemporaryDirectory() as folder:
        kernel, described = Path(folder, "kernel.ptx"), Path(folder, "input.json")
        kernel.write_text(text)
        while True:
            described.write_text(json.dumps(given))
            report = verify(kernel, input=described, timeout_seconds=seconds, memory_limit_mib=MEMORY_MB)
            diagnostics = report["diagnostics"]
            if not (diagnostics and diagnostics[0]["code"] == "control_predicate_not_static"):
                break
            line = diagnostics[0]["details"]["location"]["line"]
            decision = alignment_branch(text, line, aligned)
            assert decision not in given["branch_decisions"], f"line {line} stays undecided"
            given["branch_decisions"].append(decision)
    passed = all(report["checks"][name] == "passed" for name in ("synchronization", "memory"))
    result = report["result"] if passed or report["result"] != "race_free" else "incomplete"
    details = sorted({f"{one['code']}: {one.get('message', '')}" for one in diagnostics})
    return Verdict(result, processor_seconds() - before, report.get("peak_rss_mib", 0.0), details)


def table(launches: Sequence[Launch]) -> int:
    """Proves them; returns how many are not proven."""
    failed = 0
    print(f"{'launch':42} {'M':>5} {'N':>5} {'K':>5} {'split':>5}  {'verdict':20} {'s':>6} {'MB':>5}")
    for launch in launches:
        verdict = prove(launch, launch.ptx())
        failed += verdict.result != "race_free"
        m, n, k = launch.size
        print(
            f"{launch.name:42} {m:5} {n:5} {k:5} {launch.split_k:5}  {verdict.result:20} "
            f"{verdict.seconds:6.1f} {verdict.megabytes:5.0f}",
            *verdict.details[:3],
            sep="\n    ",
            flush=True,
        )
    print(f"{len(launches)} launches, {failed} not proven")
    return failed
