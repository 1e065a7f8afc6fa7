"""`check --dump`: what the tensor core of a B200 was given for one k_block, in words, beside what it should have been.

A build with NVFP4_DUMP=1 writes one CTA's descriptors, its stage of shared memory, its scales in tensor memory and its
accumulator to memory (csrc/device/dump.h) when the products of one k_block, 64 values along K, have ended. Here that is
decoded and held against the operands, whose sums are taken in fp64. A "!" marks what differs.

The side of the mma with 128 rows a CTA is called x, the other one y. Lanes of tensor memory are rows of x in the CTA,
columns of the accumulator are rows of y in the tile.
"""

from __future__ import annotations

import argparse
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from . import machine, show

if TYPE_CHECKING:
    import torch

BLOCK = 64  # values along K of a k_block
LANES, ATOM_ROWS, ATOM_BYTES = 128, 128, 512
X_BYTES, STAGE_BLOCKS = 16384, 4  # of a stage (sm100_configs.h)
STAGE_BYTES, SCALE_COLUMNS, SUM_COLUMNS = 38912, 12, 256  # what sm100_dump has room for
HEADER = struct.Struct("<28I4Q2I")
FIELDS = (
    "here", "group", "tile_y", "stages", "stage_bytes", "swap_ab", "split_k", "rank", "unit", "tiles", "k_blocks",
    "first_block", "tile", "row_x", "row_y", "batch", "k_block", "stage", "tmem", "accumulator", "scales", "slot",
    "parity", "d", "instruction", "sfx", "sfy", "add", "x", "y", "atoms_x", "atoms_y", "complete", "padding",
)  # fmt: skip
BYTES = HEADER.size + STAGE_BYTES + 4 * LANES * (SCALE_COLUMNS + SUM_COLUMNS)

VALUES_DESCRIPTOR, ATOM_DESCRIPTOR = 0x4000404000010000, 0x0000400800010000  # at address 0
LAYOUTS = {0: "no swizzle", 1: "128-byte swizzle of 32", 2: "128-byte swizzle", 4: "64-byte swizzle", 6: "32-byte"}
BUILD = "NVFP4_DUMP=1 pip install --no-deps --force-reinstall ."


@dataclass(frozen=True)
class Request:
    """Which CTA (blockIdx.x) and k_block, counted through the CTA's part of K and then its tiles; what to print."""

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


# --- decoding ---------------------------------------------------------------------------------------------------------


