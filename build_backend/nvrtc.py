"""Compiles a .cu file by NVRTC, the runtime compiler of the CUDA toolkit, for one architecture:

    python nvrtc.py LIBRARY SOURCE ARCH OUTPUT OPTION...

writes OUTPUT.ptx and, if ARCH is sm_..., OUTPUT.cubin, and prints what the compiler says. In a process of its own a
compiler that runs out of memory ends nothing else, and several run at a time.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path

INTEGERS = {8: "char", 16: "short", 32: "int", 64: "long"}
# NVRTC has no headers of C's library. These have what the kernels use of them.
HEADERS = {
    "stdint.h": "#pragma once\n"
    + "".join(
        f"typedef signed {name} int{bits}_t;\ntypedef unsigned {name} uint{bits}_t;\n"
        f"#define INT{bits}_MAX ((int{bits}_t)((uint{bits}_t)-1 >> 1))\n#define UINT{bits}_MAX ((uint{bits}_t)-1)\n"
        for bits, name in INTEGERS.items()
    )
    + "typedef unsigned long uintptr_t;\n"
    + "#define INT64_C(x) x##L\n#define UINT64_C(x) x##UL\n#define UINT32_C(x) x##U\n",
    "stddef.h": "#pragma once\n#define offsetof(type, member) __builtin_offsetof(type, member)\n",
    "float.h": "#pragma once\n#define FLT_MAX 3.402823466e+38f\n#define FLT_MIN 1.175494351e-38f\n",
    "math.h": "#pragma once\n",
    "string.h": "#pragma once\n",
    "type_traits": "#pragma once\nnamespace std {\n"
    "template <class A, class B> struct is_same { static constexpr bool value = false; };\n"
    "template <class A> struct is_same<A, A> { static constexpr bool value = true; };\n"
    "template <bool C, class A, class B> struct conditional { using type = A; };\n"
    "template <class A, class B> struct conditional<false, A, B> { using type = B; };\n"
    "template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;\n"
    "template <bool C, class A, class B> using conditional_t = typename conditional<C, A, B>::type;\n}\n",
}
# A function without __device__ is one for the device: there is no host here. NVRTC knows math.h's functions, and not
# these macros of it.
MACROS = ("-DINFINITY=__int_as_float(0x7f800000)", "-DNAN=__int_as_float(0x7fffffff)")
OPTIONS = ("--std=c++17", "-default-device", *MACROS)


def version(library: Path) -> tuple[int, int]:
    """The version of an NVRTC, (12, 9). OSError: it is none."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    try:
        ctypes.CDLL(str(library)).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    except AttributeError:
        raise OSError(f"{library}: has no function nvrtcVersion") from None
    return major.value, minor.value


def strings(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


class Program:
    """A source as nvrtcCreateProgram takes it."""

    def __init__(self, nvrtc: ctypes.CDLL, source: Path) -> None:
        self.nvrtc, self.handle = nvrtc, ctypes.c_void_p()
        names, texts = strings(list(HEADERS)), strings(list(HEADERS.values()))
        created = nvrtc.nvrtcCreateProgram(
            ctypes.byref(self.handle), source.read_bytes(), str(source).encode(), len(HEADERS), texts, names
        )
        if created != 0:
            sys.exit(f"nvrtcCreateProgram returned {created}")

    def compile(self, options: list[str]) -> bool:
        return self.nvrtc.nvrtcCompileProgram(self.handle, len(options), strings(options)) == 0

    def get(self, what: str) -> bytes:
        """what: "ProgramLog", "PTX" or "CUBIN"."""
        size = ctypes.c_size_t()
        getattr(self.nvrtc, f"nvrtcGet{what}Size")(self.handle, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        if getattr(self.nvrtc, f"nvrtcGet{what}")(self.handle, buffer) != 0:
            sys.exit(f"nvrtcGet{what} failed")
        return buffer.raw


def main(library: str, source: str, arch: str, output: str, *options: str) -> None:
    program = Program(ctypes.CDLL(library), Path(source))
    done = program.compile([f"--gpu-architecture={arch}", *OPTIONS, *options])
    print(program.get("ProgramLog").rstrip(b"\0").decode(errors="replace"), end="")
    if not done:
        sys.exit(1)
    Path(f"{output}.ptx").write_bytes(program.get("PTX"))
    if arch.startswith("sm_"):
        Path(f"{output}.cubin").write_bytes(program.get("CUBIN"))


if __name__ == "__main__":
    main(*sys.argv[1:])
