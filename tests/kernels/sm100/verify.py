"""Proves with the static verifier sentryward, over every schedule, that the kernels of csrc/kernels/sm100/gemm.cu have
no deadlock and no race, and use barriers and tensor memory only while they are alive.

    python tests/kernels/sm100/verify.py                 every launch of LAUNCHES, as a table (minutes)
    python tests/kernels/sm100/verify.py 256x128 split   those whose name contains one of the words

The proof is of the PTX that nvcc writes, with the arguments that launch.py passes, for one cluster of CTAs (CTAs do not
communicate beyond their cluster) and the number of K stages listed. docs/kernels.md, "Every schedule", lists what the
verifier does not see and how the PTX is rewritten for it.
"""

from __future__ import annotations

import ctypes
import json
import re
import resource
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from sm100.launch import Config, Problem, Product, Schedule, TensorMap, configs, gemm_ptx, only_entry

MEMORY_MB, SECONDS = 6000, 600  # what one proof may take
POINTERS = {"a", "b", "sfa", "sfb", "out", "c", "alpha", "bias", "data", "scale"}  # fields of the structs
SCALARS = {ctypes.c_int64: "u64", ctypes.c_uint64: "u64", ctypes.c_int32: "u32", ctypes.c_uint32: "u32"}
SCALARS |= {ctypes.c_float: "f32"}
ELEMENTS, SWIZZLES = {0: "u8", 1: "u16"}, {0: "none", 2: "64B", 3: "128B"}  # the codes that launch.py takes


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel, of one cluster by default."""

    config: str
    note: str
    m: int
    n: int
    stages: int  # along K
    tail: int = 0  # values along K behind the last whole stage
    split_k: int = 1
    in_stages: bool = False  # where partial sums go
    swap_ab: bool = True
    clusters: int = 1
    linear: bool = False  # scales
    pitch: int = 0  # of the values, in bytes; 0: dense
    aligned: bool = True  # scales are 4-byte aligned, output rows 32-byte: the verifier cannot compute it

    @property
    def name(self) -> str:
        return f"{self.config.removeprefix('sm100_gemm_')} {self.note}"

    def product(self, emulator: Any, generator: numpy.random.Generator) -> Product:
        k = self.stages * 256 + self.tail
        return Product(emulator, generator, self.m, self.n, k, linear=self.linear, pitch=self.pitch)

    def start(self, product: Product, module: Any) -> None:
        product.launch(
            module, configs()[self.config], self.swap_ab, self.split_k, self.clusters, in_stages=self.in_stages
        )


def launches() -> Iterator[Launch]:
    """Of every instantiation: a pipeline of stages that wraps, several tiles for one CTA so that the accumulator
    pipeline wraps, every split_k, both values of swap_ab, a last stage that is not whole."""
    for name, config in configs().items():
        m, n = config.mma_tile_m, config.mma_tile_n
        # Time grows with the square of the instructions: kernels of more than 4 stages wrap once and two stages more.
        twice = config.stages <= 4
        yield Launch(name, "wrap", n, m, 2 * config.stages + 1 if twice else config.stages + 2)
        tiles = 2 * config.accumulators + 1
        if n > 64:
            yield Launch(name, "tiles", m, n * tiles, 1, tail=192, swap_ab=False)
        else:
            # Several tiles of mma_a, not of mma_b: the second of two tiles that share a scale atom reads it from its
            # third column on, and the verifier orders a cp before an mma only where the mma reads from the first one.
            yield Launch(name, "tiles", m * tiles, n, 1, tail=192, swap_ab=False)
        yield Launch(name, "tail", n, m, 1, tail=16 if config.cp_async else 64)
        for split in (2, 4, 8):
            if config.cta_group * split <= 8 and n >= 4 * split:
                yield Launch(name, f"split {split}", n, m, split + 1, split_k=split)
                yield Launch(name, f"split {split} in stages", n, m, split, split_k=split, in_stages=True)
        if config.cp_async:
            yield Launch(name, "all cp.async", n, m, config.stages + 1, pitch=128 * (config.stages + 1) + 8)
            form = {"linear": True, "aligned": False, "pitch": 136}
            yield Launch(name, "linear, bytes", n - 3, m - 5, 1, tail=16, **form)


@dataclass(frozen=True)
class Verdict:
    result: str  # race_free, or what was found
    seconds: float  # of processor time
    megabytes: float
    details: list[str] = field(default_factory=list)


# ---- launches of launch.py, as the verifier's input ----------------------------------------------------------------


class Placed:
    """An array that has an address but no memory."""

    def __init__(self, address: int) -> None:
        self.address = address


class Recorder:
    """Replaces launch.py's emulator and records its calls."""

    OBJECTS = ("A", "SFA", "B", "SFB", "OUT", "DEQUANTIZED")  # in the order in which a Product makes them

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.maps: list[dict[str, Any]] = []
        self.launched: dict[str, Any] = {}

    def empty(self, shape: Any = None, dtype: Any = None) -> Placed:
        placed = Placed(len(self.names) + 1 << 40)
        self.names[placed.address] = self.OBJECTS[len(self.names)]
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


