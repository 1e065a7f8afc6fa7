"""Golden hashes of products of random data whose sums round at every step: another GPU must reproduce them.

    python tests/kernels/product_bits.py > tests/kernels/product_bits_sm90.json     on a GPU of compute capability 9.0

An emulated GPU (NVFP4_LIBCUDA, EMULATE_DEVICE=sm_90) must print the same hashes: it emulates the rounding of the tensor
core and the order of the sums. Data come from NumPy's PCG64, which is the same on every platform.
"""

from __future__ import annotations

import hashlib
import json

import numpy
import torch

import nvfp4

SHAPES = [
    (1, 300, 4096),
    (5, 70, 208),
    (16, 130, 2048),
    (33, 96, 7168),
    (64, 257, 1040),
    (128, 192, 2048),
    (130, 64, 7168),
]
LAYOUTS = ("128x4", "linear")


def target() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def operand(random: numpy.random.Generator, rows: int, k: int, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    data = torch.from_numpy(random.integers(0, 256, (rows, k // 2), dtype=numpy.uint8))
    scale = torch.from_numpy(random.integers(0x20, 0x5F, (rows, k // 16), dtype=numpy.uint8)).view(torch.float8_e4m3fn)
    return data.to(target()), (nvfp4.swizzle(scale) if layout == "128x4" else scale).to(target())


def product(index: int, shape: tuple[int, int, int], layout: str) -> torch.Tensor:
    m, n, k = shape
    random = numpy.random.Generator(numpy.random.PCG64(1000 + index))
    a, sfa = operand(random, m, k, layout)
    b, sfb = operand(random, n, k, layout)
    bias = torch.from_numpy(random.standard_normal(n).astype(numpy.float32)).to(target())
    options = {"alpha": 0.37, "bias": bias, "out_dtype": torch.float32, "scale_layout": layout, "backend": "sm80"}
    return nvfp4.gemm(a, b, sfa, sfb, **options).cpu()


def main() -> None:
    bits = {}
    for index, shape in enumerate(SHAPES):
        for layout in LAYOUTS:
            result = product(index, shape, layout)
            assert result.isfinite().all()
            name = "x".join(map(str, shape)) + " " + layout
            bits[name] = hashlib.sha256(result.numpy().tobytes()).hexdigest()
    device = nvfp4.info()["devices"][0]
    props = {"device": device["name"], "sm_count": device["sm_count"], "driver": nvfp4.info()["driver"]}
    print(json.dumps(props | {"sha256": bits}, indent=1))


if __name__ == "__main__":
    main()
