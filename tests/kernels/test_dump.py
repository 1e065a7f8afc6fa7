"""`python tools/lab dump`: the debug build records the operands of an mma, Python decodes them and finds what
is wrong, and the release build contains none of it."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
from emulate import Emulator, build
from harness.headers import Config, Struct, headers_of
from harness.launch import compile_ptx, only_entry, ptx_of
from harness.values import decode
from lab import dump
from lab.__main__ import main
from paths import CSRC, TOOLS
from python_server import python
from sm100.gemm import CONFIGS, Product, cluster, mma_tile_m

import nvfp4
from nvfp4 import _C, reference
from nvfp4.cli import check, machine, show

EPILOGUE = '"kernels/sm100/epilogue.cuh"'
needs_nvcc = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")


# --- without the flag -----------------------------------------------------------------------------------------------


def without_hooks(text: str) -> str:
    """kernels/sm100/gemm.cu with epilogue.cuh in place and every hook of the debug build removed."""
    text = text.replace(f"#include {EPILOGUE}\n", (CSRC / EPILOGUE.strip('"')).read_text())
    operands = re.search(r"struct mma_operands \{.*?\n\};\n", (CSRC / "kernels/sm100/dump.cuh").read_text(), re.S)[0]
    include = '#include "kernels/sm100/dump.cuh"\n'
    text = text.replace(include, '#include "kernels/common/mbarrier.cuh"\n' + operands, 1).replace(include, "")
    text = re.sub(r"^ *(dumper<C>(::init\(cta\)| dump\([\w., ]*\))|dump\.\w+\([\w., ]*\));\n", "", text, flags=re.M)
    text = re.sub(r'#include "kernels/common/placement.cuh"\n|^ *RECORD_CTA\(\); *\\\n', "", text, flags=re.M)
    return re.sub(r", (dumper<C> &)?dump\b", "", text)


@needs_nvcc
def test_without_the_flag_the_code_is_the_same(tmp_path: Path) -> None:
    """Equal PTX gives equal machine code: ptxas has no other input."""
    bare = tmp_path / "gemm.cu"
    bare.write_text(without_hooks((CSRC / "kernels/sm100/gemm.cu").read_text()))
    assert not re.search("dump|RECORD_CTA|placement", bare.read_text())
    (config, *_) = CONFIGS.values()
    plain = ptx_of(config, "-w")  # nvcc's too, not that of the build
    assert compile_ptx(bare, "sm100", "-w") == plain
    assert ptx_of(config, "-DNVFP4_DUMP") != plain


# --- on the emulated B200 -------------------------------------------------------------------------------------------


DEBUG = headers_of("sm100", "NVFP4_DUMP")  # the debug build's headers
Record = DEBUG.structs["sm100_dump"]


AT = {name: getattr(Record, name).offset for name, _ in Record._fields_}
COLUMNS_AT, SUMS_AT = AT["scale_columns"], AT["sums"]


def test_python_reads_the_structs_fields() -> None:
    """dump.py has a copy of the layout, since an installed package has no headers."""
    record, fields = Record(), [name for name, _ in Record._fields_][: len(dump.FIELDS)]
    for i, name in enumerate(fields):
        setattr(record, name, i + 1)
    assert tuple(name.rstrip("_") for name in fields) == dump.FIELDS
    assert dump.HEADER.unpack_from(bytes(record)) == tuple(range(1, len(dump.FIELDS) + 1))
    assert (AT["stage_data"], COLUMNS_AT) == (dump.HEADER.size, dump.HEADER.size + dump.STAGE_BYTES)
    assert COLUMNS_AT + 512 * dump.SCALE_COLUMNS == SUMS_AT and ctypes.sizeof(Record) == dump.BYTES


class Dumped(Product):
    """A product with a dump of one k_block."""

    def dump(
        self, config: Config, swap_ab: bool, split: int, clusters: int, cta: int, k_block: int, ptx: str = ""
    ) -> torch.Tensor:
        """Runs it and returns the dump's bytes. ptx: by default the debug build's."""
        self.memory = self.emulator.array(numpy.zeros(dump.BYTES, numpy.uint8))
        self.request = (self.memory.address, cta, k_block)
        debug = DEBUG.configs()[config.name]
        module = self.emulator.load(ptx or only_entry(ptx_of(config, "-DNVFP4_DUMP"), config.kernel))
        self.launch(module, debug, swap_ab, split, clusters)
        return torch.from_numpy(self.memory.numpy().copy())

    def schedule(self, *arguments: object) -> Struct:
        debug = DEBUG.structs["sm100_schedule"]
        made = debug.from_buffer_copy(bytes(super().schedule(*arguments)).ljust(ctypes.sizeof(debug), b"\0"))
        made.dump, made.dump_cta, made.dump_block = self.request
        return made

    def operands(self, swap_ab: int, batch: int) -> tuple[dump.Operand, dump.Operand]:
        """mma_a and mma_b, with the drawn data."""
        tensors = (
            (torch.from_numpy(part[batch]) for part in (data[:, :, : self.k // 2], scales))
            for data, scales in zip(self.data, self.scales)
        )
        a, b = (dump.Operand(name, *pair) for name, pair in zip("ab", tensors))
        return (b, a) if swap_ab else (a, b)


# kernel, split_k, which operand is mma_a, CTA, rows of mma_a and of mma_b beyond the first tile
CASES = {
    "one_cta": ("sm100_gemm_128x32", 1, "b", 0, 0, 0),
    "wide_one_cta_second_tile": ("sm100_gemm_128x128", 1, "a", 0, 40, 100),
    "64_rows_second_half": ("sm100_gemm_128x64", 1, "b", 1, 0, 60),
    "leader": ("sm100_gemm_256x64", 1, "b", 0, 0, 0),
    "other_of_a_pair": ("sm100_gemm_256x128", 1, "a", 1, 0, 0),
    "other_of_a_pair_second_tile": ("sm100_gemm_256x128_deep", 1, "b", 1, 140, 9),
    "third_split_index": ("sm100_gemm_128x32", 4, "b", 2, 0, 0),
    "multicast_other_tile": ("sm100_gemm_256x64_multicast", 2, "b", 7, 0, 40),
    "split_pair_two_atoms": ("sm100_gemm_256x256", 2, "b", 3, 0, 0),
    "cp_async": ("sm100_gemm_128x128_cp_async", 1, "b", 0, 0, 30),
}


def run_case(name: str, random: numpy.random.Generator, later: bool) -> tuple[Dumped, torch.Tensor, dump.Request]:
    kernel, split, mma_a_is, cta, more_m, more_n = CASES[name]
    config, swap_ab = CONFIGS[kernel], mma_a_is == "b"
    seed = int(random.integers(2**30))
    mma_m, mma_n = (
        tile + more if more else tile - int(random.integers(8))
        for tile, more in ((mma_tile_m(config), more_m), (config.mma_tile_n, more_n))
    )
    k = 256 * split + 64 * int(random.integers(1, 12)) - (48 if config.cp_async else 0)
    emulator = Emulator("sm_100", seed=seed, tmem_base=32 * (seed % 5) if cluster(config, split) == 1 else 0)
    product = Dumped(
        emulator, random, *((mma_n, mma_m) if swap_ab else (mma_m, mma_n)), k, linear=bool(config.cp_async)
    )
    split_idx = cta % cluster(config, split) // cluster(config)
    stages = -(-k // 256)
    first, last = split_idx * stages // split * 4, (split_idx + 1) * stages // split * 4
    blocks = min(last, -(-k // 64)) - first
    tiles = 2 if name.endswith("second_tile") else 1  # of one cluster
    k_block = int(random.integers(1, tiles * blocks)) + (tiles - 1) if later else 0
    k_block = min(k_block, tiles * blocks - 1)
    clusters = -(-mma_m // mma_tile_m(config)) * -(-mma_n // config.mma_tile_n) // tiles if split == 1 else 0
    print(
        f"seed {seed}: {mma_m} x {mma_n} x {k}, CTA {cta}, k_block {k_block} of {tiles} x {blocks}, {clusters} clusters"
    )
    raw = product.dump(config, swap_ab, split, clusters, cta, k_block)
    product.check()
    got = dump.Dump(raw).h
    assert got.complete and (got.k_blocks, got.first_block, got.tiles) == (blocks, first, tiles)
    assert got.k_block == first + k_block % blocks and (got.rank, got.split_idx) == (cta % config.cta_group, split_idx)
    assert (got.cta_group, got.mma_tile_n, got.stages, got.swap_ab) == (
        config.cta_group,
        config.mma_tile_n,
        config.stages,
        swap_ab,
    )
    return product, raw, dump.Request(cta, k_block, range(2), range(3))


@needs_nvcc
@pytest.mark.parametrize("later", [False, True], ids=["first", "later"])
@pytest.mark.parametrize("name", CASES)
def test_dump_is_the_truth(
    name: str, later: bool, random: numpy.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    """The product is right with a dump; the dump holds the operands, by this test's arithmetic and by the report's."""
    product, raw, request = run_case(name, random, later)
    got = dump.Dump(raw)
    h = got.h
    mma_a, mma_b = (1, 0) if h.swap_ab else (0, 1)
    first_a, first_b = h.mma_a_row, h.mma_b_row + h.rank * h.mma_tile_n // h.cta_group
    half = product.k // 2
    for operand, which, first in (("mma_a", mma_a, first_a), ("mma_b", mma_b, first_b)):
        values = product.data[which][h.batch, first : first + got.values(operand).shape[0], :half]
        values = values[:, h.k_block * 32 : h.k_block * 32 + 32]
        assert (got.values(operand).numpy()[: len(values), : values.shape[1]] == values).all()
        row = (h.mma_a_row, h.mma_b_row)[operand == "mma_b"]
        atom = row // 128 * 128
        scales = product.scales[which][h.batch, row : row + (128, h.mma_tile_n)[operand == "mma_b"]]
        scales = scales[:, h.k_block * 4 : h.k_block * 4 + 4]
        rows = numpy.arange(row - atom, row - atom + len(scales))
        assert (got.scale_tile(operand).numpy()[rows, : scales.shape[1]] == scales).all()
        for quarter in range(4):
            memory = got.scale_memory(operand).numpy()[32 * quarter + rows % 32, rows // 32]
            assert (memory[:, : scales.shape[1]] == scales).all()
    numbers = [decode(data[:, :, :half], scales)[h.batch] for data, scales in zip(product.data, product.scales)]
    k = slice(h.first_block * 64, h.k_block * 64 + 64)
    sums = (
        numbers[mma_a][h.mma_a_row : h.mma_a_row + 128, k]
        @ numbers[mma_b][h.mma_b_row : h.mma_b_row + h.mma_tile_n, k].T
    )
    assert (got.sums.numpy()[: len(sums), : sums.shape[1]] == sums).all()

    capsys.readouterr()
    assert dump.Report(got, product.operands(h.swap_ab, h.batch), request).print() == []
    told = capsys.readouterr().out
    assert "!" not in told and "None" not in told
    assert f"M {128 * h.cta_group}, N {h.mma_tile_n}, K 64, mma_a e2m1, mma_b e2m1, scales ue4m3" in told
    assert "stride 1024 B" in told and "2 = 128-byte swizzle" in told
    assert f"{sums[1, 2]:.9g}" in told.split("Sums in the accumulator")[1]


@needs_nvcc
def test_no_such_k_block(random: numpy.random.Generator) -> None:
    """The product is right, and the dump says which k_blocks exist."""
    product = Dumped(Emulator("sm_100", seed=3), random, 40, 200, 512)
    config = CONFIGS["sm100_gemm_128x64"]
    for cta, k_block, exists in ((0, 8, 1), (1, 2**30, 1), (2, 0, 0)):
        h = dump.Dump(product.dump(config, True, 1, 0, cta, k_block)).h
        product.check()
        assert (h.exists, h.complete) == (exists, 0)
        assert (h.tiles, h.k_blocks) == ((1, 8) if exists else (0, 0))


# --- with the watchdog in the same build --------------------------------------------------------------------------

BOTH = ["-DNVFP4_DUMP", "-DNVFP4_WATCHDOG"]
ONE_INSTANTIATION = """
#include "kernels/sm100/config.h"
#undef SM100_GEMM_CONFIGS
#define SM100_GEMM_CONFIGS(X) X({})
#include "kernels/sm100/gemm.cu"
"""


@needs_nvcc
def test_with_the_watchdog_too(tmp_path: Path, random: numpy.random.Generator) -> None:
    """One instantiation, since all of them take 13 s to compile."""
    config = CONFIGS["sm100_gemm_128x32"]
    source = tmp_path / "one.cu"
    source.write_text(ONE_INSTANTIATION.format(", ".join(map(str, (config.name, *config.columns.values())))))
    ptx = compile_ptx(source, "sm100", *BOTH)
    assert "watchdog" in ptx and "watchdog" not in ptx_of(config, BOTH[0])
    product = Dumped(Emulator("sm_100", seed=int(random.integers(2**30))), random, 30, 200, 512)
    h = dump.Dump(product.dump(config, True, 1, 0, 1, 3, ptx)).h
    product.check()
    assert h.complete and (h.k_block, h.k_blocks) == (3, 8)


def test_host_code_with_both_flags(empty_images: Path) -> None:
    sources = [path for path in CSRC.glob("**/*.c") if re.search("NVFP4_(DUMP|WATCHDOG)", path.read_text())]
    sources += CSRC.glob("kernels/sm100/*.c")  # plan.h has fields of the dump
    folders = [CSRC, empty_images, sysconfig.get_paths()["include"]]
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-DNVFP4_CUDA", "-DPy_LIMITED_API=0x030A0000", *BOTH]
    subprocess.run(["gcc", "-fsyntax-only", *flags, *(f"-I{folder}" for folder in folders), *sources], check=True)
    assert {"driver.c", "module.c"} < {path.name for path in sources}


# --- differences are found ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def a_dump() -> tuple[Dumped, torch.Tensor, dump.Request]:
    return run_case("leader", numpy.random.default_rng(int(os.environ["NVFP4_TEST_SEED"])), True)


STAGE_OF_A_PAIR = {"mma_a": 0, "mma_b": 16384, "sfa": 16384 + 32 * 128, "sfb": 16384 + 32 * 128 + 2048}


@needs_nvcc
@pytest.mark.parametrize(
    ("at", "flip", "finding", "mark"),
    [
        (AT["mma_a"], 2, "1 of the instruction's operands", r"values of mma_a .* ! start 0x"),
        (AT["mma_b"] + 4, 0x40, "1 of the instruction's operands", r"values of mma_b .* ! stride 1024 B"),
        (AT["mma_a"] + 7, 0x40, "1 of the instruction's operands", r"values of mma_a .* ! layout 2 = 128-byte swizzle"),
        (AT["instruction"] + 2, 0x80, "1 of the instruction's operands", r"instruction .* ! scales ue4m3"),
        (AT["d"], 32, "1 of the instruction's operands", r"accumulator .* ! column "),
        (AT["mma_sfa"], 4, "1 of the instruction's operands", r"columns of mma_a scales .* ! column "),
        (AT["add"], 1, "1 of the instruction's operands", r"adds to the accumulator .* ! yes"),
        ("mma_a", 8, "1 of 128 rows of values of mma_a in shared memory", r"\n +0 +[0-9a-f]{64} .* ! [0-9a-f]{64}\n"),
        ("mma_b", 8, "rows of values of mma_b in shared memory", r"\n +0 +[0-9a-f]{64} .* ! [0-9a-f]{64}\n"),
        ("sfa", 1, "1 of 128 rows of scales of mma_a in shared memory", r"\n +0 .* ! .. .. .. ..\n"),
        ("sfb", 1, "rows of scales of mma_b in shared memory", r"\n +0 .* ! .. .. .. ..\n"),
        (
            COLUMNS_AT + 512,
            4,
            "1 of 512 words of scales of mma_a in tensor memory",
            r"\n +0  .. .. .. ..  .* ! .. .. .. ..",
        ),
        (COLUMNS_AT + 4 * 512 + 4, 4, "1 of 512 words of scales of mma_b in tensor memory", r"\n +1  .. .. .. .. ! "),
        (SUMS_AT + 2 * 512 + 1 * 4 + 2, 1, "sums in the accumulator", r"\n +1 .* ! "),
    ],
)
def test_differences_are_marked(
    at: int | str, flip: int, finding: str, mark: str, a_dump, capsys: pytest.CaptureFixture[str]
) -> None:
    """One flipped bit in each part of the dump."""
    product, raw, request = a_dump
    h = dump.Dump(raw).h
    if isinstance(at, str):  # row 0 of the k_block, in the stage
        in_stage = h.k_block % 4
        at = dump.HEADER.size + STAGE_OF_A_PAIR[at] + in_stage * (512 if at.startswith("sf") else 32)
    spoilt = raw.clone()
    spoilt[at] ^= flip
    assert h.add == 1
    found = dump.Report(dump.Dump(spoilt), product.operands(h.swap_ab, h.batch), request).print()
    told = capsys.readouterr().out
    assert any(finding in one and one.startswith("1 ") for one in found), found
    assert re.search(mark, told), told


@needs_nvcc
def test_wrong_scales_are_found(random: numpy.random.Generator) -> None:
    """The first finding names the fault, which also shows in the sums."""
    config = CONFIGS["sm100_gemm_128x64"]
    product = Dumped(Emulator("sm_100", seed=int(random.integers(2**30))), random, 60, 128, 512)
    right = product.operand

    def with_scales_of_b(config: Config, which: int, *rest: int) -> Struct:
        made = right(config, which, *rest)
        made.scale = product.arrays[3].address
        return made

    product.operand = with_scales_of_b
    with pytest.raises(AssertionError, match="wrong, first at"):
        product.dump(config, True, 1, 0, 0, 2)
        product.check()
    got = dump.Dump(torch.from_numpy(product.memory.numpy().copy()))
    findings = dump.Report(got, product.operands(1, 0), dump.Request(0, 2)).print()
    assert len(findings) == 2
    assert "rows of scales of mma_b in shared memory" in findings[0] and "sums" in findings[1]


# --- the command ----------------------------------------------------------------------------------------------------


def test_requests() -> None:
    assert dump.parse("cta=3,k_block=17") == dump.Request(3, 17, range(8), range(8))
    assert dump.parse("columns=1:256,k_block=0,lanes=32:128,cta=0") == dump.Request(0, 0, range(32, 128), range(1, 256))
    for text in ("", "cta=1", "k_block=1", "cta=1,k_block=-1", "cta=1,k_block=1,lanes=3", "cta=0,k_block=0,lanes=5:5"):
        with pytest.raises(dump.argparse.ArgumentTypeError):
            dump.parse(text)
    for text in ("cta=0,k_block=0,lanes=0:129", "cta=0,k_block=0,columns=0:257", "cta=0,k_block=0,rows=0:1"):
        with pytest.raises(dump.argparse.ArgumentTypeError):
            dump.parse(text)


def test_other_backends_are_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", "cta=0,k_block=0", "--backend", "cpu", "--test", "1"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "sm100" in said.err and "(cpu)" in said.err and "B200" in said.err
    assert main(["dump", "cta=0,k_block=0", "--backend", "cpu", "--test", "11"]) == 2
    assert "--test 11: there are tests 1 to 10" in capsys.readouterr().err


@needs_nvcc
@pytest.mark.skipif(hasattr(_C, "dump"), reason="this is a debug build")
def test_a_release_build_names_the_build_it_needs() -> None:
    environment = {**os.environ, "NVFP4_LIBCUDA": str(build()), "EMULATE_DEVICE": "sm_100"}
    done = python(TOOLS / "lab/__main__.py", "dump", "--test", "1", "cta=0,k_block=0", env=environment, timeout=300)
    assert (done.returncode, done.stdout) == (2, "")
    assert "debug build" in done.stderr and dump.BUILD in done.stderr and "Traceback" not in done.stderr


@needs_nvcc
def test_the_command(a_dump, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`dump.record` with a dump made above: its calls, output and status."""
    product, raw, request = a_dump
    asked = []

    def ask(memory: int, cta: int, k_block: int) -> int:
        asked.append((memory, cta, k_block))
        if memory:
            ctypes.memmove(memory, made.numpy().ctypes.data, dump.BYTES)
        return dump.BYTES

    made = raw
    monkeypatch.setattr(_C, "dump", ask, raising=False)
    monkeypatch.setattr(dump, "require", lambda *_: 2)
    data, scales = (
        [torch.from_numpy(part).permute(1, 2, 0) for part in parts] for parts in (product.data, product.scales)
    )
    result = torch.from_numpy(product.result()).half().permute(1, 2, 0)
    inputs = (*data, *scales, None, None, result)
    monkeypatch.setattr(reference, "generate_input", lambda **_: inputs)
    place = machine.Target(torch.device("cpu"), torch.device("cpu"), None)

    def run(output: torch.Tensor = result) -> int:
        monkeypatch.setattr(check, "multiply", lambda data, backend: (output, 0.0))
        return dump.record({}, place, request)

    assert run() == 0
    told = capsys.readouterr().out
    assert told.endswith("dump: nothing differs from the operands\nresult: every bit is equal\n")
    assert asked[0][1:] == (request.cta, request.k_block) and asked[1] == (0, 0, 0)
    assert run(result + 1) == 1 and "values are wrong" in capsys.readouterr().out
    made = raw.clone()
    made[COLUMNS_AT] ^= 1
    assert run() == 1 and "dump: DIFFERS: 1 of 512 words of scales of mma_a" in capsys.readouterr().out
    made[AT["complete"]] = 0
    with pytest.raises(
        show.CommandError, match=rf"CTA {request.cta} has k_blocks 0 to \d+, \d+ in each of its 1 tiles"
    ):
        run()
    request = SimpleNamespace(cta=2, k_block=0)
    with pytest.raises(show.CommandError, match="CTAs 0 to 1"):
        run()