def fields(struct: ctypes.Structure, base: int = 0) -> Iterator[tuple[str, type, int, Any]]:
    """Name, type, offset and value of the fields of a struct, nested structs flattened."""
    for name, kind in struct._fields_:
        offset, value = base + getattr(type(struct), name).offset, getattr(struct, name)
        if isinstance(value, ctypes.Structure) and kind is not TensorMap:
            yield from fields(value, offset)
        else:
            yield name, kind, offset, value


def kernel_input(launch: Launch) -> dict[str, Any]:
    recorder = Recorder()
    product = launch.product(recorder, numpy.random.default_rng(0))
    launch.start(product, recorder)
    return recorded_input(recorder, (Problem, Schedule))


def recorded_input(recorder: Recorder, parameters: Sequence[type[ctypes.Structure]]) -> dict[str, Any]:
    """The verifier's input for the recorded launch; parameters: the kernel's, in order."""
    arguments, declarations, maps = [], [], []
    for parameter, (struct, data) in enumerate(zip(parameters, recorder.launched["args"])):
        for name, kind, offset, value in fields(struct.from_buffer_copy(data)):
            place = {"parameter": parameter, "offset": offset}
            if kind is TensorMap:
                if index := int.from_bytes(bytes(value.opaque), "little"):
                    maps.append({**place, **recorder.maps[index - 1]})
            elif name in POINTERS and value:
                declarations.append({**place, "type": "pointer", "space": "global", "object": recorder.names[value]})
            elif kind in SCALARS:
                arguments.append({**place, "type": SCALARS[kind], "value": value})
    how = recorder.launched
    grid = how["grid"] if isinstance(how["grid"], tuple) else (how["grid"],)
    return {
        "schema": "spverify.kernel-input/v1",
        "entry": how["kernel"],
        "launch": {
            "grid_dim": [*grid, 1, 1][:3],
            "block_dim": [how["block"], 1, 1],
            "cluster_dim": [how["cluster"], 1, 1],
            "dynamic_shared_bytes": how["shared"],
        },
        "declarations": declarations,
        "tma_descriptors": maps,
        "arguments": arguments,
    }


# ---- rewriting PTX that sentryward 0.1.1 does not support ----------------------------------------------------------


def substitute(pattern: str, by: str, text: str) -> str:
    made, count = re.subn(pattern, by, text)
    assert count, f"nothing in the PTX looks like {pattern}"
    return made


def split_multiply_add(text: str) -> str:
    """Replaces mad by mul and add: the verifier loses a tensor memory address in mad."""
    return re.sub(
        r"mad\.lo\.s32 *\t(%r\d+), (%r\d+), (%r\d+|\d+), (%r\d+);",
        r"{ .reg .b32 product; mul.lo.s32 product, \2, \3; add.s32 \1, product, \4; }",
        text,
    )


def allocate_all(text: str) -> str:
    """Allocates all 512 columns: only then does the verifier know that a pair's allocations have the same address."""
    return substitute(r"(tcgen05\.(?:de)?alloc\b[^;]*), 256;", r"\1, 512;", text)


