"""quantize_model by weights="search" and "gptq": right values, sharing among siblings, what the bytes depend on."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nvfp4
from nvfp4.layers.gptq import default_damping, factor, gptq

K = 96


GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def siblings(name: str) -> list[str]:
    block, _, own = name.rpartition(".")
    return [f"{block}.{n}" for n in next((names for names in GROUPS if own in names), (own,))]


def raw(t: Tensor) -> Tensor:
    return t.reshape(-1).view(torch.uint8)


def state(model: nn.Module) -> dict[str, bytes]:
    return {name: raw(t.detach().contiguous()).numpy().tobytes() for name, t in model.state_dict().items()}


class Block(nn.Module):
    """Attention's and an MLP's layers, by the names of Llama."""

    def __init__(self, width: int = K, hidden: int = 160) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, n) for n in (width, 48, 48))
        self.o_proj = nn.Linear(width, width, bias=False)
        self.gate_proj, self.up_proj = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.q_proj(x) + torch.cat([self.k_proj(x), self.v_proj(x)], -1).tanh()
        y = x + self.o_proj(mixed)
        return y + self.down_proj(nn.functional.silu(self.gate_proj(y)) * self.up_proj(y))


@pytest.fixture
def model() -> nn.Sequential:
    return nn.Sequential(Block(), Block()).requires_grad_(False).eval()


@pytest.fixture
def samples(generator: torch.Generator) -> Tensor:
    """Rows whose channels are correlated and of different size."""
    mixed = torch.randn(400, K, generator=generator) @ torch.randn(K, K, generator=generator)
    return mixed * torch.rand(K, generator=generator).exp2() / K**0.5


def hessian_of(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).double().T.matmul(x.reshape(-1, x.shape[-1]).double()).float()


def dense_of(data: Tensor, scale: Tensor, global_scale: Tensor) -> Tensor:
    return nvfp4.dequantize(data, scale, global_scale=global_scale, scale_layout="linear")


def global_scale_of(weight: Tensor) -> Tensor:
    return nvfp4.amax_scale(weight).reshape(()).reciprocal().reciprocal()


# ---- the algorithm ----


@pytest.mark.parametrize("k", [16, 48, 128, 144, 272])
def test_gptq_of_the_identity_is_the_search(k: int, generator: torch.Generator) -> None:
    """With damping 3 the diagonal is 4, and U is 1/2 of the identity: every operation is scaled by a power of 2."""
    weight = torch.randn(70, k, generator=generator)
    scale = global_scale_of(weight)
    data, blocks, _ = gptq(weight, factor(torch.eye(k) * 0.25, 3.0), scale)
    expected = nvfp4.quantize(weight, global_scale=scale, block_scale="search", scale_layout="linear")
    assert torch.equal(data, expected[0]) and torch.equal(raw(blocks), raw(expected[1]))


@pytest.mark.parametrize("rows", [400, 20, 1])
@pytest.mark.parametrize("damping", [0.01, 0.1, 1.0])
def test_the_loss_is_that_of_the_result(rows: int, damping: float, samples: Tensor, generator: torch.Generator) -> None:
    """The sum of err^2 is D (H + damping) D', for an H of few rows and of rank 1 too."""
    weight, hessian = torch.randn(37, K, generator=generator), hessian_of(samples[:rows])
    scale, made = global_scale_of(weight), factor(hessian, damping)
    data, blocks, loss = gptq(weight, made, scale)
    assert made.damping == damping
    d = (weight - dense_of(data, blocks, scale)).double()
    h = hessian.double() / hessian.diagonal().double().mean() + damping * torch.eye(K, dtype=torch.float64)
    torch.testing.assert_close(loss, ((d @ h) * d).sum(1), rtol=2e-4, atol=0)


def test_permuted_rows_give_permuted_bytes(samples: Tensor, generator: torch.Generator) -> None:
    weight, order = torch.randn(64, K, generator=generator), torch.randperm(64, generator=generator)
    scale, made = global_scale_of(weight), factor(hessian_of(samples), 0.1)
    data, blocks, _ = gptq(weight, made, scale)
    other, other_blocks, _ = gptq(weight[order], made, scale)
    assert torch.equal(other, data[order]) and torch.equal(raw(other_blocks), raw(blocks[order]))


