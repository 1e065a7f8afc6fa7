"""emulate.py as a command: its output, and invalid arguments, which give one message and exit status 2."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import emulate
import numpy
import pytest
from small_kernel import Emulator

KERNELS = """
.version 9.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 to, .param .u64 from, .param .f32 by, .param .u32 plus)
{
  .reg .u64 a, b, i; .reg .u32 t, c; .reg .f32 x, f;
  ld.param.u64 a, [to]; ld.param.u64 b, [from]; ld.param.f32 f, [by]; ld.param.u32 c, [plus];
  mov.u32 t, %tid.x; mad.lo.u32 t, %ctaid.x, %ntid.x, t; mul.wide.u32 i, t, 4;
  add.u64 a, a, i; add.u64 b, b, i;
  ld.global.f32 x, [b]; mul.f32 x, x, f; cvt.rn.f32.u32 f, c; add.f32 x, x, f; st.global.f32 [a], x;
  ret;
}
.visible .entry ticket(.param .u64 out, .param .u64 counter)
{
  .reg .u64 a, b, i; .reg .u32 t, n;
  ld.param.u64 a, [out]; ld.param.u64 b, [counter];
  mov.u32 t, %ctaid.x; mul.wide.u32 i, t, 4; add.u64 a, a, i;
  atom.global.add.u32 n, [b], 1; st.global.u32 [a], n;
  ret;
}
.visible .entry hangs() { bar.sync 1, 64; ret; }
.visible .entry sizes(.param .u64 out, .param .u16 a, .param .s64 b, .param .f64 c, .param .u8 d)
{
  .reg .u64 p, l; .reg .u32 x; .reg .f64 f;
  ld.param.u64 p, [out]; ld.param.u16 x, [a]; st.global.u32 [p], x; ld.param.u64 l, [b]; st.global.u64 [p+8], l;
  ld.param.f64 f, [c]; st.global.f64 [p+16], f; ld.param.u8 x, [d]; st.global.u32 [p+4], x; ret;
}
"""


@pytest.fixture
def ptx(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.ptx"
    path.write_text(KERNELS)
    return path


def command(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capfd.readouterr()
    try:
        status = emulate.main([str(a) for a in arguments])
    except SystemExit as stop:
        status = int(stop.code or 0)
    out, err = capfd.readouterr()
    return status, out, err


def test_help(capfd: pytest.CaptureFixture[str]) -> None:
    """Also as a program of its own."""
    done = subprocess.run([str(Path(emulate.__file__)), "--help"], capture_output=True, text=True)
    status, out, _ = command(capfd, "--help")
    assert (done.returncode, status) == (0, 0)
    for text in (done.stdout, out):
        for word in ("--arg", "--seed", "--trace", "f32[1024]=random", "--fences"):
            assert word in text


def test_list(capfd: pytest.CaptureFixture[str], ptx: Path) -> None:
    assert command(capfd, ptx, "--list") == (0, "scale\nticket\nhangs\nsizes\n", "")


def test_a_fat_binary(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if not shutil.which("nvcc"):
        pytest.skip("needs nvcc")
    source, image = tmp_path / "k.cu", tmp_path / "k.fatbin"
    source.write_text('extern "C" __global__ void fill(int *out, int v) { out[threadIdx.x] = v; }')
    subprocess.run(["nvcc", "-gencode=arch=compute_90a,code=compute_90a", "-fatbin", "-o", image, source], check=True)
    assert command(capfd, image, "--list", "--device", "sm_90") == (0, "fill\n", "")
    status, out, _ = command(capfd, image, "--device", "sm_90", "--arg", "s32[32]=poison", "--arg", "-7", "--show", 99)
    assert status == 0 and out.count("-7") == 32
    status, _, err = command(capfd, image, "--device", "sm_80", "--arg", "s32[32]=poison", "--arg", "-7")
    assert status == 2 and "nothing that sm_80 runs" in err


def test_arguments_of_every_form(capfd: pytest.CaptureFixture[str], ptx: Path, tmp_path: Path) -> None:
    numpy.save(tmp_path / "x.npy", numpy.arange(64, dtype=numpy.float64).reshape(8, 8) / 4)
    base = [
        ptx,
        "--kernel",
        "scale",
        "--grid",
        "2",
        "--block",
        "32,1,1",
        "--device",
        "sm_80",
        "--save",
        tmp_path / "out",
    ]
    for source, given in (
        (f"f32[64]={tmp_path / 'x.npy'}", numpy.arange(64) / 4),
        ("f32[64]=range", numpy.arange(64)),
        ("f32[64]=zeros", numpy.zeros(64)),
        ("f32[64]=random", numpy.random.default_rng(5).standard_normal(64)),
    ):
        for number, plus in (("2.5", "0x10"), ("-3", "4"), ("1e-1", "0")):
            arguments = ["--arg", "f32[64]=poison", "--arg", source, "--arg", number, "--arg", plus]
            status, out, err = command(capfd, *base, *arguments, "--data-seed", 5)
            assert (status, err) == (0, "")
            assert out.startswith("memory 0: float32[64]")
            got = numpy.load(tmp_path / "out0.npy")
            factor = numpy.float32(float(number))
            assert (got == given.astype(numpy.float32) * factor + numpy.float32(int(plus, 0))).all()
    arguments = ["--arg", "u32[6]=zeros", "--arg", "-1", "--arg", "-2", "--arg", "7", "--arg", "300"]
    status, _, _ = command(capfd, ptx, "--kernel", "sizes", "--block", 1, *arguments, "--save", tmp_path / "out")
    got = numpy.load(tmp_path / "out0.npy")
    assert status == 0
    assert list(got[:2]) == [0xFFFF, 300 % 256]
    assert got[2:4].view(numpy.int64)[0] == -2 and got[4:6].view(numpy.float64)[0] == 7.0


def test_seeds(capfd: pytest.CaptureFixture[str], ptx: Path) -> None:
    same = ["--arg", "f32[32]=poison", "--arg", "f32[32]=range", "--arg", "2", "--arg", "1"]
    status, out, _ = command(capfd, ptx, *same, "--seed", "0..7")
    assert (status, out.splitlines()[-1]) == (0, "the same result with each of 8 seeds")
    other = ["--kernel", "ticket", "--grid", "9", "--arg", "u32[9]=zeros", "--arg", "u32[1]=zeros"]
    status, out, _ = command(capfd, ptx, *other, "--seed", "0..7")
    last = out.splitlines()[-1]
    assert status == 1
    found = re.fullmatch(r"(\d) different results, of seeds (.*)", last)
    assert found
    named = [json.loads(part) for part in found[2].split("; ")]
    assert len(named) == int(found[1]) and sorted(sum(named, [])) == list(range(8))


def test_trace(capfd: pytest.CaptureFixture[str], ptx: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    arguments = ["--arg", "f32[32]=poison", "--arg", "f32[32]=range", "--arg", "2", "--arg", "1"]
    assert command(capfd, ptx, *arguments, "--trace", path)[0] == 0
    Emulator(trace="")  # closes the file
    kernels = json.loads(path.read_text())["kernels"]
    assert [k["kernel"] for k in kernels] == ["scale"]
    assert kernels[0]["instructions"]["st.global.f32"] == [1, 32]


GOOD = ["--arg", "f32[32]=poison", "--arg", "f32[32]=range", "--arg", "2", "--arg", "1"]
BAD: dict[str, tuple[list[str], str]] = {
    "no such file": (["/no/such.ptx"], "/no/such.ptx cannot be read"),
    "no PTX": (["TEXT"], r"ptx:\d|text\.ptx:\d"),
    "no entries": (["EMPTY"], "empty.ptx has no entry"),
    "no such entry": (["PTX", "--kernel", "nothing"], "the module has no entry nothing"),
    "too few": (["PTX", *GOOD[:4]], "scale takes 4 arguments, 2 are given"),
    "no argument": (["PTX", *GOOD[:6], "--arg", "many"], "--arg many: is neither a number nor"),
    "no type": (["PTX", "--arg", "f33[5]=zeros", *GOOD[2:]], r"f33 is no type; there are u8 "),
    "no content": (["PTX", "--arg", "f32[5]=nothing", *GOOD[2:]], "nothing"),
    "wrong length": (["PTX", "--arg", "f32[5]=FILE", *GOOD[2:]], "has 3 elements"),
    "no array": (["PTX", "--arg", "f32[5]=TEXT", *GOOD[2:]], "text.ptx"),
    "a fraction for an integer": (["PTX", *GOOD[:6], "--arg", "1.5"], r"1\.5"),
    "infinite": (["PTX", *GOOD[:6], "--arg", "inf"], "inf"),
    "grid": (["PTX", "--grid", "x", *GOOD], "--grid"),
    "four dimensions": (["PTX", "--block", "1,2,3,4", *GOOD], "--block"),
    "block": (["PTX", "--block", "1025", *GOOD], "block.x is 1025; it must be 1 to 1024"),
    "seed": (["PTX", "--seed", "one", *GOOD], "--seed"),
    "seeds backwards": (["PTX", "--seed", "5..2", *GOOD], "--seed"),
    "device": (["PTX", "--device", "sm_75", *GOOD], "--device"),
    "tmem base": (["PTX", "--tmem-base", "5", *GOOD], "tmem_base is `5`; it must be a multiple of 32 below 512"),
    "fault": (["PTX", "--block", "64", *GOOD], r"kernel scale, block \(0,0,0\), warp 1 lane 0"),
    "deadlock": (["PTX", "--kernel", "hangs"], "deadlock: "),
    "save": (["PTX", *GOOD, "--save", "/no/such/folder/x"], "/no/such/folder"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(capfd: pytest.CaptureFixture[str], ptx: Path, tmp_path: Path, name: str) -> None:
    arguments, message = BAD[name]
    (tmp_path / "text.ptx").write_text("this is no PTX\n")
    (tmp_path / "empty.ptx").write_text(".version 9.0\n.target sm_80\n.address_size 64\n")
    numpy.save(tmp_path / "three.npy", numpy.zeros(3))
    words = {"PTX": ptx, "TEXT": tmp_path / "text.ptx", "EMPTY": tmp_path / "empty.ptx", "FILE": tmp_path / "three.npy"}
    filled = [re.sub("^(.*=)?(PTX|TEXT|EMPTY|FILE)$", lambda m: (m[1] or "") + str(words[m[2]]), a) for a in arguments]
    status, out, err = command(capfd, *filled)
    assert (status, out) == (2, "")
    assert re.search(message, err), err
    assert "Traceback" not in err
    told = [line for line in err.splitlines() if re.match(r"(emulate|\S*emulate.py|\S+): ", line)]
    assert len(told) == 1, err


def test_a_module_is_of_use_after_a_rejection() -> None:
    emulator = Emulator("sm_80")
    with pytest.raises(emulate.EmulatorError):
        emulator.load("nonsense")
    assert emulator.load(KERNELS).names() == ["scale", "ticket", "hangs", "sizes"]
