#!/usr/bin/env python3
"""Runs PTX on the CPU: a Python interface of the emulated CUDA driver, and a command line.

    emulator = Emulator("sm_90", seed=7)
    kernel = emulator.load(ptx_text)["scale"]
    x = emulator.array(numpy.arange(32, dtype=numpy.float32))
    emulator.launch(kernel, grid=1, block=32, args=[x, 2.0])
    print(x.numpy())

Arguments are bound by the kernel's own parameters: an Array passes its address, bytes pass as they are (a tensor map),
an int or a float is converted to the parameter's type. There is one emulated device a process: a second Emulator sets
it up anew.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import functools
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy

HERE = Path(__file__).resolve().parent
DEVICES = ("sm_80", "sm_90", "sm_100", "sm_120")


class EmulatorError(RuntimeError):
    """A fault, a deadlock or a rejected call, with the emulator's message."""


def build() -> Path:
    """Compiles what has changed, into EMULATE_BUILD (emulator/build); returns the path of libcuda.so.1. After `make
    install` the library lies beside this file."""
    if (HERE / "libcuda.so.1").exists():
        return HERE / "libcuda.so.1"
    return build_in(Path(os.environ.get("EMULATE_BUILD", HERE / "build")).resolve())


@functools.cache  # a make that has nothing to do takes 50 ms, and tests make thousands of Emulators
def build_in(folder: Path) -> Path:
    """Processes that want it at once take turns."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            ["make", "-s", "-j2", "-C", str(HERE), f"BUILD={folder}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    if done.returncode != 0:
        raise EmulatorError(f"the emulator does not build:\n{done.stdout.decode()}")
    return folder / "libcuda.so.1"


class Array:
    """Device memory, which is host memory: numpy() is a view of it, valid while this object lives."""

    def __init__(self, emulator: Emulator, shape: tuple[int, ...], dtype: numpy.dtype) -> None:
        self._emulator = emulator
        self.shape, self.dtype = shape, dtype
        self.nbytes = int(numpy.prod(shape, dtype=numpy.int64)) * dtype.itemsize
        pointer = ctypes.c_uint64()
        emulator.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(self.nbytes, 1)))
        self.address = pointer.value

    def numpy(self) -> numpy.ndarray:
        self._emulator.synchronize()
        buffer = (ctypes.c_uint8 * self.nbytes).from_address(self.address)
        return numpy.frombuffer(buffer, dtype=numpy.uint8).view(self.dtype).reshape(self.shape)

    def free(self) -> None:
        if self.address:
            self._emulator.library.cuMemFree_v2(ctypes.c_uint64(self.address))
            self.address = 0

    def __del__(self) -> None:
        self.free()


class Kernel:
    """An entry of a module, with the size of each parameter and the type that the text gives it ("" for an array)."""

    def __init__(self, emulator: Emulator, module: Module, name: str) -> None:
        self.emulator, self.module, self.name = emulator, module, name
        self.handle = ctypes.c_void_p()
        code = emulator.library.cuModuleGetFunction(ctypes.byref(self.handle), module.handle, name.encode())
        if code:
            raise KeyError(f"the module has no entry {name}")
        self.sizes: list[int] = []
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        while not emulator.library.cuFuncGetParamInfo(
            self.handle, ctypes.c_size_t(len(self.sizes)), ctypes.byref(offset), ctypes.byref(size)
        ):
            self.sizes.append(size.value)
        emulator.library.emulator_parameter_type.restype = ctypes.c_char_p
        self.types = [
            emulator.library.emulator_parameter_type(self.handle, ctypes.c_size_t(i)).decode()
            for i in range(len(self.sizes))
        ]


class Module:
    def __init__(self, emulator: Emulator, handle: ctypes.c_void_p) -> None:
        self._emulator, self.handle = emulator, handle

    def __getitem__(self, name: str) -> Kernel:
        return Kernel(self._emulator, self, name)

    def names(self) -> list[str]:
        """The entries, in the order of the text."""
        library, count, text = self._emulator.library, ctypes.c_uint32(), ctypes.c_char_p()
        library.cuModuleGetFunctionCount(ctypes.byref(count), self.handle)
        handles = (ctypes.c_void_p * count.value)()
        library.cuModuleEnumerateFunctions(handles, count, self.handle)
        names = []
        for handle in handles:
            library.cuFuncGetName(ctypes.byref(text), ctypes.c_void_p(handle))
            names.append((text.value or b"").decode())
        return names

    def __del__(self) -> None:
        self._emulator.library.cuModuleUnload(self.handle)


class LaunchAttribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint32 * 16)]


class LaunchConfig(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("count", ctypes.c_uint32),
    ]


CLUSTER_DIMENSION, PROGRAMMATIC = 4, 6  # CUlaunchAttributeID


def three(value: int | Sequence[int]) -> tuple[int, int, int]:
    values = (value,) if isinstance(value, int) else tuple(value)
    x, y, z = values + (1,) * (3 - len(values))
    return x, y, z


def pack(value: Any, size: int, kind: str = "") -> bytes:
    """The bytes of one argument of that size, for a parameter of a type of PTX."""
    if isinstance(value, Array):
        return struct.pack("<Q", value.address)
    if isinstance(value, (bytes, bytearray)):
        if len(value) != size:
            raise ValueError(f"an argument of {len(value)} bytes for a parameter of {size}")
        return bytes(value)
    if isinstance(value, numpy.generic):
        return value.tobytes()
    if isinstance(value, float) or kind.startswith("f"):
        if kind[:1] in ("u", "s") or size not in (2, 4, 8):
            raise ValueError(f"{value} for a parameter of type .{kind}, which is an integer")
        return struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], value)
    return (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")


class Emulator:
    """The emulated driver, set to a device and a seed. Other settings by name: arithmetic, fences, lanes, trace,
    tmem_base, host_memory, quiet (see README.md). EMULATE_LANES sets the default of lanes."""

    def __init__(
        self, device: str = "sm_100", seed: int = 0, library: Path | str | None = None, **settings: str | int
    ) -> None:
        self.library = ctypes.CDLL(str(library or build()))
        self.library.emulator_error.restype = ctypes.c_char_p
        self.library.emulator_reset()
        defaults = {
            "arithmetic": "hardware",
            "fences": "text",
            "lanes": os.environ.get("EMULATE_LANES", "together"),
            "tmem_base": 0,
            "host_memory": 0,
            "quiet": 1,
            "trace": "",
        }
        for name, value in {"device": device, **defaults, "seed": seed, **settings}.items():
            self.set(name, value)
        self.call("cuInit", 0)

    def set(self, name: str, value: str | int) -> None:
        """Changes a setting by the name that its EMULATE_ variable has, in lower case; from the next launch on."""
        if self.library.emulator_configure(name.encode(), str(value).encode()):
            raise EmulatorError(self.error())

    def error(self) -> str:
        return self.library.emulator_error().decode()

    def call(self, name: str, *arguments: Any) -> None:
        """A driver call; raises with the emulator's message and forgets the fault."""
        code = getattr(self.library, name)(*arguments)
        if code:
            message = self.error()
            self.library.emulator_reset()
            raise EmulatorError(message or f"{name}: error {code}")

    def load(self, ptx: str | bytes | Path) -> Module:
        """PTX as text, a fat binary as bytes, or a file of either; every instruction is checked here."""
        handle = ctypes.c_void_p()
        if isinstance(ptx, Path):
            self.call("cuModuleLoad", ctypes.byref(handle), str(ptx).encode())
        else:
            text = ptx.encode() if isinstance(ptx, str) else ptx
            self.call("cuModuleLoadData", ctypes.byref(handle), ctypes.c_char_p(text))
        return Module(self, handle)

    def array(self, data: numpy.ndarray | Sequence[Any]) -> Array:
        """Device memory of that shape and type with a copy of the data."""
        values = numpy.ascontiguousarray(data)
        made = Array(self, values.shape, values.dtype)
        made.numpy()[...] = values
        return made

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        """Poisoned: every byte is 0xff."""
        return Array(self, (shape,) if isinstance(shape, int) else shape, numpy.dtype(dtype))

    def launch(
        self,
        kernel: Kernel,
        grid: int | Sequence[int] = 1,
        block: int | Sequence[int] = 32,
        args: Iterable[Any] = (),
        shared: int = 0,
        cluster: int | Sequence[int] | None = None,
        programmatic: bool = False,
        wait: bool = True,
    ) -> None:
        """Queues a kernel and, by default, runs the queue.

        Args:
            grid, block, cluster: x, (x, y) or (x, y, z); the grid and the cluster in blocks, the block in threads.
            args: one value for each parameter of the kernel (see the top of this file).
            shared: bytes of dynamic shared memory.
            programmatic: may begin when the kernel before it says griddepcontrol.launch_dependents.
            wait: False leaves it queued, so that the next one can overlap with it, until synchronize().

        Raises:
            EmulatorError: the launch was rejected, or something faulted while running.
        """
        values = list(args)
        if len(values) != len(kernel.sizes):
            raise ValueError(f"{kernel.name} takes {len(kernel.sizes)} arguments, {len(values)} are given")
        packed = map(pack, values, kernel.sizes, kernel.types)
        buffers = [ctypes.create_string_buffer(data, len(data)) for data in packed]
        pointers = (ctypes.c_void_p * max(len(buffers), 1))(*[ctypes.addressof(b) for b in buffers])
        attributes = (LaunchAttribute * 2)()
        count = 0
        if cluster is not None:
            attributes[count].id = CLUSTER_DIMENSION
            attributes[count].value[0:3] = list(three(cluster))
            self.library.cuFuncSetAttribute(kernel.handle, 14, 1)  # NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            count += 1
        if programmatic:
            attributes[count].id = PROGRAMMATIC
            attributes[count].value[0] = 1
            count += 1
        if shared > 48 * 1024:
            self.call("cuFuncSetAttribute", kernel.handle, 8, shared)  # MAX_DYNAMIC_SHARED_SIZE_BYTES
        config = LaunchConfig(
            (ctypes.c_uint32 * 3)(*three(grid)), (ctypes.c_uint32 * 3)(*three(block)), shared, None, attributes, count
        )
        self.call("cuLaunchKernelEx", ctypes.byref(config), kernel.handle, pointers, None)
        if wait:
            self.synchronize()

    def synchronize(self) -> None:
        """Runs the queue to its end; raises EmulatorError with the message of a fault."""
        self.call("cuCtxSynchronize")

    def tensor_map(
        self,
        kind: int,
        array: Array,
        dims: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        element_strides: Sequence[int] | None = None,
        interleave: int = 0,
        swizzle: int = 0,
        promotion: int = 0,
        fill: int = 0,
    ) -> bytes:
        """cuTensorMapEncodeTiled: `kind` and the other codes are those of the driver API; strides are in bytes."""
        rank = len(dims)
        made = ctypes.create_string_buffer(128 + 64)
        aligned = (ctypes.addressof(made) + 63) // 64 * 64
        self.call(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(aligned),
            kind,
            ctypes.c_uint32(rank),
            ctypes.c_void_p(array.address),
            (ctypes.c_uint64 * rank)(*dims),
            (ctypes.c_uint64 * max(rank - 1, 1))(*strides),
            (ctypes.c_uint32 * rank)(*box),
            (ctypes.c_uint32 * rank)(*(element_strides or [1] * rank)),
            interleave,
            swizzle,
            promotion,
            fill,
        )
        return ctypes.string_at(aligned, 128)


