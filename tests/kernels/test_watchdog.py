"""The debug build's watchdog: a wait that does not end is recorded and put into words, and the release build contains
none of it."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy
import pytest
from emulate import Emulator, EmulatorError, build
from harness import watchdog
from harness.launch import Generator, compile_ptx
from paths import CSRC, EMULATOR, KERNELS, ROOT, SUPPORT
from sm90.gemm import CONFIGS, Product

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

MAIN_LOOP = "kernels/sm90/mainloop.cuh"  # in place of its include, so that a bug can be put into it
GEMM = (CSRC / "kernels/sm90/gemm.cu").read_text().replace(f'#include "{MAIN_LOOP}"\n', (CSRC / MAIN_LOOP).read_text())
CONFIG = CONFIGS["sm90_gemm_128x8"]
ARRIVE = "mbarrier_arrive(cta.full(state.index));"
RELEASE = "if (group == 0 && k > cta.k_begin) mbarrier_arrive(previous_empty);"


def lines_of(text: str) -> set[str]:
    """The lines of the kernel's source that have the text, as messages name them."""
    return {f"gemm.cu:{i}" for i, line in enumerate(GEMM.split("\n"), 1) if text in line}


WAIT_EMPTY, WAIT_FULL = lines_of("mbarrier_wait(cta.empty("), lines_of("mbarrier_wait(cta.full(")
WAIT_CLUSTER = lines_of("barrier_cluster_wait()")


# --- without the flag -----------------------------------------------------------------------------------------------

HOOKS = (
    (r"#ifdef NVFP4_WATCHDOG\n.*?#else\n(.*?)#endif\n", r"\1"),
    (r'#include "kernels/common/watchdog.cuh"\n', ""),
    (r"(, )?wait_site site = WAIT_SITE", ""),
    (", site\\)", ")"),
    (r" *(RECORD_BLOCKED\(\w+\)|\(void\)site);\n", ""),
)


def without_hooks(text: str) -> str:
    for hook, instead in HOOKS:
        text = re.sub(hook, instead, text, flags=re.S)
    return text


def ptx_of_waits(folder: Path, include: Path, *options: str) -> str:
    made = folder / "waits.ptx"
    command = ["nvcc", "-ptx", "-arch=compute_90a", f"-I{include}", *options, "-o", made, KERNELS / "waits.cu"]
    subprocess.run(command, check=True)
    return made.read_text()


def test_without_the_flag_the_code_is_the_same(tmp_path: Path) -> None:
    """Equal PTX gives equal machine code: ptxas has no other input. No other file has code for the flag, so what holds
    for each wait holds for all kernels."""
    common, bare = CSRC / "kernels/common", tmp_path / "bare/kernels/common"
    bare.mkdir(parents=True)
    hooked = {path.name for path in common.iterdir() if "WATCHDOG" in path.read_text()}
    for path in common.iterdir():
        if not path.name.startswith("watchdog"):
            (bare / path.name).write_text(without_hooks(path.read_text()))
            assert not re.search("watchdog|wait_site", (bare / path.name).read_text(), re.I)
    assert hooked == {"watchdog.h", "watchdog.cuh", "cluster.cuh", "flags.cuh", "mbarrier.cuh"}
    assert not any("WATCHDOG" in path.read_text() for path in (CSRC / "kernels").glob("*/*") if path.parent != common)
    plain = ptx_of_waits(tmp_path, tmp_path / "bare")
    assert ptx_of_waits(tmp_path, CSRC) == plain
    assert ptx_of_waits(tmp_path, CSRC, "-DNVFP4_WATCHDOG") != plain


def test_every_wait_has_a_hook() -> None:
    """No kernel has an instruction that waits outside the functions with hooks."""
    waits = r"mbarrier\.(try|test)_wait|barrier\.cluster\.wait|griddepcontrol\.wait|ld\.acquire"
    with_asm = {
        path.name
        for path in CSRC.glob("kernels/**/*.cu*")
        if any(re.search(waits, line) and '"' in line for line in path.read_text().splitlines())
    }
    assert with_asm == {"cluster.cuh", "flags.cuh", "mbarrier.cuh"}


# --- on the emulated H200 -------------------------------------------------------------------------------------------


def describe(record: numpy.ndarray) -> tuple[int, str]:
    return watchdog.describe(record.ctypes.data)


