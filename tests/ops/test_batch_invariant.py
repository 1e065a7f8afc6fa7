"""gemm(..., batch_invariant=True): the bits of a row depend neither on M nor on its place. The data round at every
step, so that another order of additions gives other bits."""

from __future__ import annotations

import pytest
import torch
from conftest import Backend, is_emulated, one_in

import nvfp4
from nvfp4 import _C, reference
from nvfp4._tuning import SETTINGS

# Few rows and many, the tiles' sizes and beside them, and more rows than columns.
ROWS = [1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 32, 33, 64, 65, 128, 129, 200, 257, 300]
# Columns that fill few SMs, so that K is split, more than a tile, one; K of several stages, with and without a tail.
MAX_M = 300
SIZES = [(130, 1056), (256, 2048), (61, 1040), (1, 1024)]


class Products:
    """Rows of one A with one B."""

    def __init__(self, m: int, n: int, k: int, layout: str, device: str, generator: torch.Generator) -> None:
        def draw(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
            data = torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8, generator=generator)
            return data, torch.randint(0x20, 0x58, (rows, k // 16), dtype=torch.uint8, generator=generator)

        self.layout, self.device = layout, device
        self.a, self.scale_a = draw(m)
        b, scale_b = draw(n)
        self.b, self.scale_b = b.to(device), self.laid_out(scale_b)
        self.bias = torch.randn(n, generator=generator).to(device)

    def laid_out(self, scale: torch.Tensor) -> torch.Tensor:
        padding = reference.E4M3_NAN
        return (reference.swizzle(scale, padding=padding) if self.layout == "128x4" else scale).to(self.device)

    def rows(self, first: int, m: int, backend: str | None, batch_invariant: bool = True) -> torch.Tensor:
        a, scale_a = (x[first : first + m].clone() for x in (self.a, self.scale_a))
        operands = (a.to(self.device), self.b, self.laid_out(scale_a), self.scale_b)
        options = {"out_dtype": torch.float32, "scale_layout": self.layout, "backend": backend}
        return nvfp4.gemm(*operands, bias=self.bias, **options, batch_invariant=batch_invariant).cpu()


@pytest.mark.parametrize("layout", ["128x4", "linear"])
@pytest.mark.parametrize(("n", "k"), one_in(2, SIZES) if is_emulated() else SIZES)
def test_rows_do_not_depend_on_m(n: int, k: int, layout: str, backend: Backend, generator: torch.Generator) -> None:
    """sm90 has no such order for linear scales, rows not on 16 bytes, or one column: sm80 takes its place there."""
    _C.set_default_backend(None)
    name = None if backend.name == "sm90" and (layout == "linear" or k % 32 or n == 1) else backend.name
    sizes = one_in(5, ROWS) if backend.emulated else range(1, MAX_M + 1)
    products = Products(MAX_M, n, k, layout, backend.device, generator)
    whole = products.rows(0, MAX_M, name)
    for m in sizes:
        first = int(torch.randint(0, MAX_M - m + 1, (), generator=generator))
        rows = f"rows {first} to {first + m} of {MAX_M}"
        assert torch.equal(products.rows(first, m, name), whole[first : first + m]), rows


def test_one_row_of_a_padded_matrix(backend: Backend, generator: torch.Generator) -> None:
    """Its stride says how the matrix lies, though one row needs none: dense rows of this K are not on 16 bytes, padded
    ones are, and sm90 has another order than sm80."""
    m, n, k = 40, 130, 1040
    products = Products(m, n, k, "128x4", backend.device, generator)

    def padded(x: torch.Tensor) -> torch.Tensor:
        wide = torch.empty(x.shape[0], x.shape[1] + 8, dtype=x.dtype, device=backend.device)
        return wide[:, : x.shape[1]].copy_(x)

    a, b = padded(products.a), padded(products.b)

    def rows(first: int, count: int) -> torch.Tensor:
        scale_a = products.laid_out(products.scale_a[first : first + count])
        options = {"out_dtype": torch.float32, "backend": backend.name, "batch_invariant": True}
        return nvfp4.gemm(a[first : first + count], b, scale_a, products.scale_b, **options).cpu()

    whole = rows(0, m)
    for first, count in ((0, 1), (1, 1), (39, 1), (7, 2), (20, 17)):
        assert torch.equal(rows(first, count), whole[first : first + count]), f"rows {first} to {first + count}"


def test_the_data_tell_orders_apart(backend: Backend, generator: torch.Generator) -> None:
    """Without the flag another plan, or on the CPU the driver for few rows, gives other bits."""
    if backend.name == "cpu" and nvfp4.info()["cpu_kernel"] in ("reference", "portable"):
        pytest.skip("adds in one order")
    products = Products(MAX_M, 256, 2048, "128x4", backend.device, generator)
    one = products.rows(0, 1, backend.name, False)
    if backend.name == "cpu":
        assert not torch.equal(one, products.rows(0, MAX_M, backend.name, False)[:1])
        return

    def differs(rank: int) -> bool:
        _C.set_candidate(rank)
        return not torch.equal(products.rows(0, 1, backend.name, False), one)

    plans = nvfp4.info(1, 256, 2048, device=0, backend=backend.name)["plan"]["candidates"]
    try:
        assert any(differs(rank) for rank in range(1, plans))
    finally:
        _C.set_candidate(0)


def test_compiled(generator: torch.Generator) -> None:
    """The flag reaches the operator: one row has the bits that it has among 300, which it has not without the flag."""
    products = Products(MAX_M, 64, 2048, "128x4", "cpu", generator)
    whole = products.rows(0, MAX_M, "cpu")
    operands = (products.a[:1].clone(), products.b, products.laid_out(products.scale_a[:1].clone()), products.scale_b)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def run(*operands: torch.Tensor) -> torch.Tensor:
        return nvfp4.gemm(*operands, bias=products.bias, out_dtype=torch.float32, backend="cpu", batch_invariant=True)

    assert torch.equal(run(*operands), whole[:1])


def test_forced_plans_do_not_count(backend: Backend, generator: torch.Generator) -> None:
    if backend.name == "cpu":
        pytest.skip("has one plan")
    products = Products(33, 130, 1056, "128x4", backend.device, generator)
    expected = products.rows(0, 33, backend.name)
    candidates = nvfp4.info(33, 130, 1056, device=0, backend=backend.name)["plan"]["candidates"]
    try:
        for rank in range(0, candidates, max(1, candidates // 4)):
            _C.set_candidate(rank)
            plan = nvfp4.info(33, 130, 1056, device=0, backend=backend.name)["plan"]
            settings = [plan[name] for name in SETTINGS]
            assert torch.equal(products.rows(0, 33, backend.name), expected)
            _C.set_candidate(0)
            _C.override_plan(0, None, None, 33, 130, 1056, 1, 0, *settings)
            assert torch.equal(products.rows(0, 33, backend.name), expected)
    finally:
        _C.set_candidate(0)
        _C.clear_overrides()


def test_operands_without_such_an_order(backend: Backend, generator: torch.Generator) -> None:
    """The error names the flag and what does have one; nothing is written."""
    if backend.name != "sm90":
        pytest.skip("has an order for every operand")
    products = Products(4, 64, 96, "linear", backend.device, generator)
    out = torch.full((4, 64), 7.0, device=backend.device)
    with pytest.raises(
        nvfp4.Error, match=r"^batch_invariant: no kernel of this backend is batch invariant .* must be auto"
    ):
        scale_a = products.laid_out(products.scale_a)
        operands = (products.a.to(backend.device), products.b, scale_a, products.scale_b)
        nvfp4.gemm(*operands, out=out, scale_layout="linear", backend="sm90", batch_invariant=True)
    assert (out == 7.0).all()
