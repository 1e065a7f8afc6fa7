"""The table of cases: kernel, launch, inputs, tensor maps, and how the result must agree with the recording.

A case names its kernel's arguments in order: a buffer by name, `Int32`, `Int64`, `Map` or `Coordinates`. A buffer with
`keep` is read back after the launch and is what the vectors hold."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import generate
import numpy as np
from compare import Approximate, Exact, ExactButNaN, Recorded

HERE = Path(__file__).resolve().parent

# The architectures of each source file, oldest first. A case runs its kernel as compiled for the first that has it.
SM80, SM90 = "compute_80", "compute_90a"
ARCHITECTURES = {
    "integer": [SM80],
    "float": [SM80, SM90],
    "convert": [SM80, SM90],
    "warp": [SM80, SM90],
    "atomics": [SM80, SM90],
    "copy": [SM80, SM90],
    "mma": [SM80, SM90],
    "mbarrier": [SM90],
    "cluster": [SM90],
    "tma": [SM90],
    "wgmma": [SM90],
}


@dataclass
class Int32:
    value: int


@dataclass
class Int64:
    value: int


@dataclass
class Map:
    """A tensor map over the named buffer; `spec` as Driver.encode_tiled takes it."""

    buffer: str
    spec: dict


@dataclass
class Coordinates:
    values: tuple[int, ...]


@dataclass
class Buffer:
    init: np.ndarray
    keep: bool = False


@dataclass
class Case:
    name: str
    source: str
    kernel: str
    buffers: dict[str, Buffer]
    args: list
    rule: Callable
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (32, 1, 1)
    cluster: tuple[int, int, int] | None = None
    shared: int = 0
    rows: list[str] | None = None
    may_reject: bool = False  # outside what PTX defines: an emulator may reject it, but not give another result
    notes: dict = field(default_factory=dict)


def poison(size: int) -> np.ndarray:
    return np.full(size, 0xEE, np.uint8)


def output(size: int) -> Buffer:
    return Buffer(poison(size), keep=True)


def row_names(source: str, kernel: str) -> list[str]:
    """The OP and ATOM lines of a kernel, one name a row of its output; an ATOM line gives two rows."""
    text = (HERE / f"{source}.cu").read_text()
    body = text[text.index(f" {kernel}(") :]
    body = body[: body.index("\n}\n")]
    names = []
    for macro, strings in re.findall(r'^\s+((?:OP|ATOM)\w*)\(\s*((?:"[^"\n]*"\s*)+)\)', body, re.M):
        label = "".join(re.findall(r'"([^"\n]*)"', strings))
        names += [label, label + " (memory)"] if macro.startswith("ATOM") else [label]
    return names


def scalar(
    source: str, kernel: str, rows: np.ndarray, rule: Callable | None = None, n: int = 128, scratch: bool = False
) -> Case:
    """A kernel of OP lines over three rows of n inputs."""
    names = row_names(source, kernel)
    buffers = {"in": Buffer(rows), "out": output(len(names) * n * rows.itemsize)}
    args: list = ["in", "out", Int32(n)]
    if scratch:
        buffers["scratch"] = Buffer(poison(n * rows.itemsize))
        args.append("scratch")
    return Case(kernel, source, kernel, buffers, args, rule or Exact(rows.itemsize), block=(n, 1, 1), rows=names)


def scalar_cases() -> list[Case]:
    g = generate
    n = 128
    f16, bf16 = g.rows_half(11, n, 5), g.rows_half(12, n, 8)
    mixed = np.where(np.arange(3 * n) % 2, f16, bf16)
    codes = np.arange(256, dtype=np.uint32)
    codes = np.concatenate([codes | codes[::-1] << np.uint32(8), codes, codes])
    shuffle = np.concatenate([g.words32(30, 64), g.words32(31, 32) & np.uint32(0x1F1F)])
    votes = np.concatenate([g.words32(32, 32), g.words32(33, 64)])
    return [
        scalar("integer", "int32_ops", g.rows_int32(1, n)),
        scalar("integer", "int_predicate_ops", g.rows_int32(2, n)),
        scalar("integer", "int16_ops", g.rows_int32(3, n)),
        scalar("integer", "int64_ops", g.rows_int64(4, n)),
        scalar("float", "f32_ops", g.rows_f32(5, n)),
        scalar("float", "f32_predicate_ops", g.rows_f32(6, n)),
        scalar(
            "float",
            "f32_approx_ops",
            g.rows_moderate_f32(7, n),
            Approximate(
                "f32",
                # div, div.full, rcp, rcp.ftz, sqrt, rsqrt, ex2, lg2, sin, cos, tanh: the bounds that PTX documents,
                # doubled, since hardware and emulator may each be off by that much
                [(2**-21, 0), (2**-21, 0), (2**-22, 0), (2**-22, 0), (2**-21, 0), (2**-21, 0), (2**-21, 0)]
                + [(2**-21, 2**-20), (0, 2**-18), (0, 2**-18), (2**-9.9, 0)],
            ),
        ),
        scalar("float", "f64_ops", g.rows_f64(8, n), ExactButNaN()),
        scalar("float", "f16_ops", mixed),
        scalar("float", "f16x2_ops", mixed[::-1].copy()),
        scalar("float", "half_approx_ops", f16, Approximate("f16", [(2**-9, 2**-9), (2**-8, 2**-23)])),
        scalar("float", "half_sm90_ops", mixed),
        scalar("float", "f32_sm90_ops", g.rows_f32(13, n)),
        scalar("float", "half_sm90_approx_ops", bf16, Approximate("bf16", [(2**-6, 2**-7), (2**-6, 2**-125)])),
        scalar("convert", "cvt_from_f32", g.rows_f32(14, n)),
        scalar("convert", "cvt_from_int", g.rows_int32(15, n)),
        scalar("convert", "cvt_from_f16", f16),
        scalar("convert", "cvt_sm90_from_f32", g.rows_f32(16, n)),
        scalar("convert", "cvt_sm90_from_half", mixed),
        scalar("convert", "cvt_sm90_from_fp8", codes, n=256),
        scalar("warp", "shuffle_ops", shuffle, n=32),
        scalar("warp", "vote_ops", votes, n=32),
        scalar("atomics", "atomic32_ops", g.rows_int32(40, n), scratch=True),
        scalar("atomics", "atomic_float_ops", np.where(np.arange(3 * n) % 3, g.rows_f32(41, n), f16), scratch=True),
        scalar("atomics", "atomic_shared32_ops", g.rows_f32(42, n)),
        scalar("atomics", "atomic64_ops", g.rows_int64(43, n), scratch=True),
        scalar("atomics", "atomic_f64_ops", g.rows_f64(44, n), ExactButNaN(), scratch=True),
        scalar("atomics", "atomic_sm90_ops", mixed, scratch=True),
    ]


def simple(
    source: str,
    kernel: str,
    inputs: dict[str, np.ndarray],
    size: int,
    rule: Callable | None = None,
    args: list | None = None,
    name: str | None = None,
    **launch: object,
) -> Case:
    """A kernel that takes its inputs and then `out`, unless `args` says otherwise."""
    buffers = {k: Buffer(v) for k, v in inputs.items()} | {"out": output(size)}
    return Case(name or kernel, source, kernel, buffers, args or [*inputs, "out"], rule or Exact(), **launch)


def warp_cases() -> list[Case]:
    g = generate
    masks = [
        0xFFFFFFFF,
        1,
        0x80000000,
        0xFFFF0000,
        0x0000FF00,
        0xAAAAAAAA,
        0x55555554,
        0x00010000,
        0xF0000008,
        0x7FFFFFFF,
    ]
    masks += [0xFFFFFFFE, 0x0F0F0F00, 0x80000001, 0x40000000, 0x00FFFF00, 0xC0000000]
    cells = np.zeros(48, np.uint32)
    cells[[2, 5]] = 0xFFFFFFFF
    contended = Case(
        "atomic_contended",
        "atomics",
        "atomic_contended",
        {"in": Buffer(g.words32(51, 512)), "out": Buffer(cells, keep=True)},
        ["in", "out"],
        Exact(),
        grid=(4, 1, 1),
        block=(128, 1, 1),
    )
    return [
        simple("warp", "shuffle_partial", {"in": g.words32(52, 32)}, 256),
        simple("warp", "vote_partial", {"in": g.words32(53, 32)}, 384),
        simple("warp", "cta_barrier_ops", {"in": g.words32(54, 96)}, 5 * 384, block=(96, 1, 1)),
        simple(
            "warp",
            "special_registers",
            {},
            12 * 60 * 96,
            grid=(3, 2, 2),
            block=(5, 4, 3),
            shared=2048,
            name="registers",
        ),
        simple(
            "warp",
            "elect_masks",
            {"in": np.array(masks, np.uint32)},
            128 * len(masks),
            args=["in", "out", Int32(len(masks))],
        ),
        simple("warp", "elect_after_exit", {}, 128),
        contended,
        simple(
            "atomics",
            "atomic_tickets",
            {"counter": np.zeros(1, np.uint32)},
            4 * 384,
            grid=(3, 1, 1),
            block=(128, 1, 1),
        ),
        simple(
            "atomics",
            "atomic_vectors",
            {"in": g.rows_f32(55, 128)[:256], "scratch": poison(512)},
            2 * 32 * 16,
            args=["in", "out", Int32(32), "scratch"],
        ),
    ]


def copy_cases() -> list[Case]:
    g = generate
    rows = np.array([(i * 11 + 3) % 32 for i in range(32)], np.uint32)
    straight = np.arange(32, dtype=np.uint32)
    image = g.counter(256, 2)
    sizes = np.array([i % 17 for i in range(32)], np.uint32)
    store = simple("copy", "bulk_store", {"in": g.words32(63, 256)}, 2304, args=["in", "out", Int32(1024)], shared=1024)
    store.block = (128, 1, 1)
    operands = np.concatenate([g.words32(64, 13 * 128), g.words32(65, 3 * 128) & np.uint32(0x3FFFBFFF)])
    before = np.concatenate([g.words32(66, 13 * 128), g.words32(67, 3 * 128) & np.uint32(0xBFFF3FFF)])
    operands[12 * 128 : 13 * 128] = g.rows_f32(68, 128)[:128]
    before[12 * 128 : 13 * 128] = g.rows_f32(69, 128)[128:256]
    reduce = Case(
        "bulk_reduce",
        "copy",
        "bulk_reduce",
        {"in": Buffer(operands), "out": Buffer(before, keep=True)},
        ["in", "out"],
        Exact(),
        block=(128, 1, 1),
        shared=8192,
    )
    loads = [
        simple(
            "copy",
            "bulk_load",
            {"in": g.words32(62, 1024)},
            4104,
            args=["in", "out", Int32(total), Int32(first)],
            name=f"bulk_load_{total}_{first}",
            block=(128, 1, 1),
            shared=4096,
        )
        for total, first in ((32, 16), (2048, 2032), (592, 80))
    ]
    return [
        simple("copy", "cp_async_sizes", {"in": g.words32(60, 160), "sizes": sizes}, 6 * 512),
        simple("copy", "ldmatrix_forms", {"in": image, "rows": straight}, 448 * 4, name="ldmatrix_straight"),
        simple("copy", "ldmatrix_forms", {"in": image, "rows": rows}, 448 * 4, name="ldmatrix_scattered"),
        simple("copy", "stmatrix_forms", {"in": g.counter(256, 2), "rows": straight}, 3072, name="stmatrix_straight"),
        simple("copy", "stmatrix_forms", {"in": g.counter(256, 2), "rows": rows}, 3072, name="stmatrix_scattered"),
        *loads,
        store,
        reduce,
        simple("copy", "cp_async_mbarrier", {"in": g.words32(70, 64)}, 512),
    ]


def mma_cases() -> list[Case]:
    """Every shape on small integers, whose sums are exact in any order, and on noise."""
    cases = []
    table = [  # kernel, type of A, of B, of C, registers of A, B, C
        ("mma_m16n8k16_f16_f32", "f16", "f16", "f32", 4, 2, 4),
        ("mma_m16n8k16_f16_f16", "f16", "f16", "f16", 4, 2, 2),
        ("mma_m16n8k8_f16_f32", "f16", "f16", "f32", 2, 1, 4),
        ("mma_m16n8k8_f16_f16", "f16", "f16", "f16", 2, 1, 2),
        ("mma_m16n8k16_bf16", "bf16", "bf16", "f32", 4, 2, 4),
        ("mma_m16n8k8_bf16", "bf16", "bf16", "f32", 2, 1, 4),
        ("mma_m16n8k8_tf32", "tf32", "tf32", "f32", 4, 2, 4),
        ("mma_m16n8k4_tf32", "tf32", "tf32", "f32", 2, 1, 4),
        ("mma_m16n8k32_e4m3", "e4m3", "e4m3", "f32", 4, 2, 4),
        ("mma_m16n8k32_e5m2", "e5m2", "e5m2", "f32", 4, 2, 4),
        ("mma_m16n8k32_e4m3_e5m2", "e4m3", "e5m2", "f32", 4, 2, 4),
    ]
    for seed, (kernel, a, b, c, na, nb, nc) in enumerate(table, 100):
        for what, count in (("integers", 1), ("noise", 3), ("specials", 1)):
            parts = []
            for problem in range(count):
                for place, (kind, registers) in enumerate(((a, na), (b, nb), (c, nc))):
                    values = 32 * registers * 4 // {"f16": 2, "bf16": 2, "e4m3": 1, "e5m2": 1}.get(kind, 4)
                    at = seed * 64 + problem * 8 + place
                    if what == "integers":
                        part = generate.small_integers(at, values, kind)
                    else:
                        part = generate.noise(at, values, kind, 1 + 3 * problem if what == "noise" else 3)
                    if what == "specials" and place < 2:  # rarely an infinity, a NaN, a zero, a subnormal
                        one = generate.encode(np.ones(1), kind)[0]
                        special = {
                            "f16": [0x7C00, 0xFC00, 0x7E00, 0x8000, 1],
                            "bf16": [0x7F80, 0xFF80, 0x7FC0, 0x8000, 1],
                        }
                        special |= {"e4m3": [0x7F, 0xFF, 0x80, 0x01, 0x7E], "e5m2": [0x7C, 0xFC, 0x7E, 0x80, 0x01]}
                        words = special.get(kind, [0x7F800000, 0xFF800000, 0x7FC00000, 0x80000000, 0x00100000])
                        where = generate.integers(at + 5, len(words) * 2, 0, values - 1)
                        part[where] = np.array(words * 2, dtype=one.dtype)
                    parts.append(part.view(np.uint8))
            cases.append(
                simple(
                    "mma",
                    kernel,
                    {"in": np.concatenate(parts)},
                    128 * nc * count,
                    Exact(),
                    args=["in", "out", Int32(count)],
                    name=f"{kernel}_{what}",
                )
            )
    for seed, (kernel, na, nb) in enumerate(
        (
            ("mma_m16n8k32_s8", 4, 2),
            ("mma_m16n8k32_u8_s8", 4, 2),
            ("mma_m16n8k32_s8_satfinite", 4, 2),
            ("mma_m16n8k16_u8", 2, 1),
        ),
        150,
    ):
        data = generate.words32(seed, 32 * (na + nb + 4))
        if "satfinite" in kernel:
            data[32 * (na + nb) :: 2] = 0x7FFFFFF0
            data[32 * (na + nb) + 1 :: 2] = 0x80000010
        cases.append(simple("mma", kernel, {"in": data}, 512, args=["in", "out", Int32(1)]))
    return cases


def barrier_cases() -> list[Case]:
    return [
        simple("mbarrier", "mbarrier_phases", {}, 128),
        simple("mbarrier", "mbarrier_transactions", {}, 128),
        simple("mbarrier", "mbarrier_block", {"in": generate.words32(80, 128)}, 512, block=(128, 1, 1)),
        simple("mbarrier", "mbarrier_dump", {}, 192, Recorded("the words are opaque"), ["out", Int32(0)]),
    ]


def cluster_cases() -> list[Case]:
    g = generate
    cases = []
    for ranks in (2, 4):
        launch = {"grid": (ranks, 1, 1), "cluster": (ranks, 1, 1)}
        cases += [
            simple(
                "cluster",
                "cluster_addresses",
                {},
                128 * ranks,
                name=f"cluster_addresses_{ranks}",
                shared=4096,
                **launch,
            ),
            simple(
                "cluster",
                "cluster_memory",
                {"in": g.words32(90 + ranks, 64 * ranks)},
                64 * 7 * 4 * ranks,
                name=f"cluster_memory_{ranks}",
                block=(64, 1, 1),
                **launch,
            ),
            simple(
                "cluster",
                "cluster_st_async",
                {"in": g.words32(91 + ranks, 128 * ranks)},
                528 * 4 * ranks,
                name=f"cluster_st_async_{ranks}",
                **launch,
            ),
            simple(
                "cluster",
                "cluster_red_async",
                {"in": g.words32(92 + ranks, 32 * ranks)},
                64 * ranks,
                name=f"cluster_red_async_{ranks}",
                **launch,
            ),
            simple("cluster", "cluster_remote_arrive", {}, 32, name=f"cluster_remote_arrive_{ranks}", **launch),
            simple(
                "cluster",
                "cluster_bulk_copy",
                {"in": g.words32(93 + ranks, 256 * ranks)},
                264 * 4 * ranks,
                name=f"cluster_bulk_copy_{ranks}",
                **launch,
            ),
            simple(
                "cluster",
                "cluster_bulk_multicast",
                {"in": g.words32(94 + ranks, 64)},
                264 * 4 * ranks,
                args=["in", "out", Int32(0b1101 if ranks == 4 else 0b11)],
                name=f"cluster_bulk_multicast_{ranks}",
                **launch,
            ),
        ]
    cases.append(
        simple(
            "cluster",
            "cluster_registers",
            {},
            80 * 48,
            grid=(4, 6, 2),
            block=(1, 1, 1),
            cluster=(2, 3, 1),
            name="cluster_registers",
        )
    )
    cases.append(
        simple(
            "cluster",
            "cluster_registers",
            {},
            80 * 2,
            grid=(2, 1, 1),
            block=(1, 1, 1),
            name="registers_without_cluster",
        )
    )
    cases.append(
        simple(
            "cluster",
            "address_windows",
            {},
            64,
            Recorded("the windows' places are the driver's choice"),
            grid=(2, 1, 1),
        )
    )
    return cases


def all_cases() -> list[Case]:
    from cases_tma import tma_cases
    from cases_wgmma import wgmma_cases

    cases = scalar_cases() + warp_cases() + copy_cases() + mma_cases() + barrier_cases() + cluster_cases()
    cases += tma_cases() + wgmma_cases()
    names = [c.name for c in cases]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)
    return cases