class Watched:
    """One instantiation of sm90/gemm.cu with the watchdog and a bug, on an emulated H200."""

    def __init__(self, folder: Path, *bug: tuple[str, str], limit: int = 100000) -> None:
        text = GEMM
        for old, new in (("SM90_GEMM_CONFIGS(KERNEL)", f"KERNEL({CONFIG.row})"), *bug):
            assert old in text
            text = text.replace(old, new)
        source = folder / "gemm.cu"
        source.write_text(text)
        self.emulator = Emulator("sm_90")
        self.module = self.emulator.load(compile_ptx(source, "sm90", "-DNVFP4_WATCHDOG"))
        self.record = self.emulator.array(numpy.zeros(watchdog.record_bytes(), numpy.uint8))
        self.set_state(watchdog.State(self.record.address, limit, 0))

    def set_state(self, state: watchdog.State) -> None:
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        found = (ctypes.byref(address), ctypes.byref(size), self.module.handle, b"nvfp4_watchdog")
        self.emulator.call("cuModuleGetGlobal_v2", *found)
        assert size.value == ctypes.sizeof(watchdog.State)
        self.emulator.call("cuMemcpyHtoD_v2", address, bytes(state), ctypes.c_size_t(ctypes.sizeof(watchdog.State)))

    def run(self, random: Generator, stages: int, split_k: int = 1) -> tuple[int, str]:
        """Returns what the record says after a launch."""
        product = Product(self.emulator, random, 8, 128, stages * 128)
        expected = product.expected()
        product.launch(self.module, CONFIG, split_k=split_k, in_stages=split_k > 1)
        product.check(expected)
        return describe(self.record.numpy())


def test_a_right_product_records_nothing(tmp_path: Path, random: Generator) -> None:
    watched = Watched(tmp_path)
    assert watched.run(random, 3 * CONFIG.stages) == (0, "")
    assert watched.run(random, 3, split_k=3) == (0, "")


