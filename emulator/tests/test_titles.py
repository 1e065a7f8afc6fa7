"""Kernels' names in messages: C++ names are demangled and shortened (src/ptx/title.c)."""

from __future__ import annotations

import ctypes

import pytest
from small_kernel import Emulator, EmulatorError, module

NESTED = "N1a1PINS0_5InnerIiEENS0_5InnerIfEEEE"  # a::P<a::Inner<int>, a::Inner<float> >

CASES = {
    "plain": "plain",
    "_Z5plainPi": "plain",
    "_Z5scaleIfLi4EEvPT_": "scale<float, 4>",
    "_ZN2ns5scaleI6matrixEEvT_": "ns::scale<matrix>",
    "_ZN12_GLOBAL__N_15scaleEv": "(anonymous namespace)::scale",
    "_Z1fIXgtL_Z1aELi3EEEvv": "f<(a>(3))>",
    "_Z" + "5outerI" + NESTED + "Evv": "outer<a::P<a::Inner<int>, a::Inner<float> > >",
    # 4 x 45 characters: the innermost arguments are left out
    "_Z" + "5outerI" + 4 * NESTED + "Evv": "outer<a::P<...>, a::P<...>, a::P<...>, a::P<...> >",
    "_Z" + f"{150}{'x' * 150}" + "v": "x" * 120,
    "_Znonsense": "_Znonsense",
}


def has_demangler() -> bool:
    try:
        return hasattr(ctypes.CDLL("libstdc++.so.6"), "__cxa_demangle")
    except OSError:
        return False


@pytest.mark.parametrize("name", CASES)
def test_a_fault_names_the_kernel(name: str) -> None:
    expected = CASES[name] if has_demangler() else name
    emulator = Emulator()
    kernel = emulator.load(module(f".visible .entry {name}() {{ trap; }}"))[name]
    with pytest.raises(EmulatorError) as found:
        emulator.launch(kernel)
    assert str(found.value).startswith(f"kernel {expected}, block (0,0,0)")


def test_the_driver_gives_the_mangled_name() -> None:
    emulator = Emulator()
    assert emulator.load(module(".visible .entry _Z5plainPi() { ret; }")).names() == ["_Z5plainPi"]


def test_a_launch_that_is_rejected_names_the_kernel() -> None:
    emulator = Emulator()
    kernel = emulator.load(module(".visible .entry _Z5scaleIfLi4EEvv() { ret; }"))["_Z5scaleIfLi4EEvv"]
    with pytest.raises(EmulatorError, match=r"^scale<float, 4>: a block of 2048 threads"):
        emulator.launch(kernel, block=(64, 32))