class Dump:
    """The bytes of an sm100_dump: its fields by their names, and memory as tensors."""

    def __init__(self, raw: torch.Tensor) -> None:
        import torch

        self.h = SimpleNamespace(**dict(zip(FIELDS, HEADER.unpack(bytes(raw[: HEADER.size].tolist())))))
        stage, columns, sums = raw[HEADER.size : BYTES].split(
            [STAGE_BYTES, 4 * LANES * SCALE_COLUMNS, 4 * LANES * SUM_COLUMNS]
        )
        self.stage = stage[: self.h.stage_bytes]
        self.scale_columns = columns.view(SCALE_COLUMNS, LANES, 4).transpose(0, 1)  # lane, column, byte
        self.sums = sums.clone().view(torch.float32).view(SUM_COLUMNS, LANES)[: self.h.tile_y].T  # lane, column

    @property
    def in_stage(self) -> int:
        return self.h.k_block % STAGE_BLOCKS

    def atoms(self, side: str) -> int:
        """Scale atoms a k_block."""
        return 1 if side == "x" else -(-self.h.tile_y // ATOM_ROWS)

    def walk(self, descriptor: int, rows: int, units: int) -> torch.Tensor | None:
        """What the descriptor reaches in this CTA: [rows, 16 * units] bytes; None where some lies outside the stage."""
        import torch

        start, stride, layout = (descriptor & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4, descriptor >> 61
        lines = {0: 0, 2: 7, 4: 3, 6: 1}.get(layout)  # of 128 bytes that the swizzle turns
        if lines is None or (layout == 0 and units > 1):
            return None
        row, byte = torch.arange(rows)[:, None], torch.arange(16 * units)
        address = start + row % 8 * (16 * (lines + 1)) + row // 8 * stride + byte
        offset = (address ^ (address >> 7 & lines) << 4) - (self.h.stage & 0x3FFFF)
        inside = bool((offset >= 0).all() and (offset < len(self.stage)).all())
        return self.stage[offset] if inside else None

    def values(self, side: str) -> torch.Tensor | None:
        """[rows of this CTA, 32] bytes of values, as the mma's descriptor reaches them."""
        rows = LANES if side == "x" else self.h.tile_y // self.h.group
        return self.walk(getattr(self.h, side), rows, 2)

    def scale_tile(self, side: str) -> torch.Tensor | None:
        """[128 an atom, 4] bytes of scales in shared memory, as the copy's descriptor reaches them."""
        import torch

        tiles = []
        for atom in range(self.atoms(side)):
            lines = self.walk(self.smem_descriptor_atom(side, atom), 32, 1)  # line l: rows l, 32 + l, 64 + l, 96 + l
            if lines is None:
                return None
            tiles.append(lines.view(32, 4, 4).transpose(0, 1).reshape(ATOM_ROWS, 4))
        return torch.cat(tiles)

    def smem_descriptor_atom(self, side: str, atom: int = 0) -> int:
        first = getattr(self.h, f"atoms_{side}")
        return first + (atom * STAGE_BLOCKS + self.in_stage) * ATOM_BYTES // 16

    def scale_memory(self, side: str) -> torch.Tensor:
        """[128 lanes, 4 columns an atom, 4] bytes of scales in tensor memory."""
        first = 0 if side == "x" else 4
        return self.scale_columns[:, first : first + 4 * self.atoms(side)]


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
        "x": e2m1.get(bits >> 7 & 7, f"type {bits >> 7 & 7}"),
        "y": e2m1.get(bits >> 10 & 3, f"type {bits >> 10 & 3}"),
        "scales": "ue8m0" if bits >> 23 & 1 else "ue4m3",
        "scale ids": f"{bits >> 29 & 3}, {bits >> 4 & 3}",
        "negated": f"{bits >> 13 & 1}, {bits >> 14 & 1}",
    }


def memory_words(address: int) -> dict[str, str]:
    return {"lane": str(address >> 16), "column": str(address & 0xFFFF)}


def given_and_expected(dump: Dump) -> list[tuple[str, int, int, Callable[[int], dict[str, str]]]]:
    """Name, what the instruction was given, what the schedule asks for, and the words for it."""
    h, i = dump.h, dump.in_stage
    start = h.stage & 0x3FFFF
    y_at, atoms_y = X_BYTES, dump.atoms("y")
    sfx_at = y_at + h.tile_y // h.group * 128
    sfy_at = sfx_at + STAGE_BLOCKS * ATOM_BYTES
    half = h.row_y % ATOM_ROWS // 32 if h.tile_y == 64 else 0
    columns = h.tmem + h.scales
    return [
        ("values of x", h.x, VALUES_DESCRIPTOR | start + 32 * i >> 4, matrix_words),
        ("values of y", h.y, VALUES_DESCRIPTOR | start + y_at + 32 * i >> 4, matrix_words),
        (
            "scales of x",
            dump.smem_descriptor_atom("x"),
            ATOM_DESCRIPTOR | start + sfx_at + i * ATOM_BYTES >> 4,
            matrix_words,
        ),
        (
            "scales of y",
            dump.smem_descriptor_atom("y"),
            ATOM_DESCRIPTOR | start + sfy_at + i * ATOM_BYTES >> 4,
            matrix_words,
        ),
        (
            "instruction",
            h.instruction,
            1 << 7 | 1 << 10 | h.tile_y // 8 << 17 | h.group << 27,
            instruction_words,
        ),
        ("accumulator", h.d, h.tmem + h.accumulator, memory_words),
        ("columns of x scales", h.sfx, columns + 4 * i, memory_words),
        ("columns of y scales", h.sfy, columns + 4 * (STAGE_BLOCKS + i * atoms_y) + half, memory_words),
        ("adds to the accumulator", h.add, int(h.k_block > h.first_block), lambda bits: {"": "yes" if bits else "no"}),
    ]


# --- comparing and printing -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operand:
    """One operand of the product, of one batch: where the tile begins in it, and of it the k_block."""

    name: str
    data: torch.Tensor  # [rows, K/2] bytes
    scales: torch.Tensor  # [rows, K/16] bytes

    def rows(self, first: int, count: int) -> range:
        return range(first, min(first + count, len(self.data)))

    def decoded(self, rows: range, first: int, end: int) -> torch.Tensor:
        """Values times scales from k_block `first` to before `end`, fp64."""
        from .. import reference

        chosen = slice(rows.start, rows.stop)
        data = self.data[chosen, first * 32 : end * 32]
        return reference.operand(data, self.scales[chosen, first * 4 : end * 4], "linear")[0].double()


class Report:
    """Prints a dump beside the truth and counts what differs."""

    def __init__(self, dump: Dump, operands: tuple[Operand, Operand], request: Request) -> None:
        self.dump, self.h, self.request = dump, dump.h, request
        self.x, self.y = operands
        self.findings: list[str] = []

    def print(self) -> list[str]:
        """Everything; returns the findings."""
        self.place()
        self.descriptors()
        for side in "xy":
            self.values(side)
            self.scales(side)
        self.accumulator()
        return self.findings

    def find(self, count: int, what: str) -> None:
        if count:
            self.findings.append(f"{count} {what}")

    def place(self) -> None:
        h = self.h
        pair = f", rank {h.rank} of its pair" if h.group == 2 else ""
        part = f", part {h.unit} of {h.split_k} of K" if h.split_k > 1 else ""
        print(
            f"CTA {self.request.cta}{pair}{part}: tile {h.tile}, batch {h.batch}, rows {h.row_x} on of {self.x.name} "
            f"(x), rows {h.row_y} on of {self.y.name} (y)\n"
            f"k_block {h.k_block} (K {h.k_block * BLOCK} to {h.k_block * BLOCK + BLOCK - 1}), sums since k_block "
            f"{h.first_block}; slot {h.slot} of {h.stages}, parity {h.parity}, stage at shared address 0x{h.stage:x}, "
            f"tensor memory from column {h.tmem & 0xFFFF}\n"
        )

    def descriptors(self) -> None:
        rows, wrong = [], 0
        for name, given, expected, words in given_and_expected(self.dump):
            is_words, must_words = words(given), words(expected)
            text = ", ".join(f"{field} {value}".strip() for field, value in is_words.items())
            should = [
                f"{field} {must_words[field]}".strip() for field in is_words if is_words[field] != must_words[field]
            ]
            differs = given != expected
            wrong += differs
            digits = 16 if words is matrix_words else 8
            rows.append(
                [name, f"0x{given:0{digits}x}", text + ("  ! " + ", ".join(should or [f"0x{expected:x}"])) * differs]
            )
        self.find(wrong, "of the instruction's operands")
        show.table("What the instruction was given", ["<operand", "bits", "<in words"], rows)

    def selected(self, side: str, count: int) -> range:
        """Rows to print, of `count`."""
        chosen = self.request.lanes if side == "x" else self.request.columns
        return range(min(chosen.start, count), min(chosen.stop, count))

    def first_row(self, side: str) -> int:
        """Of this CTA's values."""
        h = self.h
        return h.row_x if side == "x" else h.row_y + h.rank * (h.tile_y // h.group)

    def operand(self, side: str) -> Operand:
        return self.x if side == "x" else self.y

    def values(self, side: str) -> None:
        from .. import reference

        got, operand, first = self.dump.values(side), self.operand(side), self.first_row(side)
        print()
        if got is None:
            print(f"The descriptor of the values of {side} leads outside the stage.")
            return
        exist = operand.rows(first, len(got))
        want = operand.data[exist.start : exist.stop, self.h.k_block * 32 : self.h.k_block * 32 + 32]
        differ = (got[: len(want), : want.shape[1]] != want).any(1)
        self.find(int(differ.sum()), f"of {len(want)} rows of values of {side} in shared memory")
        rows = []
        for r in self.selected(side, len(got)):
            numbers = " ".join(f"{number:g}" for number in reference.decode_e2m1(got[r])[:8].tolist())
            note = "past the end" if r >= len(want) else f"! {codes(want[r])}" if differ[r] else ""
            rows.append([str(first + r), codes(got[r]), numbers + " ...", note])
        title = f"Values of {side} ({operand.name}) in shared memory: e2m1 codes along K"
        show.table(title, ["row", "<codes", "<numbers", "<operand"], rows)

    def scales(self, side: str) -> None:
        tile, memory, operand = self.dump.scale_tile(side), self.dump.scale_memory(side), self.operand(side)
        print()
        if tile is None:
            print(f"The descriptor of the scales of {side} leads outside the stage.")
            return
        self.scales_in_shared_memory(side, tile, operand)
        print()
        self.scales_in_tensor_memory(side, tile, memory)

    def scales_in_shared_memory(self, side: str, tile: torch.Tensor, operand: Operand) -> None:
        import torch

        row = self.h.row_x if side == "x" else self.h.row_y
        first = row // ATOM_ROWS * ATOM_ROWS  # of a tile of 64 rows an atom holds the neighbour too
        exist = operand.rows(first, len(tile))
        want = operand.scales[exist.start : exist.stop, self.h.k_block * 4 : self.h.k_block * 4 + 4]
        want = torch.nn.functional.pad(want, (0, 4 - want.shape[1]))  # past K: zeros
        used = range(row - first, min(row - first + (LANES if side == "x" else self.h.tile_y), len(want)))
        differ = torch.zeros(len(tile), dtype=torch.bool)
        differ[used.start : used.stop] = (tile[: len(want)] != want).any(1)[used.start : used.stop]
        self.find(int(differ.sum()), f"of {len(used)} rows of scales of {side} in shared memory")
        rows = []
        for r in self.selected(side, len(used)):
            at = used[r]
            rows.append(
                [str(first + at), *map(scale_words, tile[at].tolist()), f"! {bytes_words(want[at])}" * bool(differ[at])]
            )
        title = f"Scales of {side} ({operand.name}) in shared memory: byte = e4m3"
        show.table(title, ["row", *(f"K +{16 * i}" for i in range(4)), "<operand"], rows)

    def scales_in_tensor_memory(self, side: str, tile: torch.Tensor, memory: torch.Tensor) -> None:
        # Row r of an atom lies in column r / 32 of lane r % 32, once for each quarter of the lanes.
        want = tile.view(-1, 32, 4).transpose(0, 1).repeat(4, 1, 1)
        differ = (memory != want).any(2)
        self.find(int(differ.sum()), f"of {differ.numel()} words of scales of {side} in tensor memory")
        rows = []
        for lane in self.request.lanes:
            cells = [
                bytes_words(word) + f" ! {bytes_words(want[lane, i])}" * bool(differ[lane, i])
                for i, word in enumerate(memory[lane])
            ]
            rows.append([str(lane), *cells])
        first = (self.h.sfx if side == "x" else self.h.sfy) & 0xFFFF
        first -= first % 4
        names = [f"column {first + i}" for i in range(memory.shape[1])]
        show.table(f"Scales of {side} in tensor memory: bytes of a word along K", ["lane", *names], rows)

    def accumulator(self) -> None:
        h = self.h
        x_rows, y_rows = self.x.rows(h.row_x, LANES), self.y.rows(h.row_y, h.tile_y)
        x, y = (side.decoded(rows, h.first_block, h.k_block + 1) for side, rows in ((self.x, x_rows), (self.y, y_rows)))
        want, bound = x @ y.T, error_bound(x, y)
        got = self.dump.sums[: len(want), : want.shape[1]].double()
        differ = ~((got - want).abs() <= bound) & ~(got.isnan() & want.isnan())
        self.find(int(differ.sum()), f"of {want.numel()} sums in the accumulator")
        lanes = range(min(self.request.lanes.start, len(want)), min(self.request.lanes.stop, len(want)))
        columns = self.selected("y", want.shape[1])
        rows = []
        for lane in lanes:
            cells = [f"{got[lane, c]:.9g}" + f" ! {want[lane, c]:.9g}" * bool(differ[lane, c]) for c in columns]
            rows.append([str(lane), *cells])
        column = (h.tmem + h.accumulator) & 0xFFFF
        title = (
            f"Sums in the accumulator, from column {column} on: lanes are rows of {self.x.name} from {h.row_x} on, "
            f"columns rows of {self.y.name} from {h.row_y} on"
        )
        print()
        show.table(title, ["lane", *map(str, columns)], rows)


def error_bound(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor | float:
    """How far fp32 sums of these products may be from the true ones: not at all where every order is exact; else a
    rounding for each product, of the sum of absolute values."""
    from .. import reference

    if reference.sums_are_exact(x, y):
        return 0.0
    return x.shape[1] * 2.0**-23 * (x.abs() @ y.abs().T)


def codes(row: torch.Tensor) -> str:
    """e2m1 codes in the order of K, as hexadecimal digits."""
    return "".join(f"{byte & 15:x}{byte >> 4:x}" for byte in row.tolist())


def bytes_words(word: torch.Tensor) -> str:
    return " ".join(f"{byte:02x}" for byte in word.tolist())


def scale_words(byte: int) -> str:
    import torch

    from .. import reference

    return f"{byte:02x} = {reference.decode_e4m3(torch.tensor([byte], dtype=torch.uint8)).item():g}"


# --- the command ------------------------------------------------------------------------------------------------------


def require(test: dict[str, int], place: machine.Target) -> int:
    """Refuses, in a sentence, what cannot dump; returns the number of CTAs."""
    from .. import _C, info

    plan = info(*(test[key] for key in "mnkl"), device=place.device, backend=place.backend)["plan"]
    if plan["backend"] != "sm100":
        raise show.CommandError(
            f"--dump shows what the sm100 kernels do, and this product runs on {plan['kernel']} ({plan['backend']}): "
            "it needs a B200 or B300, or the emulated one (emulator/README.md)"
        )
    if not hasattr(_C, "dump"):
        raise show.CommandError(f"--dump needs a debug build of nvfp4, and this is none; in a checkout: {BUILD}")
    return plan["grid"]


def run(
    test: dict[str, int], place: machine.Target, request: Request, multiply: Callable[..., tuple[torch.Tensor, float]]
) -> int:
    """One test of `check` with a dump; multiply is check's. Returns the exit status."""
    import torch

    from .. import _C, reference

    ctas = require(test, place)
    if request.cta >= ctas:
        raise show.CommandError(f"--dump cta={request.cta}: this product has CTAs 0 to {ctas - 1}")
    data = reference.generate_input(**test, device=place.tensors)
    memory = torch.zeros(BYTES, dtype=torch.uint8, device=place.tensors)
    if _C.dump(memory.data_ptr(), request.cta, request.k_block) != BYTES:
        _C.dump(0, 0, 0)
        raise show.CommandError(
            "--dump: the compiled module is of another version than nvfp4/cli/dump.py; build it again"
        )
    try:
        output = multiply(data, place.backend)[0].clone()
    finally:
        _C.dump(0, 0, 0)
    dump = Dump(memory.cpu())
    if not dump.h.complete:
        raise show.CommandError(
            f"--dump k_block={request.k_block}: CTA {request.cta} has k_blocks 0 to "
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
    """x and y of the dump's batch."""
    from .. import reference

    a, b, sfa, sfb = (part[dump.h.batch].cpu() for part in reference.batch_first(data))
    of_a, of_b = Operand("a", a, sfa), Operand("b", b, sfb)
    return (of_b, of_a) if dump.h.swap_ab else (of_a, of_b)
