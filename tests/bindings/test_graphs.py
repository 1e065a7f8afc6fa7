"""CUDA graphs and torch.compile, from the first call."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import Backend
from python_server import python

import nvfp4
from nvfp4 import reference

FIRST_CALL_IS_CAPTURED = """
import torch, nvfp4
from nvfp4 import reference

data = reference.generate_input(M, N, K, 1, seed=5, device="cuda")
a, b, sfa, sfb = (x[0] for x in reference.batch_first(data))
scales = reference.swizzle(sfa, 127), reference.swizzle(sfb, 127)
bias, wide = torch.randn(N, device="cuda"), torch.randn(64, 1024, device="cuda")
out = torch.full((M, N), torch.nan, dtype=torch.float16, device="cuda")
torch.cuda.synchronize()

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    nvfp4.gemm(a, b, *scales, bias=bias, out=out)
    fresh = nvfp4.gemm(a, b, *scales, bias=bias)
    q, s = nvfp4.quantize(bias.view(1, N))
    g = nvfp4.amax_scale(wide)
torch.cuda.synchronize()
assert out.isnan().all(), "the capture ran the kernel"

expected = reference.gemm(a, b, *scales, bias=bias)
for replay in range(3):
    out.fill_(torch.nan), fresh.fill_(torch.nan)
    wide.normal_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected) and torch.equal(fresh, expected)
    assert torch.equal(g, reference.amax_scale(wide))
