"""Print the operands of one tcgen05.mma on a B200, and compare them with the expected ones.

The product is that of a test of `nvfp4 check`. A build with NVFP4_DUMP=1 records one CTA's descriptors, shared memory
stage, scales in tensor memory and accumulator after the mma of one k_block (K = 64) in an sm100_dump
(csrc/kernels/common/dump.h). This program decodes it and compares it with the operands and with sums in fp64. A "!"
marks a difference.

mma_a and mma_b are the operands A and B of the mma; mma_a has 128 rows a CTA. Lanes of tensor memory are rows of mma_a
in the CTA, columns of the accumulator are rows of mma_b in the tile.

Exit status: 0 nothing differs and the result is right, 1 something differs, 2 it cannot run.
"""

from __future__ import annotations

import argparse
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nvfp4.cli import check, machine, show

if TYPE_CHECKING:
    import torch

BLOCK = 64  # K of a k_block
LANES, ATOM_ROWS, ATOM_BYTES = 128, 128, 512
MMA_A_BYTES, STAGE_BLOCKS = 16384, 4  # of a stage (kernels/sm100/config.h)
STAGE_BYTES, SCALE_COLUMNS, SUM_COLUMNS = 38912, 12, 256  # capacity of an sm100_dump
HEADER = struct.Struct("<28I4Q2I")
FIELDS = (
    "exists", "cta_group", "mma_tile_n", "stages", "stage_bytes", "swap_ab", "split_k", "rank", "split_idx", "tiles",
    "k_blocks", "first_block", "tile", "mma_a_row", "mma_b_row", "batch", "k_block", "stage_address", "tmem",
    "accumulator", "scales", "stage", "phase", "d", "instruction", "mma_sfa", "mma_sfb", "add", "mma_a", "mma_b",
    "sfa_atoms", "sfb_atoms", "complete", "padding",
)  # fmt: skip
BYTES = HEADER.size + STAGE_BYTES + 4 * LANES * (SCALE_COLUMNS + SUM_COLUMNS)

VALUES_DESCRIPTOR, ATOM_DESCRIPTOR = 0x4000404000010000, 0x0000400800010000  # at address 0
LAYOUTS = {0: "no swizzle", 1: "128-byte swizzle of 32", 2: "128-byte swizzle", 4: "64-byte swizzle", 6: "32-byte"}
BUILD = "NVFP4_DUMP=1 pip install --no-deps --force-reinstall ."


@dataclass(frozen=True)
class Request:
    """A CTA (blockIdx.x), a k_block counted through the CTA's K range and then its tiles, and what to print."""

    cta: int
    k_block: int
    lanes: range = range(8)
    columns: range = range(8)


def parse(text: str) -> Request:
    """cta=0,k_block=5[,lanes=0:8][,columns=0:8], for argparse."""
    given: dict[str, Any] = {}
    for part in text.split(","):
        number = re.fullmatch(r"(cta|k_block)=(\d{1,9})", part)
        span = re.fullmatch(r"(lanes|columns)=(\d{1,3}):(\d{1,3})", part)
        if number:
            given[number[1]] = int(number[2])
        elif span and int(span[2]) < int(span[3]) <= (LANES if span[1] == "lanes" else SUM_COLUMNS):
            given[span[1]] = range(int(span[2]), int(span[3]))
        else:
            raise argparse.ArgumentTypeError(
                f"{part!r} is not one of cta=N, k_block=N, lanes=FIRST:END (of 128), columns=FIRST:END (of 256)"
            )
    if not {"cta", "k_block"} <= given.keys():
        raise argparse.ArgumentTypeError("needs cta=N and k_block=N")
    return Request(**given)


# --- decoding -------------------------------------------------------------------------------------------------------