def two_mma_for_one(text: str, mma_tile_n: int) -> str:
    """Replaces an mma of N < 64 by two. The verifier decodes block-scaled mma only for N = 64, 128, 192 or 256.

    The two together access everything that the one does and more, so if they have no race it has none: an unscaled mma
    of the same operands (32 bytes of a row) into the same columns, and a scaled mma of mma_a by 64 rows of mma_a into
    columns 320 further on, which exist because all 512 are allocated. N is at least 16, the least whose footprint the
    verifier knows.
    """
    plain = 1 << 4 | max(mma_tile_n, 16) // 8 << 17 | 128 // 16 << 24
    scaled = 1 << 7 | 1 << 10 | 64 // 8 << 17 | 128 // 128 << 27
    product = r"tcgen05\.mma\.cta_group::1\.kind::mxf4nvf4\.block_scale\.block16 "
    operands = r"\[(%r\d+)\], (%rd\d+), (%rd\d+), %r\d+, \[(%r\d+)\], \[(%r\d+)\], (\w+);"
    by = (
        "{ .reg .b32 plain, scaled, other; "
        f"mov.b32 plain, {plain}; mov.b32 scaled, {scaled}; add.s32 other, \\1, 320; "
        r"tcgen05.mma.cta_group::1.kind::f8f6f4 [\1], \2, \3, plain, \6; "
        r"tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 [other], \2, \2, scaled, [\4], [\5], \6; }"
    )
    return allocate_all(substitute(product + operands, by, text))


def readable(text: str, config: Config) -> str:
    """The PTX of a kernel, rewritten for the verifier."""
    text = split_multiply_add(text)
    if config.mma_tile_n < 64:
        text = two_mma_for_one(text, config.mma_tile_n)
    elif config.cta_group == 2 and re.search(r"tcgen05\.alloc\b[^;]*, 256;", text):
        text = allocate_all(text)
    return text


# ---- proof ---------------------------------------------------------------------------------------------------------


def alignment_branch(text: str, line: int, aligned: bool) -> dict[str, Any]:
    """Whether that branch is taken. Addresses of tensors are symbols to the verifier, so `aligned` states their
    alignment; a branch that depends on anything else is an error."""
    lines = text.split("\n")

    def definition(register: str) -> str:
        return [one for one in lines[:line] if re.search(rf"^\t[\w.]+ *\t{register},", one)][-1]

    def is_alignment(predicate: str, equal: bool) -> bool:
        test = re.search(r"setp\.(eq|ne)\.s64 *\t%p\d+, (%rd\d+), 0;", definition(predicate))
        bits = test and re.search(r"and\.b64 *\t%rd\d+, (%rd\d+), (3|7|15|16|31|%rd\d+);", definition(test[2]))
        if bits and bits[2].startswith("%"):  # one of two masks
            bits = re.search(r"selp\.b64 *\t%rd\d+, (3|7|15|31), (3|7|15|31), ", definition(bits[1]))
        return bool(bits) and (test[1] == "eq") == equal

    guard = re.search(r"@(!?)(%p\d+) bra", lines[line - 1])
    assert guard, f"line {line} is no branch: {lines[line - 1]}"
    both = re.search(r"and\.pred *\t%p\d+, (%p\d+), (%p\d+);", definition(guard[2]))
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
    """ptx: of the whole file. seconds: the timeout."""
    config = configs()[launch.config]
    return judge(readable(only_entry(ptx, config.kernel), config), kernel_input(launch), launch.aligned, seconds)


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


def main(words: Sequence[str]) -> int:
    chosen = [one for one in launches() if not words or any(word in one.name for word in words)]
    ptx, failed = gemm_ptx(), 0
    print(f"{'launch':42} {'M':>5} {'N':>5} {'K':>5} {'split':>5}  {'verdict':20} {'s':>6} {'MB':>5}")
    for launch in chosen:
        verdict = prove(launch, ptx)
        failed += verdict.result != "race_free"
        k = launch.stages * 256 + launch.tail
        print(
            f"{launch.name:42} {launch.m:5} {launch.n:5} {k:5} {launch.split_k:5}  {verdict.result:20} "
            f"{verdict.seconds:6.1f} {verdict.megabytes:5.0f}",
            *verdict.details[:3],
            sep="\n    ",
            flush=True,
        )
    print(f"{len(chosen)} launches, {failed} not proven")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