def test_the_output_is_closer_than_that_of_other_roundings(samples: Tensor, generator: torch.Generator) -> None:
    weight, hessian = torch.randn(64, K, generator=generator), hessian_of(samples)
    scale = global_scale_of(weight)
    importance = hessian.diagonal().contiguous()
    packed = {
        "round": nvfp4.quantize(weight, global_scale=scale, scale_layout="linear"),
        "search": nvfp4.quantize(
            weight, global_scale=scale, block_scale="search", importance=importance, scale_layout="linear"
        ),
        "gptq": gptq(weight, factor(hessian, 0.01), scale)[:2],
    }
    lost = {}
    for how, own in packed.items():
        d = weight - dense_of(*own, scale)
        lost[how] = float(((d @ hessian) * d).sum())
    assert lost["gptq"] < 0.8 * lost["search"] and lost["search"] < lost["round"]


def test_dead_channels_are_rounded_and_change_no_other(samples: Tensor, generator: torch.Generator) -> None:
    """A channel that samples miss keeps its weights. A block of such channels has the bytes of the search."""
    x = samples.clone()
    dead = torch.tensor([3, 17, *range(32, 48)])
    x[:, dead] = 0
    weight = torch.randn(50, K, generator=generator)
    scale = global_scale_of(weight)
    data, blocks, loss = gptq(weight, factor(hessian_of(x), 0.1), scale)
    expected = nvfp4.quantize(
        weight[:, 32:48].contiguous(), global_scale=scale, block_scale="search", scale_layout="linear"
    )
    near = (dense_of(data, blocks, scale) - weight)[:, dead].abs()
    assert bool((near < weight.abs().amax() / 4).all()) and bool(loss.isfinite().all())
    same = (data[:, 16:24] == expected[0]).all(1) & (raw(blocks[:, 2]) == raw(expected[1]))
    assert bool(same.all())
    nothing, other, _ = gptq(weight, factor(torch.zeros(K, K), 3.0), scale)
    searched = nvfp4.quantize(weight, global_scale=scale, block_scale="search", scale_layout="linear")
    assert torch.equal(nothing, searched[0]) and torch.equal(raw(other), raw(searched[1]))


def test_columns_are_taken_by_falling_diagonal() -> None:
    diagonal = torch.arange(1.0, 49.0)
    diagonal[16:32] = 100 - diagonal[16:32]
    order = factor(diagonal.diag(), 0.1).order.tolist()
    assert order == [*range(16, 32), *range(47, 31, -1), *range(15, -1, -1)]


@pytest.mark.parametrize(("rows", "damping"), [(10, 1.0), (100, 0.4), (400, 0.1), (10**6, 0.1)])
def test_damping_follows_from_rows(rows: int, damping: float) -> None:
    assert default_damping(100, rows) == pytest.approx(damping)


def test_a_damping_that_does_not_do_is_raised() -> None:
    """The eigenvalues of this H over its mean diagonal are 3 and -1."""
    h = torch.eye(16)
    h[0, 1] = h[1, 0] = 2.0
    assert factor(h, 0.5).damping == 5.0 and factor(h, 1.5).damping == 1.5
    h[0, 1] = h[1, 0] = 1e5
    with pytest.raises(nvfp4.Error, match=r"^hessian: is not positive definite with 100 of its mean diagonal added; "):
        factor(h, 0.1)


# ---- Linear.from_linear ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_from_linear(dtype: torch.dtype, samples: Tensor) -> None:
    linear = nn.Linear(K, 40, dtype=dtype).requires_grad_(False)
    hessian = hessian_of(samples)
    scale = global_scale_of(linear.weight)
    layer = nvfp4.Linear.from_linear(linear, None, weights="gptq", hessian=hessian)
    data, blocks, _ = gptq(linear.weight, factor(hessian, 0.1), scale)
    assert layer.dtype == dtype and torch.equal(layer.weight_global_scale, scale)
    assert torch.equal(layer.weight, data) and torch.equal(raw(layer.packed().weight_scale), raw(blocks))
    other = nvfp4.Linear.from_linear(linear, None, weights="gptq", hessian=hessian, damping=1.0)
    larger = nvfp4.Linear.from_linear(linear, None, weights="gptq", hessian=hessian * 1024)
    assert not torch.equal(other.weight, layer.weight) and torch.equal(larger.weight, layer.weight)
    importance = hessian.diagonal().contiguous()
    for given in (None, importance):
        searched = nvfp4.Linear.from_linear(linear, None, weights="search", importance=given)
        expected = nvfp4.quantize(linear.weight, global_scale=scale, block_scale="search", importance=given)
        assert torch.equal(searched.weight, expected[0]) and torch.equal(raw(searched.weight_scale), raw(expected[1]))


