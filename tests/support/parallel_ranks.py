"""The surroundings of checks of nvfp4.parallel on several ranks (models/parallel_checks.py runs them)."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import parallel as torch_parallel

import nvfp4
from nvfp4 import reference
from nvfp4.layers.packed import PackedLinear

FULL = bool(os.environ.get("CI_FULL"))
parallelize = torch_parallel.parallelize_module
K, N = 768, 172  # of 2 and 4 ranks: neither 86 nor 43 rows are a tile of scales
MODES = [("nvfp4", True), ("nvfp4", False), (None, False)]  # activations, whether their global scale is static
CHECKS: dict[str, Callable[[Ranks], None]] = {}


class Ranks:
    """The surroundings of a check: this rank of a mesh, and random numbers that are equal on all ranks."""

    def __init__(self, mesh: DeviceMesh, device: str, name: str) -> None:
        self.mesh, self.device, self.rank, self.size = mesh, device, mesh.get_local_rank(), mesh.size()
        seed = random.Random(f"{os.environ.get('NVFP4_TEST_SEED')} {name}").getrandbits(62)
        self.generator = torch.Generator().manual_seed(seed)

    def own(self, x: Tensor, dim: int = -1) -> Tensor:
        return x.chunk(self.size, dim)[self.rank].contiguous()

    def integers(self, *shape: int) -> Tensor:
        """Values of e2m1 in blocks whose largest is 6: they quantize to themselves, by a constant factor."""
        table = torch.tensor([0.0, 1, 2, 3, 4, 6, -1, -2, -3, -4, -6])
        x = table[torch.randint(0, len(table), shape, generator=self.generator)]
        x[..., ::16] = 6.0
        return x

    def random_layer(
        self, activations: str | None, static: bool, dtype: torch.dtype, bias: bool = True
    ) -> tuple[nn.Linear, nvfp4.Linear, Tensor, Tensor, Tensor, Tensor]:
        """A dense layer of random weights, ours of it, an input, the operands of its product in fp64, and alpha."""
        linear = nn.Linear(K, N, bias)
        linear.weight.data = torch.randn(N, K, generator=self.generator)
        layer = nvfp4.Linear.from_linear(linear.to(self.device), activations, 0.01 if static else None)
        x = torch.randn(33, K, generator=self.generator).to(dtype)
        scale, a = torch.tensor(1.0), x.double()
        if activations is not None:
            scale = torch.tensor(0.01) if static else x.float().abs().amax() / (448 * 6)
            a = reference.operand(*reference.quantize(x, global_scale=scale), "128x4")[0].double()
        w = reference.operand(layer.weight.cpu(), layer.weight_scale.cpu(), "128x4")[0].double()
        return linear, layer, x, a, w, (scale * layer.weight_global_scale.cpu()).double()

    def layer(self, activations: str | None, static: bool, k: int = K, n: int = N, **options: bool) -> nvfp4.Linear:
        """Integer scales, and global scales that are no powers of two: rounding twice gives other bits."""
        g = self.generator
        vector, bias = options.get("vector", True), options.get("bias", True)
        return nvfp4.Linear.from_packed(
            PackedLinear(
                torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=g),
                torch.randint(0, 16, (n, k // 16), generator=g).float().to(torch.float8_e4m3fn),
                torch.rand((n,) if vector else (), generator=g) + 0.5,
                torch.tensor(1.0) if static else None,
                torch.randn(n, generator=g) * 100 if bias else None,
                activations,
            )
        ).to(self.device)


def check(function: Callable[[Ranks], None]) -> Callable[[Ranks], None]:
    CHECKS[function.__name__] = function
    return function


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def error(message: str, call: Callable[[], object]) -> None:
    try:
        call()
    except nvfp4.Error as raised:
        assert str(raised).startswith(message), f"{raised}\nis not\n{message}"
    else:
        raise AssertionError(f"no error: {message}")