# ---- command line ---------------------------------------------------------------------------------------------------

DTYPES = {
    "u8": "u1", "u16": "u2", "u32": "u4", "u64": "u8", "s8": "i1", "s16": "i2", "s32": "i4", "s64": "i8",
    "f16": "f2", "f32": "f4", "f64": "f8",
}  # fmt: skip
ARGUMENT = """\
an argument, in the kernel's order; repeat it:
  32, -1, 2.5          a number, converted to the parameter's type
  f32[1024]=random     device memory of that type: random, zeros, poison or a range (0, 1, 2 ...)
  f32[64]=x.npy        device memory with a file's content
types: """ + " ".join(DTYPES)


def parse_argument(text: str, emulator: Emulator, random: numpy.random.Generator) -> Any:
    memory = re.fullmatch(r"(\w+)\[(\d+)\]=(.+)", text)
    if not memory:
        try:
            return int(text, 0)
        except ValueError:
            pass
        try:
            return float(text)
        except ValueError:
            raise EmulatorError(f"--arg {text}: is neither a number nor TYPE[COUNT]=CONTENT") from None
    kind, length, source = memory[1], int(memory[2]), memory[3]
    if kind not in DTYPES:
        raise EmulatorError(f"--arg {text}: {kind} is no type; there are {' '.join(DTYPES)}")
    dtype = numpy.dtype(DTYPES[kind])
    if source == "poison":
        return emulator.empty(length, dtype)
    if source == "zeros":
        return emulator.array(numpy.zeros(length, dtype))
    if source == "range":
        return emulator.array(numpy.arange(length).astype(dtype))
    if source == "random":
        values = random.standard_normal(length) if dtype.kind == "f" else random.integers(0, 256, length)
        return emulator.array(values.astype(dtype))
    try:
        loaded = numpy.load(source).astype(dtype, copy=False).reshape(-1)
    except (OSError, ValueError) as error:
        raise EmulatorError(f"--arg {text}: {source} is no array of numbers: {error}") from None
    if loaded.size != length:
        raise EmulatorError(f"--arg {text}: {source} has {loaded.size} elements")
    return emulator.array(loaded)