def test_an_mbarrier_that_is_never_completed(tmp_path: Path, random: Generator) -> None:
    """The math warps do not release stages: others wait to fill them again."""
    watched = Watched(tmp_path, (RELEASE, ""))
    with pytest.raises(EmulatorError, match="trap"):
        watched.run(random, 3 * CONFIG.stages)
    places, text = describe(watched.record.numpy())
    one = r"(gemm.cu:\d+): CTA \(0, 0\), warp (\d+): the mbarrier at shared address 0x\w+, parity [01], after \d+ polls"
    found = re.findall(one, text)
    assert len(found) == places > 0
    assert all(int(warp) < CONFIG.threads // 32 for _, warp in found)
    assert {place for place, _ in found} <= WAIT_EMPTY | WAIT_FULL and {place for place, _ in found} & WAIT_EMPTY


def test_warps_blocked_in_an_instruction(tmp_path: Path, random: Generator) -> None:
    """mma_b's stages never become full. The math warps give up; the others are at the end, in barrier.cluster.wait."""
    watched = Watched(tmp_path, (ARRIVE, ""))
    with pytest.raises(EmulatorError, match="trap"):
        watched.run(random, 4, split_k=2)
    places, text = describe(watched.record.numpy())
    expired, blocked = text.split("; ")
    assert places == 2
    assert expired.split(": ")[0] in WAIT_FULL and "mbarrier" in expired
    assert blocked.split(": ")[0] in WAIT_CLUSTER and "barrier.cluster.wait" in blocked and "more there" in blocked


def test_without_a_record_nothing_gives_up(tmp_path: Path, random: Generator) -> None:
    """A module that the host has not told where to record: the emulator reports the deadlock."""
    watched = Watched(tmp_path, (RELEASE, ""), limit=1)
    watched.set_state(watchdog.State(0, 1, 0))
    with pytest.raises(EmulatorError, match="deadlock"):
        watched.run(random, 3 * CONFIG.stages)


ON_HARDWARE = """
import sys
from pathlib import Path
from emulate import EmulatorError
from harness import hardware
hardware.WATCHDOG_CLOCKS = 20000
gpu = hardware.Hardware()
kernel = gpu.load(Path(sys.argv[1]).read_text())["hang"]
try:
    gpu.launch(kernel, 1, 1, [], 0)
    gpu.synchronize()
except EmulatorError as error:
    print(error)
"""


def test_the_harness_for_hardware_names_the_wait(tmp_path: Path) -> None:
    """harness/hardware.py, with the emulated driver as libcuda."""
    made = tmp_path / "hang.ptx"
    options = ["-ptx", "-arch=compute_90a", f"-I{CSRC}", "-DNVFP4_WATCHDOG"]
    subprocess.run(["nvcc", *options, "-o", made, KERNELS / "hang.cu"], check=True)
    paths = os.pathsep.join(map(str, (KERNELS, EMULATOR, SUPPORT)))
    environment = os.environ | {"PYTHONPATH": paths, "LD_LIBRARY_PATH": str(build().parent), "EMULATE_DEVICE": "sm_90"}
    done = subprocess.run(
        [sys.executable, "-c", ON_HARDWARE, made], env=environment, capture_output=True, text=True, timeout=60
    )
    assert re.search(r"It waits at hang\.cu:8: CTA \(0, 0\), warp 0: the mbarrier at shared address 0x", done.stdout), (
        done.stdout + done.stderr
    )


# --- the host's part, on a libcuda that runs nothing ----------------------------------------------------------------

CALL = """
import numpy as np, nvfp4
e4m3 = np.zeros((128, 4), np.uint8)
data = np.zeros((16, 32), np.uint8)
try:
    nvfp4.gemm(data, data, e4m3, e4m3, out=np.zeros((16, 16), np.float16), backend="sm90")
    print("ended")
except nvfp4.Error as error:
    print(error)
"""


@pytest.fixture(scope="module")
def debug_build(empty_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a package whose module is built with NVFP4_WATCHDOG and without device code."""
    folder = tmp_path_factory.mktemp("debug")
    package = folder / "nvfp4"
    package.mkdir()
    for path in (ROOT / "nvfp4").glob("*.py"):
        (package / path.name).symlink_to(path)
    flags = [
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fPIC",
        "-fvisibility=hidden",
        "-DNVFP4_CUDA",
        "-DNVFP4_WATCHDOG",
    ]
    flags += ["-DPy_LIMITED_API=0x030A0000", f"-I{CSRC}", f"-I{empty_images}", f"-I{sysconfig.get_paths()['include']}"]
    sources = map(str, CSRC.glob("**/*.c"))
    libraries = ["-lm", "-ldl", "-lpthread"]
    subprocess.run(["gcc", "-shared", *flags, *sources, "-o", package / "_C.abi3.so", *libraries], check=True)
    return folder


def message(debug_build: Path, fake_driver: Path, **variables: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(debug_build), "NVFP4_LIBCUDA": str(fake_driver), **variables}
    done = subprocess.run(
        [sys.executable, "-c", CALL], env=environment, cwd=debug_build, capture_output=True, text=True, timeout=60
    )
    said = done.stdout.strip()
    assert done.returncode == 0 and done.stderr == (f"nvfp4: {said}\n" if "It waits" in said else ""), done.stderr
    return said


def test_calls_wait_for_their_kernels(debug_build: Path, fake_driver: Path) -> None:
    assert message(debug_build, fake_driver) == "ended"
    assert message(debug_build, fake_driver, FAKE_CAPTURES="1", FAKE_QUERY="719") == "ended"  # asks nothing


def test_messages_name_the_wait(debug_build: Path, fake_driver: Path) -> None:
    flag = "the flag at 0x40, 5 of 6 arrivals after 4 polls"
    wait = rf"nvfp4_sm90_\w+ {{}}. It waits at some.cu:7: CTA \(1, 2\), warp 3: {flag}"
    said = message(debug_build, fake_driver, FAKE_QUERY="719", FAKE_WAIT="1")
    assert re.fullmatch(wait.format(r"failed: fake error \(719\)"), said), said
    said = message(debug_build, fake_driver, FAKE_QUERY="600", FAKE_WAIT="1", NVFP4_WATCHDOG_SECONDS="1")
    assert re.fullmatch(wait.format("has not ended after 1 s"), said), said
    said = message(debug_build, fake_driver, FAKE_QUERY="719")
    assert said == "the stream failed: fake error (719); no wait of our kernels is recorded"


@pytest.mark.parametrize("entry", ["cuLibraryGetGlobal", "cuMemcpyHtoD", "cuMemHostAlloc", "cuStreamIsCapturing"])
def test_refusals(entry: str, debug_build: Path, fake_driver: Path) -> None:
    said = message(debug_build, fake_driver, FAKE_FAIL=entry)
    assert said.startswith("the CUDA driver refused ") and said.endswith("fake error (999)")
