"""The kernels of this folder: how each is compiled and launched, its input, and the result by numpy.

All data are small integers, or halves and quarters, so that every order of summation gives the same bits.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy
from emulate import Array, Emulator, EmulatorError, Module

HERE = Path(__file__).resolve().parent

F16, U32, E2M1, F32 = 6, 2, 13, 7  # types of a tensor map
NO_SWIZZLE, SWIZZLE_64, SWIZZLE_128 = 0, 2, 3
Arrays = dict[str, numpy.ndarray]


@dataclass(frozen=True)
class Kernel:
    name: str
    source: str
    device: str
    target: str
    data: Callable[[numpy.random.Generator], Arrays]
    expected: Callable[[Arrays], numpy.ndarray]
    launch: Callable[[Emulator, Module, str, Arrays], Array]  # of that entry; gives the array to compare
    options: tuple[str, ...] = ()


# ---- compiling -------------------------------------------------------------------------------------------------------


@functools.cache
def entries(kernel: Kernel) -> dict[str, str]:
    """A module's text for each entry; the compiler's output is kept in the temporary folder, by content."""
    command = ["nvcc", "-ptx", f"-arch={kernel.target}", *kernel.options]
    content = b"\0".join((HERE / name).read_bytes() for name in (kernel.source, "device.cuh"))
    key = hashlib.sha256(" ".join(command).encode() + content).hexdigest()[:20]
    folder = Path(tempfile.gettempdir()) / f"emulator-mutations-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    path = folder / f"{kernel.name}-{key}.ptx"
    if not path.exists():
        made = folder / f"{path.name}.{os.getpid()}"
        done = subprocess.run([*command, "-o", str(made), str(HERE / kernel.source)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{kernel.source} does not compile:\n{done.stderr}")
        made.rename(path)
    head, *parts = re.split(r"^(?=\.visible \.entry )", path.read_text(), flags=re.MULTILINE)
    found = {re.search(r"\.entry (\w+)", part)[1]: part for part in parts}
    first = found.pop("first", "")  # the other grid of a pair
    return {name: head + first + part for name, part in found.items()}


# ---- cp_async_pipeline.cu --------------------------------------------------------------------------------------------


def whole(random: numpy.random.Generator, shape: tuple[int, ...], most: int, dtype: str) -> numpy.ndarray:
    """Whole numbers from -most to most, none of them 0."""
    return (random.integers(1, most + 1, shape) * random.choice([-1, 1], shape)).astype(dtype)


def cp_async_data(random: numpy.random.Generator) -> Arrays:
    return {
        "a": whole(random, (60, 160), 8, "f2"),
        "b": whole(random, (32, 160), 8, "f2"),
        "bias": whole(random, (32,), 99, "f4"),
    }


def cp_async_expected(x: Arrays) -> numpy.ndarray:
    return x["a"].astype("f4") @ x["b"].astype("f4").T + x["bias"]


def cp_async_launch(emulator: Emulator, module: Module, name: str, x: Arrays) -> Array:
    c = emulator.empty((60, 32), "f4")
    arguments = [emulator.array(x[key]) for key in ("a", "b", "bias")]
    emulator.launch(module[name], 1, 128, [*arguments, c], shared=4 * 3072)
    return c


# ---- tma_wgmma_pipeline.cu -------------------------------------------------------------------------------------------


def wgmma_data(random: numpy.random.Generator) -> Arrays:
    return {
        "a": whole(random, (64, 192), 8, "f2"),
        "b": whole(random, (96, 192), 8, "f2"),
        "u": whole(random, (64, 16), 8, "f2"),
        "v": whole(random, (96, 16), 8, "f2"),
        "bias": whole(random, (96,), 99, "f4"),
    }


def wgmma_expected(x: Arrays) -> numpy.ndarray:
    a, b, u, v = (x[key].astype("f4") for key in "abuv")
    return a @ b.T + u @ v.T + x["bias"]


def wgmma_launch(emulator: Emulator, module: Module, name: str, x: Arrays) -> Array:
    a, b, u, v, bias = (emulator.array(x[key]) for key in ("a", "b", "u", "v", "bias"))
    c = emulator.empty((64, 96), "f4")
    swizzle = NO_SWIZZLE if name == "map_without_swizzle" else SWIZZLE_128
    maps = [
        emulator.tensor_map(F16, a, [192, 64], [384], [64, 64], swizzle=swizzle),
        emulator.tensor_map(F16, b, [192, 96], [384], [64, 32], swizzle=swizzle),
        emulator.tensor_map(F32, c, [96, 64], [384], [32, 64]),
    ]
    emulator.launch(module[name], 1, 160, [*maps, u, v, bias], shared=48176)
    return c


# ---- cluster_exchange.cu ---------------------------------------------------------------------------------------------


def cluster_data(random: numpy.random.Generator) -> Arrays:
    return {"x": whole(random, (3, 256), 999, "i4"), "weights": whole(random, (4, 4, 4), 99, "i4")}


def cluster_expected(x: Arrays) -> numpy.ndarray:
    t, taps = numpy.arange(64), numpy.arange(4)
    sums = numpy.zeros((3, 4, 64), "i4")
    for rank in range(4):
        values = x["x"][:, (rank * 64 + 3 * t[:, None] + taps) % 256]  # round, thread, tap
        sums += numpy.einsum("rti,di->rdt", values, x["weights"][rank])
    return sums + 3 * numpy.roll(sums, -1, axis=1)


def cluster_launch(emulator: Emulator, module: Module, name: str, x: Arrays) -> Array:
    y = emulator.empty((3, 4, 64), "i4")
    arguments = [emulator.array(x["x"]), emulator.array(x["weights"]), y]
    emulator.launch(module[name], 4, 64, arguments, shared=2328, cluster=4)
    return y


# ---- block_scaled_tile.cu --------------------------------------------------------------------------------------------

E2M1_WHOLE = {1: 2, 2: 4, 3: 5, 4: 6, 6: 7}  # value: code
SCALES = {0.5: 0x30, 1: 0x38, 1.5: 0x3C, 2: 0x40, 3: 0x44}  # as ue4m3
STEPS, PIECES, TILES, TILE_COLUMNS = 3, 2, 3, 64


def packed(values: numpy.ndarray) -> numpy.ndarray:
    """Two e2m1 numbers a byte."""
    codes = numpy.vectorize(lambda v: E2M1_WHOLE[abs(v)] | (v < 0) << 3)(values).astype(numpy.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4


def atoms(scales: numpy.ndarray, rows: int) -> numpy.ndarray:
    """[blocks of rows, K / 64, 512]: a row's four scales at (row % 32) * 16 + row / 32 * 4; NaN where there is none."""
    codes = numpy.vectorize(SCALES.get)(scales).astype(numpy.uint8)
    out = numpy.full((len(scales) // rows, scales.shape[1] // 4, 512), 0x7F, numpy.uint8)
    for r, row in enumerate(codes):
        block, inside = divmod(r, rows)
        at = inside % 32 * 16 + inside // 32 * 4
        out[block, :, at : at + 4] = row.reshape(-1, 4)
    return out


def block_scaled_data(group: int) -> Callable[[numpy.random.Generator], Arrays]:
    def data(random: numpy.random.Generator) -> Arrays:
        rows, columns, k = 128 * group, TILES * TILE_COLUMNS, STEPS * PIECES * 64
        codes, scales = list(E2M1_WHOLE), list(SCALES)
        return {
            "a": random.choice(codes, (rows, k)) * random.choice([-1, 1], (rows, k)),
            "b": random.choice(codes, (columns, k)) * random.choice([-1, 1], (columns, k)),
            "sfa": random.choice(scales, (rows, k // 16)),
            "sfb": random.choice(scales, (columns, k // 16)),
            "c": whole(random, (rows, columns), 999, "f4"),
        }

    return data


def block_scaled_expected(x: Arrays) -> numpy.ndarray:
    a = x["a"] * numpy.repeat(x["sfa"], 16, axis=1)
    b = x["b"] * numpy.repeat(x["sfb"], 16, axis=1)
    return (x["c"] + a @ b.T).astype("f4")


def block_scaled_launch(group: int) -> Callable[[Emulator, Module, str, Arrays], Array]:
    def launch(emulator: Emulator, module: Module, name: str, x: Arrays) -> Array:
        rows, columns, k = 128 * group, TILES * TILE_COLUMNS, STEPS * PIECES * 64
        a, b = emulator.array(packed(x["a"])), emulator.array(packed(x["b"]))
        sfa = emulator.array(atoms(x["sfa"], 128))
        sfb = emulator.array(atoms(x["sfb"], TILE_COLUMNS))
        c = emulator.array(x["c"])
        swizzle = NO_SWIZZLE if name == "map_without_swizzle" else SWIZZLE_64
        maps = [
            emulator.tensor_map(E2M1, a, [k, rows], [k // 2], [128, 128], swizzle=swizzle),
            emulator.tensor_map(E2M1, b, [k, columns], [k // 2], [128, TILE_COLUMNS // group], swizzle=swizzle),
            emulator.tensor_map(U32, sfa, [128, group * STEPS * PIECES], [512], [128, PIECES]),
        ]
        shared = 3 * (8192 + 4096 // group + 2 * 1024) + 132
        emulator.launch(module[name], group, 256, [*maps, sfb, c], shared=shared, cluster=group if group == 2 else None)
        return c

    return launch


# ---- dependent_grids.cu ----------------------------------------------------------------------------------------------


def dependent_data(random: numpy.random.Generator) -> Arrays:
    return {"x": whole(random, (384,), 9999, "i4")}


def dependent_expected(x: Arrays) -> numpy.ndarray:
    y = 2 * x["x"] + 1
    return y[::-1] + y


def dependent_launch(emulator: Emulator, module: Module, name: str, x: Arrays) -> Array:
    values, y, z = emulator.array(x["x"]), emulator.empty(384, "i4"), emulator.empty(384, "i4")
    emulator.launch(module["first"], 6, 64, [values, y], wait=False)
    emulator.launch(module[name], 6, 64, [values, y, z], programmatic=True)
    return z


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel(
            "cp_async_pipeline", "cp_async_pipeline.cu", "sm_80", "sm_80", cp_async_data, cp_async_expected,
            cp_async_launch,
        ),
        Kernel(
            "tma_wgmma_pipeline", "tma_wgmma_pipeline.cu", "sm_90", "sm_90a", wgmma_data, wgmma_expected, wgmma_launch
        ),
        Kernel(
            "cluster_exchange", "cluster_exchange.cu", "sm_90", "sm_90a", cluster_data, cluster_expected, cluster_launch
        ),
        Kernel(
            "block_scaled_tile", "block_scaled_tile.cu", "sm_100", "sm_100a", block_scaled_data(1),
            block_scaled_expected, block_scaled_launch(1), ("-DGROUP=1",),
        ),
        Kernel(
            "block_scaled_pair", "block_scaled_tile.cu", "sm_100", "sm_100a", block_scaled_data(2),
            block_scaled_expected, block_scaled_launch(2), ("-DGROUP=2",),
        ),
        Kernel(
            "dependent_grids", "dependent_grids.cu", "sm_90", "sm_90a", dependent_data, dependent_expected,
            dependent_launch,
        ),
    )
}  # fmt: skip

# ---- running ---------------------------------------------------------------------------------------------------------


class Runner:
    """One entry, with one input, on as many seeds as are asked for."""

    def __init__(self, kernel: Kernel, name: str, random: numpy.random.Generator, **settings: str | int) -> None:
        self.kernel, self.name, self.settings = kernel, name, settings
        self.text = entries(kernel)[name]
        self.input = kernel.data(random)
        self.expected = kernel.expected(self.input)

    def outcome(self, seed: int) -> str:
        """What is wrong: the emulator's message, or how the result differs; empty: nothing."""
        emulator = Emulator(self.kernel.device, seed, **self.settings)
        module = emulator.load(self.text)
        try:
            result = self.kernel.launch(emulator, module, self.name, self.input)
            found = result.numpy()
        except EmulatorError as error:
            return str(error)
        wrong = int((found != self.expected).sum())
        return f"different result: {wrong} of {found.size} elements" if wrong else ""