class Dump:
    """An sm100_dump: header fields by name, memory as tensors."""

    def __init__(self, raw: torch.Tensor) -> None:
        import torch

        self.h = SimpleNamespace(**dict(zip(FIELDS, HEADER.unpack(bytes(raw[: HEADER.size].tolist())))))
        stage, columns, sums = raw[HEADER.size : BYTES].split(
            [STAGE_BYTES, 4 * LANES * SCALE_COLUMNS, 4 * LANES * SUM_COLUMNS]
        )
        self.stage = stage[: self.h.stage_bytes]
        self.scale_columns = columns.view(SCALE_COLUMNS, LANES, 4).transpose(0, 1)  # lane, column, byte
        self.sums = sums.clone().view(torch.float32).view(SUM_COLUMNS, LANES)[: self.h.mma_tile_n].T  # lane, column

    @property
    def in_stage(self) -> int:
        return self.h.k_block % STAGE_BLOCKS

    def atoms(self, name: str) -> int:
        """Scale atoms a k_block."""
        return 1 if name == "mma_a" else -(-self.h.mma_tile_n // ATOM_ROWS)

    def walk(self, descriptor: int, rows: int, chunks: int) -> torch.Tensor | None:
        """The [rows, 16 * chunks] bytes that the descriptor addresses; None if some lie outside the stage."""
        import torch

        start, stride, layout = (descriptor & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4, descriptor >> 61
        lines = {0: 0, 2: 7, 4: 3, 6: 1}.get(layout)  # mask of the row bits that the swizzle XORs
        if lines is None or (layout == 0 and chunks > 1):
            return None
        row, byte = torch.arange(rows)[:, None], torch.arange(16 * chunks)
        address = start + row % 8 * (16 * (lines + 1)) + row // 8 * stride + byte
        offset = (address ^ (address >> 7 & lines) << 4) - (self.h.stage_address & 0x3FFFF)
        inside = bool((offset >= 0).all() and (offset < len(self.stage)).all())
        return self.stage[offset] if inside else None

    def values(self, name: str) -> torch.Tensor | None:
        """[rows of this CTA, 32] bytes of values that the mma's descriptor addresses."""
        rows = LANES if name == "mma_a" else self.h.mma_tile_n // self.h.cta_group
        return self.walk(getattr(self.h, name), rows, 2)

    def scale_tile(self, name: str) -> torch.Tensor | None:
        """[128 an atom, 4] bytes of scales in shared memory that the descriptor of the cp addresses."""
        import torch

        tiles = []
        for atom in range(self.atoms(name)):
            lines = self.walk(self.smem_descriptor_atom(name, atom), 32, 1)  # line l: rows l, 32 + l, 64 + l, 96 + l
            if lines is None:
                return None
            tiles.append(lines.view(32, 4, 4).transpose(0, 1).reshape(ATOM_ROWS, 4))
        return torch.cat(tiles)

    def smem_descriptor_atom(self, name: str, atom: int = 0) -> int:
        first = self.h.sfa_atoms if name == "mma_a" else self.h.sfb_atoms
        return first + (atom * STAGE_BLOCKS + self.in_stage) * ATOM_BYTES // 16

    def scale_memory(self, name: str) -> torch.Tensor:
        """[128 lanes, 4 columns an atom, 4] bytes of scales in tensor memory."""
        first = 0 if name == "mma_a" else 4
        return self.scale_columns[:, first : first + 4 * self.atoms(name)]


def matrix_words(bits: int) -> dict[str, str]:
    """The fields of a shared-memory descriptor (PTX ISA, 9.7.16.4.1)."""
    layout = bits >> 61
    return {
        "start": f"0x{(bits & 0x3FFF) << 4:x}",
        "leading": f"{(bits >> 16 & 0x3FFF) << 4} B",
        "stride": f"{(bits >> 32 & 0x3FFF) << 4} B",
        "constant": f"{bits >> 46 & 7}",
        "base offset": f"{bits >> 49 & 7}",
        "layout": f"{layout} = {LAYOUTS.get(layout, 'none that exists')}",
    }


def instruction_words(bits: int) -> dict[str, str]:
    """The fields of an instruction descriptor of kind::mxf4nvf4 (9.7.16.4.4)."""
    e2m1 = {1: "e2m1"}
    return {
        "M": str((bits >> 27 & 3) * 128),
        "N": str((bits >> 17 & 63) * 8),
        "K": "96" if bits >> 31 else "64",
        "mma_a": e2m1.get(bits >> 7 & 7, f"type {bits >> 7 & 7}"),
        "mma_b": e2m1.get(bits >> 10 & 3, f"type {bits >> 10 & 3}"),
        "scales": "ue8m0" if bits >> 23 & 1 else "ue4m3",
        "scale ids": f"{bits >> 29 & 3}, {bits >> 4 & 3}",
        "negated": f"{bits >> 13 & 1}, {bits >> 14 & 1}",
    }


def memory_words(address: int) -> dict[str, str]:
    return {"lane": str(address >> 16), "column": str(address & 0xFFFF)}


def given_and_expected(dump: Dump) -> list[tuple[str, int, int, Callable[[int], dict[str, str]]]]:
    """Name, given operand, expected operand, decoder."""
    h, i = dump.h, dump.in_stage
    start = h.stage_address & 0x3FFFF
    mma_b_at, sfb_atoms = MMA_A_BYTES, dump.atoms("mma_b")
    sfa_at = mma_b_at + h.mma_tile_n // h.cta_group * 128
    sfb_at = sfa_at + STAGE_BLOCKS * ATOM_BYTES
    half = h.mma_b_row % ATOM_ROWS // 32 if h.mma_tile_n == 64 else 0
    columns = h.tmem + h.scales
    return [
        ("values of mma_a", h.mma_a, VALUES_DESCRIPTOR | start + 32 * i >> 4, matrix_words),
        ("values of mma_b", h.mma_b, VALUES_DESCRIPTOR | start + mma_b_at + 32 * i >> 4, matrix_words),
        (
            "scales of mma_a",
            dump.smem_descriptor_atom("mma_a"),
            ATOM_DESCRIPTOR | start + sfa_at + i * ATOM_BYTES >> 4,
            matrix_words,
        ),
        (
            "scales of mma_b",
            dump.smem_descriptor_atom("mma_b"),
            ATOM_DESCRIPTOR | start + sfb_at + i * ATOM_BYTES >> 4,
            matrix_words,
        ),
        (
            "instruction",
            h.instruction,
            1 << 7 | 1 << 10 | h.mma_tile_n // 8 << 17 | h.cta_group << 27,
            instruction_words,
        ),
        ("accumulator", h.d, h.tmem + h.accumulator, memory_words),
        ("columns of mma_a scales", h.mma_sfa, columns + 4 * i, memory_words),
        ("columns of mma_b scales", h.mma_sfb, columns + 4 * (STAGE_BLOCKS + i * sfb_atoms) + half, memory_words),
        ("adds to the accumulator", h.add, int(h.k_block > h.first_block), lambda bits: {"": "yes" if bits else "no"}),
    ]


# --- comparing and printing -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operand:
    """One batch of an operand of the product."""

    name: str
    data: torch.Tensor  # [rows, K/2] bytes
    scales: torch.Tensor  # [rows, K/16] bytes

    def rows(self, first: int, count: int) -> range:
        return range(first, min(first + count, len(self.data)))

    def decoded(self, rows: range, first: int, end: int) -> torch.Tensor:
        """Values times scales of k_blocks [first, end), fp64."""
        from nvfp4 import reference

        chosen = slice(rows.start, rows.stop)
        data = self.data[chosen, first * 32 : end * 32]
        return reference.operand(data, self.scales[chosen, first * 4 : end * 4], "linear")[0].double()


class Report:
    """Prints a dump beside the expected values and counts differences."""

    def __init__(self, dump: Dump, operands: tuple[Operand, Operand], request: Request) -> None:
        self.dump, self.h, self.request = dump, dump.h, request
        self.mma_a, self.mma_b = operands
        self.findings: list[str] = []

    def print(self) -> list[str]:
        """Everything; returns the findings."""
        self.position()
        self.descriptors()
        for name in ("mma_a", "mma_b"):
            self.values(name)
            self.scales(name)
        self.accumulator()
        return self.findings

    def find(self, count: int, what: str) -> None:
        if count:
            self.findings.append(f"{count} {what}")

    def position(self) -> None:
        h = self.h
        pair = f", rank {h.rank} of its pair" if h.cta_group == 2 else ""
        split = f", split index {h.split_idx} of {h.split_k}" if h.split_k > 1 else ""
        print(
            f"CTA {self.request.cta}{pair}{split}: tile {h.tile}, batch {h.batch}, "
            f"rows {h.mma_a_row} on of {self.mma_a.name} (mma_a), rows {h.mma_b_row} on of {self.mma_b.name} (mma_b)\n"
            f"k_block {h.k_block} (K {h.k_block * BLOCK} to {h.k_block * BLOCK + BLOCK - 1}), sums since k_block "
            f"{h.first_block}; stage {h.stage} of {h.stages}, phase {h.phase}, shared address 0x{h.stage_address:x}, "
            f"tensor memory from column {h.tmem & 0xFFFF}\n"
        )

    def descriptors(self) -> None:
        rows, wrong = [], 0
        for name, given, expected, words in given_and_expected(self.dump):
            given_words, expected_words = words(given), words(expected)
            text = ", ".join(f"{field} {value}".strip() for field, value in given_words.items())
            should = [
                f"{field} {expected_words[field]}".strip()
                for field in given_words
                if given_words[field] != expected_words[field]
            ]
            differs = given != expected
            wrong += differs
            digits = 16 if words is matrix_words else 8
            rows.append(
                [name, f"0x{given:0{digits}x}", text + ("  ! " + ", ".join(should or [f"0x{expected:x}"])) * differs]
            )
        self.find(wrong, "of the instruction's operands")
        show.table("What the instruction was given", ["<operand", "bits", "<in words"], rows)

    def selected(self, name: str, count: int) -> range:
        """Rows to print, of `count`."""
        chosen = self.request.lanes if name == "mma_a" else self.request.columns
        return range(min(chosen.start, count), min(chosen.stop, count))

    def first_row(self, name: str) -> int:
        """The operand's row of the first row of this CTA's values."""
        h = self.h
        return h.mma_a_row if name == "mma_a" else h.mma_b_row + h.rank * (h.mma_tile_n // h.cta_group)

    def operand(self, name: str) -> Operand:
        return self.mma_a if name == "mma_a" else self.mma_b

    def values(self, name: str) -> None:
        from nvfp4 import reference

        got, operand, first = self.dump.values(name), self.operand(name), self.first_row(name)
        print()
        if got is None:
            print(f"The descriptor of the values of {name} points outside the stage.")
            return
        exist = operand.rows(first, len(got))
        want = operand.data[exist.start : exist.stop, self.h.k_block * 32 : self.h.k_block * 32 + 32]
        differ = (got[: len(want), : want.shape[1]] != want).any(1)
        self.find(int(differ.sum()), f"of {len(want)} rows of values of {name} in shared memory")
        rows = []
        for r in self.selected(name, len(got)):
            numbers = " ".join(f"{number:g}" for number in reference.decode_e2m1(got[r])[:8].tolist())
            note = "past the end" if r >= len(want) else f"! {codes(want[r])}" if differ[r] else ""
            rows.append([str(first + r), codes(got[r]), numbers + " ...", note])
        title = f"Values of {name} ({operand.name}) in shared memory: e2m1 codes along K"
        show.table(title, ["row", "<codes", "<numbers", "<operand"], rows)

    def scales(self, name: str) -> None:
        tile, memory, operand = self.dump.scale_tile(name), self.dump.scale_memory(name), self.operand(name)
        print()
        if tile is None:
            print(f"The descriptor of the scales of {name} points outside the stage.")
            return
        self.scales_in_shared_memory(name, tile, operand)
        print()
        self.scales_in_tensor_memory(name, tile, memory)

    def scales_in_shared_memory(self, name: str, tile: torch.Tensor, operand: Operand) -> None:
        import torch

        row = self.h.mma_a_row if name == "mma_a" else self.h.mma_b_row
        first = row // ATOM_ROWS * ATOM_ROWS  # an atom also holds the other half's scales if mma_tile_n is 64
        exist = operand.rows(first, len(tile))
        want = operand.scales[exist.start : exist.stop, self.h.k_block * 4 : self.h.k_block * 4 + 4]
        want = torch.nn.functional.pad(want, (0, 4 - want.shape[1]))  # past K: zeros
        used = range(row - first, min(row - first + (LANES if name == "mma_a" else self.h.mma_tile_n), len(want)))
        differ = torch.zeros(len(tile), dtype=torch.bool)
        differ[used.start : used.stop] = (tile[: len(want)] != want).any(1)[used.start : used.stop]
        self.find(int(differ.sum()), f"of {len(used)} rows of scales of {name} in shared memory")
        rows = []
        for r in self.selected(name, len(used)):
            at = used[r]
            rows.append(
                [str(first + at), *map(scale_words, tile[at].tolist()), f"! {bytes_words(want[at])}" * bool(differ[at])]
            )
        title = f"Scales of {name} ({operand.name}) in shared memory: byte = e4m3"
        show.table(title, ["row", *(f"K +{16 * i}" for i in range(4)), "<operand"], rows)

    def scales_in_tensor_memory(self, name: str, tile: torch.Tensor, memory: torch.Tensor) -> None:
        # Row r of an atom lies in column r / 32 of lane r % 32, once for each quarter of the lanes.
        want = tile.view(-1, 32, 4).transpose(0, 1).repeat(4, 1, 1)
        differ = (memory != want).any(2)
        self.find(int(differ.sum()), f"of {differ.numel()} words of scales of {name} in tensor memory")
        rows = []
        for lane in self.request.lanes:
            cells = [
                bytes_words(word) + f" ! {bytes_words(want[lane, i])}" * bool(differ[lane, i])
                for i, word in enumerate(memory[lane])
            ]
            rows.append([str(lane), *cells])
        first = (self.h.mma_sfa if name == "mma_a" else self.h.mma_sfb) & 0xFFFF
        first -= first % 4
        names = [f"column {first + i}" for i in range(memory.shape[1])]
        show.table(f"Scales of {name} in tensor memory: bytes of a word along K", ["lane", *names], rows)

    def accumulator(self) -> None:
        h = self.h
        rows_a, rows_b = self.mma_a.rows(h.mma_a_row, LANES), self.mma_b.rows(h.mma_b_row, h.mma_tile_n)
        a = self.mma_a.decoded(rows_a, h.first_block, h.k_block + 1)
        b = self.mma_b.decoded(rows_b, h.first_block, h.k_block + 1)
        want, bound = a @ b.T, error_bound(a, b)
        got = self.dump.sums[: len(want), : want.shape[1]].double()
        differ = ~((got - want).abs() <= bound) & ~(got.isnan() & want.isnan())
        self.find(int(differ.sum()), f"of {want.numel()} sums in the accumulator")
        lanes = range(min(self.request.lanes.start, len(want)), min(self.request.lanes.stop, len(want)))
        columns = self.selected("mma_b", want.shape[1])
        rows = []
        for lane in lanes:
            cells = [f"{got[lane, c]:.9g}" + f" ! {want[lane, c]:.9g}" * bool(differ[lane, c]) for c in columns]
            rows.append([str(lane), *cells])
        column = (h.tmem + h.accumulator) & 0xFFFF
        title = (
            f"Sums in the accumulator, from column {column} on: "
            f"lanes are rows of {self.mma_a.name} from {h.mma_a_row} on, "
            f"columns rows of {self.mma_b.name} from {h.mma_b_row} on"
        )
        print()
        show.table(title, ["lane", *map(str, columns)], rows)


def error_bound(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | float:
    """The error allowed in fp32 sums of these products: 0 if sums are exact in every order, else K roundings of the sum
    of absolute values."""
    from nvfp4 import reference

    if reference.sums_are_exact(a, b):
        return 0.0
    return a.shape[1] * 2.0**-23 * (a.abs() @ b.abs().T)


def codes(row: torch.Tensor) -> str:
    """e2m1 codes in the order of K, as hexadecimal digits."""
    return "".join(f"{byte & 15:x}{byte >> 4:x}" for byte in row.tolist())


def bytes_words(word: torch.Tensor) -> str:
    return " ".join(f"{byte:02x}" for byte in word.tolist())


def scale_words(byte: int) -> str:
    import torch

    from nvfp4 import reference

    return f"{byte:02x} = {reference.decode_e4m3(torch.tensor([byte], dtype=torch.uint8)).item():g}"


# --- the command ----------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "request",
        type=parse,
        metavar="cta=I,k_block=J",
        help="print the state of this CTA after the product of this k_block of 64 values; add lanes=A:B and "
        "columns=A:B to select the part to print (default: 0:8)",
    )
    parser.add_argument("--test", type=int, metavar="N", required=True, help="the test of `check`, counted from 1")
    parser.add_argument(
        "--task", choices=check.TASKS, default="nvfp4_gemm", help="the task of the test (default: nvfp4_gemm)"
    )
    parser.add_argument("--backend", metavar="B", help="run on this backend instead of the chosen one")
    parser.add_argument("--seed", type=int, metavar="S", help="seed of the random data, instead of the one in task.yml")


def run(args: argparse.Namespace) -> int:
    place = machine.pick_target(args.backend)
    return record(check.seeded(check.test_of(args.task, args.test, "--test"), args.seed), place, args.request)


def require(test: dict[str, int], place: machine.Target) -> int:
    """The number of CTAs. Raises an error for a product or a build that cannot dump."""
    from nvfp4 import _C, info

    plan = info(*(test[key] for key in "mnkl"), device=place.device, backend=place.backend)["plan"]
    if plan["backend"] != "sm100":
        raise show.CommandError(
            f"the sm100 kernels alone record a dump, and this product runs on {plan['kernel']} ({plan['backend']}): "
            "it needs a B200 or B300, or the emulated one (emulator/README.md)"
        )
    if not hasattr(_C, "dump"):
        raise show.CommandError(f"a dump needs a debug build of nvfp4, which this is not; in a checkout: {BUILD}")
    return plan["grid"]


def record(test: dict[str, int], place: machine.Target, request: Request) -> int:
    """Runs one test of `check` with a dump and returns the exit status."""
    import torch

    from nvfp4 import _C, reference

    ctas = require(test, place)
    if request.cta >= ctas:
        raise show.CommandError(f"cta={request.cta}: this product has CTAs 0 to {ctas - 1}")
    data = reference.generate_input(**test, device=place.tensors)
    memory = torch.zeros(BYTES, dtype=torch.uint8, device=place.tensors)
    if _C.dump(memory.data_ptr(), request.cta, request.k_block) != BYTES:
        _C.dump(0, 0, 0)
        raise show.CommandError("the compiled module is another version than tools/lab/dump.py; rebuild it")
    try:
        output = check.multiply(data, place.backend)[0].clone()
    finally:
        _C.dump(0, 0, 0)
    dump = Dump(memory.cpu())
    if not dump.h.complete:
        raise show.CommandError(
            f"k_block={request.k_block}: CTA {request.cta} has k_blocks 0 to "
            f"{dump.h.tiles * dump.h.k_blocks - 1}, {dump.h.k_blocks} in each of its {dump.h.tiles} tiles"
        )
    report = Report(dump, operands(data, dump), request)
    findings = report.print()
    right, why = reference.compare(output, reference.ref_kernel(data), exact=True)
    print(
        "\ndump: " + ("; ".join(f"DIFFERS: {finding}" for finding in findings) or "nothing differs from the operands")
    )
    print(f"result: {why}")
    return 0 if right and not findings else 1


def operands(data: tuple[torch.Tensor, ...], dump: Dump) -> tuple[Operand, Operand]:
    """mma_a and mma_b of the dump's batch."""
    from nvfp4 import reference

    a, b, sfa, sfb = (part[dump.h.batch].cpu() for part in reference.batch_first(data))
    of_a, of_b = Operand("a", a, sfa), Operand("b", b, sfb)
    return (of_b, of_a) if dump.h.swap_ab else (of_a, of_b)
