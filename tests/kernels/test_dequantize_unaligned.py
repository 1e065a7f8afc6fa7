"""dequantize into outputs that only callers of the C API can have: rows that are not aligned to 16 bytes, or far apart.
Launched on the emulated GPU without the API."""

from __future__ import annotations

import struct

import numpy
import pytest
import torch
from emulate import Emulator
from harness.launch import compile_ptx
from paths import CSRC

import nvfp4
from nvfp4 import reference

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

TYPES = {torch.float16: (4, "fp16"), torch.bfloat16: (5, "bf16"), torch.float32: (6, "fp32")}
THREADS = 256
GUARD = 64


@pytest.mark.parametrize("dtype", TYPES)
def test_output_at_every_address(dtype: torch.dtype, random: numpy.random.Generator) -> None:
    code, name = TYPES[dtype]
    emulator = Emulator("sm_90")
    kernel = emulator.load(compile_ptx(CSRC / "kernels/quantize/kernels.cu", "sm90"))[f"nvfp4_dequantize_{name}"]
    rows, k, item = 3, 80, dtype.itemsize
    columns = k // 16
    for shift, gap in [(shift, gap) for shift in range(0, 16, item) for gap in (0, 16)]:
        data = emulator.array(random.integers(0, 256, (rows, k // 2), dtype=numpy.uint8))
        scale = emulator.array(random.integers(0, 127, (rows, columns), dtype=numpy.uint8))
        pitch = k * item + gap
        memory = emulator.array(random.integers(0, 256, 2 * GUARD + shift + rows * pitch, dtype=numpy.uint8))
        before = memory.numpy().copy()
        x = memory.address + GUARD + shift
        fields = (rows, k, 1, x, pitch, 0, data.address, k // 2, 0, scale.address, columns, 0, 0, 0, 0)
        # quantize_problem: linear scales, 8 of a row in a tile
        problem = struct.pack("<qqqQqqQqqQqqQqQfiiiiiiiQ", *fields, 0.75, 1, code, 3, 0, 0, 0, 0, 0)
        emulator.launch(kernel, 1, THREADS, [problem])
        expected = reference.dequantize(
            torch.from_numpy(data.numpy().copy()),
            torch.from_numpy(scale.numpy().copy()),
            global_scale=0.75,
            scale_layout="linear",
            out_dtype=dtype,
        )
        for row in range(rows):
            at = GUARD + shift + row * pitch
            before[at : at + k * item] = expected[row].view(torch.uint8).numpy()
        assert numpy.array_equal(memory.numpy(), before)