a.copy_(torch.randint_like(a, 256))  # the graph reads what is there when it runs
bias.normal_()
graph.replay()
torch.cuda.synchronize()
assert torch.equal(out, reference.gemm(a, b, *scales, bias=bias))
rq, rs = reference.quantize(bias.view(1, N))
assert torch.equal(q, rq) and torch.equal(s.view(torch.uint8).flatten(), rs.flatten())
print("equal")
"""


@pytest.mark.parametrize(("m", "n", "k"), [(1, 512, 7168), (130, 272, 464)])
def test_first_call_is_captured(cuda: Backend, m: int, n: int, k: int, tmp_path: Path) -> None:
    """In a new process, so that nothing has been loaded; one shape that is split along K and one that is not."""
    code = f"M, N, K = {m}, {n}, {k}\n{FIRST_CALL_IS_CAPTURED}"
    result = python("-c", code, cwd=tmp_path)
    assert result.stdout == "equal\n", result.stderr[-3000:]


@pytest.mark.parametrize("nvfp4_a", [False, True])
def test_one_graph_serves_every_routing(nvfp4_a: bool, cuda: Backend, generator: torch.Generator) -> None:
    """It is captured where no group has rows. Rows past the last end keep their values."""
    t, groups, n, k = 70, 8, 72, 96

    def draw(*shape: int, most: int = 256) -> torch.Tensor:
        return torch.randint(0, most, shape, generator=generator)

    scales = torch.tensor(reference.SCALE_SETS["contest"], dtype=torch.uint8)
    fixed = {
        "a": ((draw(40, k, most=25) - 12) / 2).half(),
        "scale_a": None,
        "b": draw(groups, 2, n, k // 2).byte(),
        "scale_b": reference.swizzle(scales[draw(groups * 2, n, k // 16, most=4)], padding=reference.E4M3_NAN),
    }
    routing = {
        "ends": torch.zeros(groups, dtype=torch.int32),
        "rows": torch.zeros(t, dtype=torch.int32),
        "row_scale": torch.zeros(t),
    }
    if nvfp4_a:  # a in the order of groups; the scales of each lie in one of as many blocks
        scale_a = scales[draw(groups, t, k // 16, most=4)]
        fixed |= {"a": draw(t, k // 2).byte(), "scale_a": reference.swizzle(scale_a, padding=reference.E4M3_NAN)}
        del routing["rows"]
        routing["scale_rows"] = torch.zeros(groups, dtype=torch.int32)
    on_gpu = {name: x.cuda() if x is not None else None for name, x in (fixed | routing).items()}
    out = torch.empty(t, 2 * n, dtype=torch.float16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        nvfp4.grouped_gemm(**on_gpu, out=out)
        activated = nvfp4.gated_grouped_gemm(**on_gpu)
    for i in range(50):
        last = int(draw(1, most=t + 1)) if i else t
        routing["ends"] = draw(last, most=groups if i % 3 else 1).bincount(minlength=groups).cumsum(0).int()
        if nvfp4_a:
            routing["scale_rows"] = 128 * torch.randperm(groups, generator=generator).int()
        else:
            routing["rows"] = draw(t, most=40).int()
        routing["row_scale"] = torch.randn(t, generator=generator)
        for name, x in routing.items():
            on_gpu[name].copy_(x)
        out.fill_(torch.nan)
        graph.replay()
        expected = nvfp4.grouped_gemm(**fixed, **routing)[:last]
        assert torch.equal(out[:last].cpu(), expected) and out[last:].isnan().all()
        assert torch.equal(activated[:last].cpu(), nvfp4.gated(expected[:, :n], expected[:, n:]))


def test_one_graph_quantizes_every_routing(cuda: Backend, generator: torch.Generator) -> None:
    """Gathered rows with a scale for each token, and an expert's activation; captured where no group has rows."""
    t, r, groups, n = 300, 40, 8, 96
    fixed = {name: torch.randn(t, n, generator=generator).half().cuda() for name in ("gate", "up")}
    changing = {
        "x": torch.zeros(r, n),
        "g": torch.ones(groups),
        "ends": torch.zeros(groups, dtype=torch.int32),
        "rows": torch.zeros(t, dtype=torch.int32),
    }

    def step(
        x: torch.Tensor, g: torch.Tensor, ends: torch.Tensor, rows: torch.Tensor, **both: torch.Tensor
    ) -> list[torch.Tensor]:
        token = nvfp4.amax_scale(x, by_row=True)
        sorted_rows = nvfp4.quantize(x, global_scale=token[:, None], ends=ends, rows=rows)
        activation = nvfp4.gated_quantize(both["gate"], both["up"], "swiglu", limit=2.0, global_scale=g, ends=ends)
        return [token, *sorted_rows, *activation]

    on_gpu = {name: x.cuda() for name, x in changing.items()}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step(**on_gpu, **fixed)
    for i in range(20):
        last = int(torch.randint(t + 1, (1,), generator=generator)) if i else t
        choices = torch.randint(groups if i % 3 else 1, (last,), generator=generator)
        changing["ends"] = choices.bincount(minlength=groups).cumsum(0).int()
        changing["rows"] = torch.randint(-1, r, (t,), generator=generator, dtype=torch.int32)
        changing["x"], changing["g"] = torch.randn(r, n, generator=generator), torch.rand(groups, generator=generator)
        for name, x in changing.items():
            on_gpu[name].copy_(x)
        for x in got:
            x.view(torch.uint8).fill_(0xA5)
        graph.replay()
        expected = step(**changing, **{name: x.cpu() for name, x in fixed.items()})
        of_last = last - int(changing["ends"][-2])
        blocks = int(expected[3][-1]) + -(-of_last // 128) * 128  # rows of scales that groups have
        for j, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
            mine, theirs = mine.cpu().view(torch.uint8), theirs.view(torch.uint8)
            end = {1: last, 4: last, 2: blocks, 5: blocks}.get(j, len(theirs))
            assert torch.equal(mine[:end], theirs[:end]), (i, j)
            assert (mine[end:] == 0xA5).all(), (i, j)


def test_call_does_not_wait(cuda: Backend, generator: torch.Generator) -> None:
    """torch raises on synchronising calls of its own; that a call returns while the stream is busy shows the rest."""
    data = reference.generate_input(16, 512, 1024, 1, seed=5, device="cuda")
    a, b, sfa, sfb = (x[0] for x in reference.batch_first(data))
    nvfp4.gemm(a, b, sfa, sfb, scale_layout="linear")
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)
    nvfp4.gemm(a, b, sfa, sfb, scale_layout="linear", alpha=torch.ones(1, device="cuda"))
    x, ends = torch.ones(4, 32, device="cuda"), torch.full((2,), 4, dtype=torch.int32, device="cuda")
    nvfp4.quantize(x)
    nvfp4.quantize(x, global_scale=nvfp4.amax_scale(x, by_row=True)[:, None], ends=ends, rows=ends)
    nvfp4.gated_quantize(x, x, ends=ends, global_scale=torch.ones(2, device="cuda"))
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