def test_errors_of_from_linear() -> None:
    linear, h = nn.Linear(32, 8), torch.eye(32)
    nan = h.clone()
    nan[3, 3] = float("nan")
    calls: dict[str, dict[str, Any]] = {
        "weights: is 'best'; must be 'round', 'search' or 'gptq'": {"weights": "best"},
        "block_scale: is 'search'; must be 'amax6' or 'four_over_six'": {"block_scale": "search"},
        "hessian: is None but weights is 'gptq'; must be the sum of x x^T over the layer's inputs": {"weights": "gptq"},
        "hessian: is given but weights is 'search'; must be None then": {"weights": "search", "hessian": h},
        "hessian: is of type list; must be a torch.Tensor": {"weights": "gptq", "hessian": [1]},
        "hessian: dtype is float64; must be float32": {"weights": "gptq", "hessian": h.double()},
        "hessian: shape is [16, 32]; must be [32, 32]": {"weights": "gptq", "hessian": h[:16]},
        "hessian: has a value that is NaN or infinite; must be finite": {"weights": "gptq", "hessian": nan},
        "hessian: has -1 on its diagonal; must have 0 or more": {"weights": "gptq", "hessian": -h},
        "importance: is given but weights is 'round'; must be None then": {"importance": torch.ones(32)},
        "importance: shape is [16]; must be [32]": {"weights": "search", "importance": torch.ones(16)},
        "damping: is given but weights is 'round'; must be None then": {"damping": 0.1},
        "damping: is of type str; must be a number or None": {"weights": "gptq", "hessian": h, "damping": "0.1"},
        "damping: is of type bool; must be a number or None": {"weights": "gptq", "hessian": h, "damping": True},
        "damping: is 0; must be positive and finite": {"weights": "gptq", "hessian": h, "damping": 0.0},
        "damping: is inf; must be positive and finite": {"weights": "gptq", "hessian": h, "damping": float("inf")},
        "damping: is nan; must be positive and finite": {"weights": "gptq", "hessian": h, "damping": float("nan")},
    }
    for message, given in calls.items():
        with pytest.raises(nvfp4.Error) as error:
            nvfp4.Linear.from_linear(linear, None, **given)
        assert str(error.value) == message


# ---- quantize_model ----


@pytest.mark.parametrize("weights", ["search", "gptq"])
def test_each_layer_is_that_of_from_linear(weights: str, model: nn.Sequential, samples: Tensor) -> None:
    """With the statistics of what the layer reads, and the largest global scale of its siblings. Bytes of siblings are
    those of separate runs."""
    read: dict[str, Tensor] = {}
    linears = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    hooks = [
        m.register_forward_pre_hook(lambda m, x, name=name: read.update({name: x[0]})) for name, m in linears.items()
    ]
    model(samples)
    for hook in hooks:
        hook.remove()
    report = nvfp4.quantize_model(model, activations=None, weights=weights, calibrate=lambda m: m(samples))
    assert {row.name for row in report.layers} == {*linears} and report.weights == weights
    for row in report.layers:
        linear, layer, x = linears[row.name], model.get_submodule(row.name), read[row.name]
        shared = torch.stack([global_scale_of(linears[n].weight) for n in siblings(row.name)]).amax()
        assert torch.equal(layer.weight_global_scale, shared) and (layer.bias is None) == (linear.bias is None)
        h = hessian_of(x)
        if weights == "gptq":
            total = torch.zeros(len(h), len(h)).addmm_(x.T, x)
            data, blocks, _ = gptq(linear.weight, factor(total, default_damping(len(h), 400)), shared)
        else:
            mean = x.square().sum(0).double()
            given = {"importance": (mean / mean.mean()).float(), "block_scale": "search", "scale_layout": "linear"}
            data, blocks = nvfp4.quantize(linear.weight, global_scale=shared, **given)
            h = h.diagonal().diag()
        assert torch.equal(layer.weight, data) and torch.equal(raw(layer.packed().weight_scale), raw(blocks))
        plain = nvfp4.Linear.from_linear(linear, None).dequantize()
        lost, before, norm = (
            (d @ h) * d for d in (linear.weight - layer.dequantize(), linear.weight - plain, linear.weight)
        )
        assert row.output_error == pytest.approx(float((lost.sum() / norm.sum()).sqrt()), rel=1e-4)
        assert row.output_error_before == pytest.approx(float((before.sum() / norm.sum()).sqrt()), rel=1e-4)
        assert row.output_error < row.output_error_before and row.rows == 400 and row.damping is None
        assert row.seconds > 0


def quantized(model: nn.Module, x: Tensor, **given: Any) -> tuple[nn.Module, Any]:
    model = copy.deepcopy(model)
    how = {"weights": "gptq", "activations": None, "calibrate": lambda m: m(x)} | given
    return model, nvfp4.quantize_model(model, **how)


