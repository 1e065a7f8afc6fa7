"""A kernel of one block around a few instructions: every thread has its index, and the addresses of the arguments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
from emulate import Emulator, EmulatorError  # noqa: F401
from random_data import random_of  # noqa: F401

HEADER = """
.version 9.0
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 smem[];
"""

# %a0 .. %a5 are the arguments (addresses of device memory, or numbers); %t the thread; %lane its lane.
ENTRY = """
.visible .entry {name}(.param .u64 a0, .param .u64 a1, .param .u64 a2, .param .u64 a3, .param .u64 a4, .param .u64 a5)
{{
  .reg .pred %p<16>;
  .reg .b16 %h<32>;
  .reg .b32 %t, %lane, %smem, %r<64>;
  .reg .b64 %a<6>, %d<32>;
  .reg .b128 %q<4>;
  ld.param.u64 %a0, [a0];
  ld.param.u64 %a1, [a1];
  ld.param.u64 %a2, [a2];
  ld.param.u64 %a3, [a3];
  ld.param.u64 %a4, [a4];
  ld.param.u64 %a5, [a5];
  mov.u32 %t, %tid.x;
  and.b32 %lane, %t, 31;
  mov.u32 %smem, smem;
{body}
  ret;
}}
"""

TARGETS = {"sm_80": "sm_80", "sm_90": "sm_90a", "sm_100": "sm_100a", "sm_120": "sm_120a"}


def entry(body: str, name: str = "run") -> str:
    return ENTRY.format(name=name, body=body)


def module(entries: Sequence[str] | str, device: str = "sm_100", variables: str = "") -> str:
    text = entries if isinstance(entries, str) else "\n".join(entries)
    return HEADER.format(target=TARGETS[device]) + variables + text


def run(
    body: str,
    arguments: Sequence[object],
    *,
    device: str = "sm_100",
    seed: int = 0,
    block: int | Sequence[int] = 32,
    grid: int | Sequence[int] = 1,
    cluster: int | Sequence[int] | None = None,
    shared: int = 4096,
    variables: str = "",
    **settings: str | int,
) -> list[numpy.ndarray]:
    """Runs the body; arguments that are arrays are copied to the device, and come back as they are afterwards."""
    emulator = Emulator(device, seed, **settings)
    kernel = emulator.load(module(entry(body), device, variables))["run"]
    values = [emulator.array(a) if isinstance(a, numpy.ndarray) else a for a in arguments]
    values += [0] * (6 - len(values))
    emulator.launch(kernel, grid, block, values, shared, cluster)
    return [
        v.numpy().copy() for a, v in zip(arguments, values, strict=False) if isinstance(a, numpy.ndarray)
    ]  # arrays only, in order


def load_only(body: str, device: str = "sm_100", variables: str = "") -> None:
    Emulator(device).load(module(entry(body), device, variables))