class Layer(torch.nn.Module):
    """Does a model's work: quantizes activations, multiplies by a quantized weight, adds, activates."""

    def __init__(self, inputs: int, outputs: int, device: str) -> None:
        super().__init__()
        weight, scale = nvfp4.quantize(torch.randn(outputs, inputs, device=device))
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", torch.randn(outputs, device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        data, scale = nvfp4.quantize(x)
        return torch.relu(nvfp4.gemm(data, self.weight, scale, self.scale, alpha=0.5, bias=self.bias)) + 1


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_compile(compiler: str, backend: Backend) -> None:
    if compiler == "inductor" and backend.device == "cpu":
        pytest.skip("test_torch_ops.py compiles with inductor on the CPU")
    layer = Layer(96, 72, backend.device)
    compiled = torch.compile(layer, fullgraph=True, backend=compiler, dynamic=False)
    for rows in (5, 130):
        x = torch.randn(rows, 96, device=backend.device)
        assert torch.equal(compiled(x), layer(x))


def test_compile_as_a_graph(cuda: Backend) -> None:
    """mode="reduce-overhead" captures what it compiles."""
    layer = Layer(512, 256, "cuda")
    compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        x = torch.randn(16, 512, device="cuda")
        assert torch.equal(compiled(x).clone(), layer(x))


def test_compiled_into_a_given_output(backend: Backend) -> None:
    data = reference.generate_input(9, 20, 48, 1, seed=5, device=backend.device)
    a, b, sfa, sfb = (x[0] for x in reference.batch_first(data))

    def call(out: torch.Tensor) -> torch.Tensor:
        nvfp4.gemm(a, b, sfa, sfb, scale_layout="linear", out=out)
        return out * 2

    out = torch.full((9, 20), torch.nan, dtype=torch.float16, device=backend.device)
    doubled = torch.compile(call, fullgraph=True, backend="aot_eager")(out)
    expected = reference.gemm(a, b, sfa, sfb, scale_layout="linear")
    assert torch.equal(out, expected) and torch.equal(doubled, expected * 2)


def test_a_compiled_call_is_rejected_with_the_same_message(backend: Backend) -> None:
    a, b = (torch.zeros(8, k // 2, dtype=torch.uint8, device=backend.device) for k in (64, 48))
    scale = torch.zeros(8, 4, dtype=torch.uint8, device=backend.device)

    def call() -> torch.Tensor:
        return nvfp4.gemm(a, b, scale, scale, scale_layout="linear")

    with pytest.raises(nvfp4.Error) as eager:
        call()
    with pytest.raises(Exception, match="b: K is 48 but a has K = 64") as compiled:
        torch.compile(call, fullgraph=True, backend="aot_eager")()
    assert str(eager.value) in str(compiled.value)


def test_an_empty_argument_is_not_an_absent_one(backend: Backend) -> None:
    a = torch.zeros(8, 32, dtype=torch.uint8, device=backend.device)
    scale = torch.zeros(8, 4, dtype=torch.uint8, device=backend.device)
    empty = torch.zeros(0, device=backend.device)

    def call() -> torch.Tensor:
        return nvfp4.gemm(a, a, scale, scale, scale_layout="linear", bias=empty)

    for how in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        with pytest.raises(Exception, match="bias: has 0 elements"):
            how()
