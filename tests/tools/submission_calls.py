"""Calls a submission's operation on the emulated GPU, in a process that test_submission.py starts. Products of shapes
that the competition does not have must be right to the bit; arguments that the kernel cannot take must raise an error
and leave c unchanged. Prints the number of each."""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import sys

import torch
from torch.utils import cpp_extension

from nvfp4 import reference

PRODUCTS = [  # m, n, k, l and, for padded b, its rows
    (5, 1, 64, 1, 128),  # 128x16
    (300, 1, 1088, 3, 128),  # ... split-K by 4
    (20, 33, 192, 2),  # 128x32
    (33, 20, 2048, 1, 128),  # ... split-K by 8
    (1, 64, 320, 2),
    (128, 128, 64, 2),  # 256x64
    (64, 128, 2048, 1),  # ... split-K by 4
    (130, 200, 1088, 1),
    (128, 256, 256, 3),
    (130, 384, 64, 16),  # 256x128
    (70, 3000, 64, 8),  # 256x128_deep
]


FREE = [  # dimensions of size 1, whose strides are random odd numbers
    (1, 64, 320, 1),
    (70, 1, 128, 1),
    (40, 36, 128, 1),
    (1, 40, 128, 2),
]


def make(m: int, n: int, k: int, l: int, b_rows: int | None = None) -> reference.Data:
    seed = random.getrandbits(31)
    return reference.generate_input(m, n, k, l, seed, b_rows=b_rows, device="cpu")


def finish() -> None:
    assert ctypes.CDLL("libcudart.so.13").cudaDeviceSynchronize() == 0


def freed(x: torch.Tensor) -> torch.Tensor:
    """The same tensor with random strides in dimensions of size 1."""
    strides = [2 * random.getrandbits(20) + 1 if size == 1 else x.stride(i) for i, size in enumerate(x.shape)]
    return x.as_strided(x.shape, strides)


def products(custom_kernel) -> int:
    calls = [(shape, make(*shape)) for shape in PRODUCTS + FREE]
    for i, (shape, data) in enumerate(calls):
        if i >= len(PRODUCTS):
            data = tuple(map(freed, data))
        output = custom_kernel(data)
        finish()
        right, why = reference.check_implementation(data, output, exact=True)
        assert right, f"{shape}: {why}"
    return len(calls)


def unaligned(x: torch.Tensor) -> torch.Tensor:
    """The same tensor, 8 bytes off a 16-byte boundary."""
    room = torch.empty(x.untyped_storage().nbytes() + 16, dtype=torch.uint8)
    start = 8 - room.data_ptr() % 16 + 16 * (room.data_ptr() % 16 > 8)
    moved = room[start:].view(x.dtype)[: x.untyped_storage().nbytes() // x.element_size()]
    return moved.as_strided(x.shape, x.stride())


def spaced(x: torch.Tensor, row: int, batch: int) -> torch.Tensor:
    """A tensor like x with these strides in bytes."""
    return torch.empty(x.shape[2] * batch, dtype=torch.uint8).as_strided(x.shape, (row, 1, batch)).view(x.dtype)


def errors(custom_kernel) -> int:
    good = make(128, 192, 256, 2)
    a, b, _, _, sfa, sfb, c = good
    short = make(128, 192, 192, 2)
    odd = make(128, 192, 288, 2)
    wide = torch.empty(2, 192, 130, dtype=torch.float16).permute(2, 1, 0)
    calls = {  # error message: {index among the seven arguments: tensor}
        r"K is 288; must be a multiple of 64": dict(enumerate(odd)),
        r"a: is \[128, 96, 2\]; must be \[128, 128, 2\]|b: is \[192, 128, 2\]; must be \[192, 96, 2\]": {0: short[0]},
        r"b: is \[192, 96, 2\]; must be \[192, 128, 2\]": {1: short[1]},
        r"sfa_permuted: is .*; must be \[32, 4, 1, 4, 4, 2\]": {4: short[4]},
        r"sfb_permuted: is .*; must be \[32, 4, 2, 4, 4, 2\]": {5: sfa},
        r"sfa_permuted: is .* with strides .*; must be": {4: sfa.contiguous()},
        r"sfa_permuted: has 3 dimensions": {4: good[2]},
        r"a: has strides .*; K must be innermost": {0: a.view(torch.uint8).contiguous()},
        r"a: is Half; must be float4_e2m1fn_x2 or uint8": {0: a.view(torch.uint8).half()},
        r"sfb_permuted: has 6 dimensions of Half": {5: sfb.view(torch.uint8).half()},
        r"c: is Float": {6: c.float()},
        r"c: is Half with strides": {6: wide[:128].contiguous().permute(0, 1, 2)},
        r"a: has strides": {0: unaligned(a)},
        r"a: has strides \[136, 1, 17408\]": {0: spaced(a, 136, 136 * 128)},
        r"b: has strides \[128, 1, 24584\]": {1: spaced(b, 128, 192 * 128 + 8)},
        r"sfb_permuted: must begin on 16 bytes": {5: unaligned(sfb)},
        r"a, b and c: must have 3 dimensions": {6: c[0]},
        r"c: is \[128, 0, 2\]": {6: c[:, :0]},
        r"a tensor is on meta, but a is on cpu": {6: torch.empty_like(c, device="meta")},
    }
    before = c.view(torch.int16).clone()
    for message, others in calls.items():
        tensors = tuple(others.get(i, tensor) for i, tensor in enumerate(good))
        try:
            custom_kernel(tensors)
        except RuntimeError as error:
            assert re.search(message, str(error)), f"{message!r} expected: {str(error).splitlines()[0]}"
        else:
            raise AssertionError(f"no error: {message}")
        finish()
        assert torch.equal(c.view(torch.int16), before), f"c has changed: {message}"
    return len(calls)


def main(folder: str) -> None:
    seed = os.environ.get("NVFP4_TEST_SEED", "0")
    print(f"NVFP4_TEST_SEED={seed}", file=sys.stderr)
    random.seed(f"{seed} submission")
    cpp_extension.CUDA_HOME = os.environ["CUDA_HOME"]
    sys.path.insert(0, folder)
    from submission import custom_kernel

    print(json.dumps({"products": products(custom_kernel), "errors": errors(custom_kernel)}))


if __name__ == "__main__":
    main(sys.argv[1])
