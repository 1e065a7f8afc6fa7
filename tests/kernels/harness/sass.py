#!/usr/bin/env python3
"""Reads the SASS of a backend's kernels from the installed module by NVIDIA's disassembler. Run as a program it prints
one row a kernel:

    python tests/kernels/harness/sass.py [nvfp4_sm90_gemm_ [nvfp4/_C.abi3.so | file.cubin]]
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from paths import ROOT

sys.path.append(str(ROOT / "build_backend"))

import nvfp4_cuda  # noqa: E402  (it lies in build_backend)

NEEDS = "needs nvdisasm and cuobjdump (wheels nvidia-cuda-nvdisasm and nvidia-cuda-cuobjdump, in the extra `test`)"


def tool(name: str) -> Path | None:
    """The path of a tool in NVIDIA's wheels."""
    places = (Path(entry, "nvidia", "cu13", "bin", name) for entry in sys.path)
    return next((path for path in places if path.is_file()), None)


def _missing() -> bool:
    return not (tool("nvdisasm") and tool("cuobjdump"))


def output_of(name: str, *arguments: str, folder: Path | None = None) -> str:
    path = tool(name)
    if path is None:
        raise FileNotFoundError(NEEDS)
    done = subprocess.run([path, *arguments], capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"{name} {' '.join(arguments)}: {done.stderr or done.stdout}")
    return done.stdout


def images(data: bytes, arch: str = "") -> list[Path]:
    """The images of the build in build/cuda that a file's content has."""
    found = [path for path in sorted((ROOT / "build/cuda").glob(f"*.{arch}*")) if path.suffix not in (".key", ".inc")]
    return [path for path in found if path.read_bytes() in data]


def cubins(data: bytes, folder: Path) -> Iterator[Path]:
    """Unpacks the machine code in a module's content into the folder; a cubin's name is FILE.ARCH.cubin."""
    for image in images(data, "sm_"):
        cubin = folder / f"{image.name}.cubin"
        cubin.write_bytes(nvfp4_cuda.unpacked(image))
        yield cubin


def find_cubin(source: Path, folder: Path, prefix: str, arch: str = "sm_") -> Path:
    """A cubin of that architecture with those kernels. A file that is a cubin is returned as it is."""
    data = source.read_bytes()
    if source.suffix == ".cubin":
        return source
    for cubin in cubins(data, folder):
        if f".{arch}" in cubin.name and prefix.encode() in cubin.read_bytes():
            return cubin
    raise LookupError(f"{source} contains no SASS of {prefix}*")


needed = pytest.mark.skipif(_missing(), reason=NEEDS)


@dataclass(frozen=True)
class Instruction:
    address: int
    guard: str  # @!P0, or nothing
    opcode: str
    operands: str

    @property
    def target(self) -> str | None:
        found = re.search(r"`\((\.L_\w+)\)", self.operands)
        return found[1] if found and self.opcode.startswith("BRA") else None

    @property
    def always(self) -> bool:
        """Whether it is an unconditional branch."""
        return self.opcode == "BRA" and not self.guard and not re.match(r"!?U?P\d", self.operands)


@dataclass
class Kernel:
    name: str
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)  # to the index of the following instruction
    registers: int = 0
    stack: int = 0
    local: int = 0

    def all(self, pattern: str) -> list[Instruction]:
        return [i for i in self.code if re.match(pattern, i.opcode)]

    def paths(self, first: int, last: int) -> Iterator[list[Instruction]]:
        """Every path from the loop head to its back edge that repeats no instruction and stays inside."""
        stack: list[tuple[int, tuple[int, ...]]] = [(first, ())]
        while stack:
            at, path = stack.pop()
            while True:
                path += (at,)
                if at == last:
                    yield [self.code[i] for i in path]
                    break
                instruction = self.code[at]
                goes = self.labels.get(instruction.target) if instruction.target else None
                if goes is not None and at < goes <= last:
                    if not instruction.always:
                        stack.append((at + 1, path))
                    at = goes
                elif instruction.always:
                    break
                else:
                    at += 1

    def loop(self, pattern: str) -> tuple[int, int]:
        """First and last instruction of the smallest loop around all instructions of that kind."""
        places = [i for i, instruction in enumerate(self.code) if re.match(pattern, instruction.opcode)]
        loops = [
            (last - first, first, last)
            for last, instruction in enumerate(self.code)
            if instruction.target and (first := self.labels[instruction.target]) <= places[0] and places[-1] <= last
        ]
        return min(loops)[1:]

    def wait_loops(self) -> list[list[Instruction]]:
        """The short loops around a wait for an mbarrier."""
        found = []
        for last, instruction in enumerate(self.code):
            first = self.labels.get(instruction.target, last) if instruction.target else last
            body = self.code[first:last]
            if first < last and len(body) <= 8 and any("TRYWAIT" in i.opcode for i in body):
                found.append(body)
        return found

    def barriers(self) -> set[int]:
        """Offsets of the mbarriers that are initialized, from the first one: ptxas chooses what its registers hold."""
        places = [re.search(r"\[U?R\d+(?:\+(0x[0-9a-f]+))?\]", i.operands) for i in self.all(r"SYNCS\.EXCH")]
        offsets = {int(found[1] or "0", 16) for found in places if found}
        return {offset - min(offsets) for offset in offsets}


@functools.lru_cache(maxsize=32)
def code_of(cubin: Path) -> str:
    """The text of the code; of 10 MB of cubins it takes 6 s."""
    return output_of("nvdisasm", "--print-code", str(cubin))


def disassemble(cubin: Path, prefix: str) -> dict[str, Kernel]:
    """Kernels by name without the common prefix."""
    kernels: dict[str, Kernel] = {}
    kernel = None
    for line in code_of(cubin).splitlines():
        if found := re.match(r"\.text\.(\w+):", line):
            kernel = kernels.setdefault(found[1].removeprefix(prefix), Kernel(found[1]))
        elif kernel and (found := re.match(r"(\.L_\w+):", line)):
            kernel.labels[found[1]] = len(kernel.code)
        elif kernel and (found := re.match(r"\s+/\*([0-9a-f]+)\*/\s+(@!?U?P\w+)?\s*([A-Z]\S*)\s*(.*?)\s*;", line)):
            kernel.code.append(Instruction(int(found[1], 16), found[2] or "", found[3], found[4]))
    for name, (registers, stack, local) in usage_of(cubin).items():
        kernel = kernels[name.removeprefix(prefix)]
        kernel.registers, kernel.stack, kernel.local = registers, stack, local
    return kernels


def usage_of(cubin: Path) -> dict[str, tuple[int, int, int]]:
    """Registers, bytes of stack and of local memory of each kernel."""
    usage = output_of("cuobjdump", "--dump-resource-usage", str(cubin))
    found = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage)
    return {name: (int(registers), int(stack), int(local)) for name, registers, stack, local in found}


def kernels_of(source: Path, prefix: str, arch: str = "sm_") -> dict[str, Kernel]:
    with tempfile.TemporaryDirectory() as folder:
        return disassemble(find_cubin(source.resolve(), Path(folder), prefix, arch), prefix)


def main() -> int:
    import nvfp4

    prefix = sys.argv[1] if sys.argv[1:] else "nvfp4_sm100_gemm_"
    source = Path(sys.argv[2]) if sys.argv[2:] else Path(nvfp4._C.__file__)
    print(f"{'kernel':22} {'bytes':>7} registers stack")
    for name, kernel in sorted(kernels_of(source, prefix).items()):
        print(f"{name:22} {16 * len(kernel.code):7} {kernel.registers:9} {kernel.stack:5}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        os._exit(1)