def numbers(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(,\d+){0,2}", text):
        raise argparse.ArgumentTypeError(f"{text} is not x, x,y or x,y,z")
    return tuple(int(part) for part in text.split(","))


def seeds(text: str) -> list[int]:
    found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text)
    if not found or int(found[2] or found[1]) < int(found[1]):
        raise argparse.ArgumentTypeError(f"{text} is neither a number nor first..last")
    return list(range(int(found[1]), int(found[2] or found[1]) + 1))


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one message, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"emulate: {message}\n")


def run(options: argparse.Namespace) -> int:
    if options.save and not Path(f"{options.save}0.npy").parent.is_dir():
        raise EmulatorError(f"--save {options.save}: there is no such folder")
    outcomes: dict[tuple[bytes, ...], list[int]] = {}
    arrays: list[Array] = []
    for seed in options.seed:
        emulator = Emulator(
            options.device,
            seed,
            arithmetic=options.arithmetic,
            fences=options.fences,
            lanes=options.lanes,
            tmem_base=options.tmem_base,
            trace=options.trace or "",
        )
        module = emulator.load(options.ptx)
        names = module.names()
        if not names:
            raise EmulatorError(f"{options.ptx} has no entry")
        kernel = module[options.kernel or names[0]]
        random = numpy.random.default_rng(options.data_seed)
        arguments = [parse_argument(text, emulator, random) for text in options.arg]
        emulator.launch(kernel, options.grid, options.block, arguments, options.shared, options.cluster)
        arrays = [value for value in arguments if isinstance(value, Array)]
        outcomes.setdefault(tuple(a.numpy().tobytes() for a in arrays), []).append(seed)
    for index, array in enumerate(arrays):
        values = array.numpy()
        print(
            f"memory {index}: {values.dtype}{list(values.shape)} {numpy.array2string(values, threshold=options.show)}"
        )
        if options.save:
            numpy.save(f"{options.save}{index}.npy", values)
    if len(outcomes) > 1:
        print(f"{len(outcomes)} different results, of seeds " + "; ".join(map(str, outcomes.values())))
        return 1
    if len(options.seed) > 1:
        print(f"the same result with each of {len(options.seed)} seeds")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(
        prog="emulate.py",
        description="Runs a kernel from a file of PTX on an emulated GPU.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("ptx", type=Path, help="file of PTX (nvcc -ptx), or of a fat binary with PTX inside")
    parser.add_argument("--kernel", help="entry to launch (the first in the file)")
    parser.add_argument("--list", action="store_true", help="print the entries and stop")
    parser.add_argument("--arg", action="append", default=[], help="see below")
    parser.add_argument("--grid", type=numbers, default=(1,), help="x,y,z in blocks")
    parser.add_argument("--block", type=numbers, default=(32,), help="x,y,z in threads")
    parser.add_argument("--cluster", type=numbers, help="x,y,z in blocks")
    parser.add_argument("--shared", type=int, default=0, help="bytes of dynamic shared memory")
    parser.add_argument("--device", choices=DEVICES, default="sm_100")
    parser.add_argument("--seed", type=seeds, default=[0], help="order of events: N, or first..last to compare results")
    parser.add_argument("--data-seed", type=int, default=0, help="of random arguments")
    parser.add_argument("--arithmetic", choices=("hardware", "fp64"), default="hardware")
    parser.add_argument("--fences", choices=("text", "hardware"), default="text")
    parser.add_argument(
        "--lanes",
        choices=("together", "apart"),
        default=os.environ.get("EMULATE_LANES", "together"),
        help="apart: lanes of a warp wait for each other only where PTX says so",
    )
    parser.add_argument("--tmem-base", type=int, default=0, help="first column of tensor memory that is handed out")
    parser.add_argument("--trace", help="write counts and a timeline to this file, as JSON")
    parser.add_argument("--save", help="write device memory to <SAVE>0.npy ... afterwards")
    parser.add_argument("--show", type=int, default=16, help="print arrays in full up to this many elements")
    parser.epilog = ARGUMENT
    options = parser.parse_args(argv)
    try:
        if options.list:
            print("\n".join(Emulator(options.device).load(options.ptx).names()))
            return 0
        return run(options)
    except KeyError as error:  # whose text is in quotes
        print(f"emulate: {error.args[0]}", file=sys.stderr)
    except (EmulatorError, ValueError, OSError, OverflowError) as error:
        print(f"emulate: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