@pytest.mark.parametrize("activations", ["nvfp4", None])
def test_the_bytes_do_not_depend_on_hessian_bytes(
    activations: str | None, model: nn.Sequential, samples: Tensor
) -> None:
    """One Hessian at a time needs a call of `calibrate` for each of 8; further calls see the dense model."""
    expected, report = quantized(model, samples, activations=activations)
    for max_bytes, count in ((1, 8), (4 * K * K * 3, 4), (10**9, 1)):
        outputs: list[Tensor] = []
        given = {"activations": activations, "hessian_bytes": max_bytes}
        made, again = quantized(model, samples, calibrate=lambda m: outputs.append(m(samples)), **given)  # noqa: B023
        assert len(outputs) == count and all(torch.equal(y, outputs[0]) for y in outputs)
        assert state(made) == state(expected) and again == report
    assert state(quantized(model, samples, activations=activations, fuse=True)[0]).keys() != state(expected).keys()


def test_inputs_in_parts_of_any_shape(model: nn.Sequential, generator: torch.Generator) -> None:
    """Integers, whose sums no order rounds: 3 dimensions, several calls, none at all, 16 bits."""
    model = nn.Sequential(nn.Linear(K, 32), nn.ReLU()).requires_grad_(False)
    x = torch.randint(-8, 9, (12, 50, K), generator=generator).float()
    expected = state(quantized(model, x.reshape(-1, K))[0])

    def in_parts(m: nn.Module) -> None:
        for part in (x[:4], x[:0], x[4:5].transpose(0, 1), x[5:]):
            m(part)

    def in_16_bits(m: nn.Module) -> None:
        with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
            m(x.bfloat16())

    assert state(quantized(model, x, calibrate=in_parts)[0]) == expected
    assert state(quantized(model, x, calibrate=in_16_bits)[0]) == expected


class Cross(nn.Module):
    """Siblings that may read one tensor or several, in several orders."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(K, 32) for _ in range(3))
        self.between = nn.Linear(K, 32)

    def forward(self, how: str, x: Tensor, y: Tensor) -> None:
        if how == "cross":
            given = [(self.q_proj, x), (self.k_proj, y), (self.v_proj, y)]
        elif how == "one":
            given = [(self.q_proj, x), (self.k_proj, x.view(-1, 4, K)), (self.v_proj, x)]
        elif how == "between":
            given = [(self.q_proj, x), (self.between, y), (self.k_proj, x), (self.v_proj, x)]
        elif how == "twice":
            given = [(self.q_proj, x), (self.q_proj, y), (self.k_proj, y), (self.v_proj, x)]
        else:  # "once": the others were called before
            given = [(self.q_proj, x)]
        for layer, own in given:
            layer(own)
        if how == "changed":
            self.q_proj(x)
            x.mul_(0.5)
            self.k_proj(x)
            self.v_proj(y)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    ("calls", "shared"),
    [
        (("one", "one"), {3}),
        (("cross", "cross"), {1, 2}),
        (("one", "cross"), {1}),
        (("cross", "one"), {1, 2}),
        (("between",), {1, 2}),
        (("one", "twice"), {1}),
        (("one", "once"), {1, 2}),
        (("changed",), {1}),
    ],
)
def test_siblings_share_a_hessian_only_while_they_read_one_tensor(
    calls: tuple[str, ...], shared: set[int], inference: bool, generator: torch.Generator
) -> None:
    """Each has the bytes that it has alone, whatever the others read; here all sums are exact."""
    given = torch.randint(-8, 9, (2, 400, K), generator=generator).float() * 2
    model = Cross().requires_grad_(False)
    read: dict[str, list[Tensor]] = {}

    def calibrate(m: nn.Module) -> None:
        with torch.inference_mode(inference):
            for how in calls:
                m(how, *given.clone())

    names = ("q_proj", "k_proj", "v_proj")
    hooks = [
        getattr(model, n).register_forward_pre_hook(lambda m, x, n=n: read.setdefault(n, []).append(x[0].clone()))
        for n in names
    ]
    calibrate(model)
    for hook in hooks:
        hook.remove()
    made, _ = quantized(model, given, calibrate=calibrate)
    scale = torch.stack([global_scale_of(getattr(model, n).weight) for n in names]).amax()
    for n in names:
        x = torch.cat([part.reshape(-1, K) for part in read[n]])
        data, blocks, _ = gptq(getattr(model, n).weight, factor(x.T @ x, default_damping(K, len(x))), scale)
        assert torch.equal(made.get_submodule(n).weight, data), n
        assert torch.equal(made.get_submodule(n).weight_global_scale, scale)
