"""nvfp4.Fp8Linear against its definition, written again in fp64: equal bits where nothing rounds, a derived bound
elsewhere. Its checkpoints are in test_fp8_checkpoints.py."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from conftest import NO_GPU, gpu
from error_bounds import U, gamma
from fp8_definition import HALF, bound_of, defined, quantized, scale_shape, values, weight_of
from torch import Tensor

import nvfp4
from nvfp4.layers.fp8 import FP8, Fp8Tensors, StoredScales, quantize

N, K = 144, 320  # a second block of 128 of both, not whole
ACTIVATIONS = ("tensor", "static", "token", "block", None)
SCALES = ("tensor", "channel", "block")
KINDS = [*((a, s) for a in ACTIVATIONS for s in SCALES), (None, "group")]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def layer_of(
    generator: torch.Generator, activations: str | None, scales: str, bias: bool = True, exact: bool = False
) -> nvfp4.Fp8Linear:
    """A layer of random values; with exact ones of small integers, and scales that are powers of two."""
    shape = scale_shape(scales, N, K)
    if exact:
        weight = torch.randint(-16, 17, (N, K), generator=generator).float()
        scale = 2.0 ** torch.randint(-3, 2, shape, generator=generator)
        own = torch.randint(-64, 65, (N,), generator=generator) / 8
    else:
        weight = torch.randn(N, K, generator=generator) * 60
        scale = (torch.rand(shape, generator=generator) + 0.1) * 0.001
        if scales == "group":
            scale = 2.0 ** torch.randint(-14, -8, shape, generator=generator)
        own = torch.randn(N, generator=generator)
    given = torch.tensor(1.0 if exact else 0.013) if activations == "static" else None
    kind = "tensor" if activations == "static" else activations
    return nvfp4.Fp8Linear.from_packed(Fp8Tensors(weight.to(FP8), scale, given, own if bias else None, kind))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("activations", "scales"), KINDS)
def test_exact_sums_have_the_bits_of_the_definition(
    activations: str | None, scales: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """Each part that shares a dynamic scale has a value of 448, so that its scale is 1."""
    layer = layer_of(generator, activations, scales, exact=True)
    x = torch.randint(-16, 17, (2, 3, K), generator=generator).float()
    x[..., ::128] = 448.0
    x = x.to(dtype)
    with torch.no_grad():
        y = layer(x)
    assert y.dtype == dtype and y.shape == (2, 3, N)
    assert torch.equal(y, defined(layer, x).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("activations", "scales"), KINDS)
def test_random_values_are_within_the_bound(
    activations: str | None, scales: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    layer = layer_of(generator, activations, scales, bias=scales != "channel")
    x = (torch.randn(5, K, generator=generator) * 2).to(dtype)
    with torch.no_grad():
        y = layer(x).double()
    off, bound = (y - defined(layer, x)).abs(), bound_of(layer, x)
    assert (off <= bound).all(), float((off / bound).max())
    if activations is not None and dtype == torch.float32:  # the bound notices an input that is not quantized
        plain = copy.deepcopy(layer)
        plain.activations = None
        assert not ((plain(x).double() - defined(layer, x)).abs() <= bound).all()


def test_each_value_times_each_power_of_two() -> None:
    """MXFP8: all finite codes under all scales, as a dense weight and as products with unit vectors, rounded once."""
    codes = torch.arange(256, dtype=torch.uint8).repeat(255, 1)
    codes[:, 0x7F] = codes[:, 0xFF] = 0  # NaN
    scale = (2.0 ** (torch.arange(255).double() - 127)).float()[:, None].expand(255, 8).contiguous()
    layer = nvfp4.Fp8Linear.from_packed(Fp8Tensors(codes.view(FP8), scale))
    want = codes.view(FP8).double() * scale.double()[:, :1]
    finite = want.abs() <= torch.finfo(torch.float32).max
    assert torch.equal(layer.packed().dense(torch.float32).double()[finite], want[finite])
    in_range = finite & ((want.abs() >= 2.0**-130) | (want == 0))
    dense = layer.packed().dense(torch.bfloat16).double()
    assert torch.equal(dense[in_range], want[in_range])
    for dtype in DTYPES:
        kept = in_range if dtype == torch.bfloat16 else finite
        for start in range(0, 256, 32):  # a group at a time: an infinity times 0 is NaN
            own = Fp8Tensors(layer.weight[:, start : start + 32].contiguous(), scale[:, :1].contiguous())
            rows = kept[:, start : start + 32].all(1)
            y = nvfp4.Fp8Linear.from_packed(own)(torch.eye(32, dtype=dtype)).t()
            assert torch.equal(y[rows], want[rows, start : start + 32].float().to(dtype))


@pytest.mark.parametrize("activations", ["tensor", "token", "block"])
def test_inputs_are_rounded_to_the_nearest_even(activations: str, generator: torch.Generator) -> None:
    """Normal values, ties, subnormal ones, and zeros, whose scale is 1."""
    x = torch.randn(4, K, generator=generator)
    x[1] = torch.arange(K) * 2.0**-10
    x[1, ::128] = 448.0
    x[2] = 0
    x[3, 5] = 1e30
    found, scale = quantize(x, activations)
    want, theirs = quantized(x, activations)
    assert torch.equal(found.double(), want) and torch.equal(scale, theirs)
    found, scale = quantize(x, "tensor", torch.tensor(0.01))
    want, _ = quantized(x, "tensor", torch.tensor(0.01))
    assert torch.equal(found.double(), want) and float(found[3, 5].float()) == 448


def test_nan_spoils_what_shares_its_scale(generator: torch.Generator) -> None:
    for activations, rows in (("tensor", 3), ("token", 1), ("block", 1), ("static", 1), (None, 1)):
        layer = layer_of(generator, activations, "tensor")
        x = torch.randn(3, K, generator=generator)
        x[1, 7] = torch.nan
        with torch.no_grad():
            assert int(layer(x).isnan().all(-1).sum()) == rows and not layer(x)[1].isfinite().any()
    assert layer_of(generator, "static", "tensor")(torch.full((1, K), torch.inf)).isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scales", (*SCALES, "group"))
def test_the_gradient_of_the_input(scales: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    """dy . W, where a weight with scales of channels or blocks is rounded to the dtype. The weight stays in FP8 between
    forward and backward."""
    layer = layer_of(generator, None, scales)
    x = torch.randn(6, K, generator=generator).to(dtype).requires_grad_()
    dy = torch.randn(6, N, generator=generator).to(dtype)
    saved: list[torch.dtype] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.dtype), t)[1], lambda t: t):
        y = layer(x)
    assert saved == [FP8, torch.float32]
    y.backward(dy)
    w = weight_of(layer.weight, layer.weight_scale)
    u = HALF[dtype]
    magnitude = dy.double().abs() @ w.abs()
    least = 2.0**-25 if dtype == torch.float16 else 0.0
    operand = 0.0 if scales in ("tensor", "group") else (1 + U) * (1 + u) - 1
    bound = magnitude * ((1 + operand) * gamma(N + 1) + operand + 2 * u) + least * (1 + dy.double().abs().sum(-1, True))
    assert x.grad is not None and ((x.grad.double() - dy.double() @ w).abs() <= bound).all()
    for activations in ("tensor", "token", "block"):
        layer.activations = activations
        with pytest.raises(nvfp4.Error, match="^x: requires a gradient, which an Fp8Linear with activations='"):
            layer(x)
        with torch.no_grad():
            layer(x)


def test_shapes_and_autocast(generator: torch.Generator) -> None:
    layer = layer_of(generator, "token", "channel")
    with torch.no_grad():
        assert layer(torch.zeros(0, K)).shape == (0, N) and layer(torch.zeros(K)).shape == (N,)
        x = torch.randn(3, K, generator=generator)
        strided = torch.randn(K, 3, generator=generator).t()
        assert torch.equal(layer(strided), layer(strided.contiguous()))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x)
        assert torch.equal(y, layer(x.bfloat16())) and y.dtype == torch.bfloat16


@pytest.mark.parametrize(("activations", "scales"), KINDS)
def test_copies_and_casts(activations: str | None, scales: str, generator: torch.Generator) -> None:
    layer = layer_of(generator, activations, scales)
    layer.stored = StoredScales("modelopt", {"weight_scale": ("weight_scale_inv", (), torch.bfloat16)})
    x = torch.randn(3, K, generator=generator)
    with torch.no_grad():
        want = layer(x)
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        fresh = nvfp4.Fp8Linear(K, N, activations="tensor" if activations == "static" else activations)
        fresh.load_state_dict(torch.load(file))
        for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), fresh):
            assert torch.equal(copied(x), want) and repr(copied) == repr(layer)
        for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert copied.packed().stored == layer.stored
        for cast in (lambda m: m.to(torch.bfloat16), lambda m: m.half(), lambda m: m.double().float()):
            moved = cast(copy.deepcopy(layer))
            assert moved.weight.dtype == FP8 and moved.weight_scale.dtype == torch.float32
            assert torch.equal(moved.weight_scale, layer.weight_scale)
            moved.bias = layer.bias
            assert torch.equal(moved(x), want)
        assert layer.to("meta")(x.to("meta")).shape == (3, N)
    inputs = {"tensor": ", input_scale=dynamic", "static": ", input_scale=static"}.get(str(activations), "")
    kind = "tensor" if activations == "static" else activations
    text = f"in_features={K}, out_features={N}, bias=True, activations={kind!r}{inputs}, scales={scales!r}"
    assert repr(layer) == f"nvfp4.Fp8Linear({text})"


def test_compiled(generator: torch.Generator) -> None:
    for activations, scales in (("tensor", "tensor"), ("token", "channel"), ("block", "block"), (None, "channel")):
        layer = layer_of(generator, activations, scales)
        x = torch.randn(3, K, generator=generator)
        with torch.no_grad():
            assert torch.equal(torch.compile(layer, backend="eager", fullgraph=True)(x), layer(x))


def test_errors_name_argument_rule_and_value(generator: torch.Generator) -> None:
    weight, one = torch.zeros(4, 32).to(FP8), torch.tensor(1.0)

    def tensors(**changed: object) -> Callable[[], object]:
        return lambda: Fp8Tensors(**{"weight": weight, "weight_scale": one, **changed})  # type: ignore[arg-type]

    def state(**changed: Tensor) -> Callable[[], object]:
        layer = nvfp4.Fp8Linear(32, 4, bias=False)
        return lambda: layer.load_state_dict(layer.state_dict() | changed)

    activations = "must be 'tensor', 'token', 'block' or None"
    calls: dict[str, Callable[[], object]] = {
        "in_features: is 0; must be 1 or more": lambda: nvfp4.Fp8Linear(0, 4),
        "out_features: is -1; must be 1 or more": lambda: nvfp4.Fp8Linear(4, -1),
        "in_features: is of type float; must be an integer": lambda: nvfp4.Fp8Linear(4.0, 4),  # type: ignore[arg-type]
        f"activations: is 'nvfp4'; {activations}": lambda: nvfp4.Fp8Linear(4, 4, activations="nvfp4"),
        "scales: is 'row'; must be 'tensor', 'channel', 'block' or 'group'": lambda: nvfp4.Fp8Linear(
            4, 4, scales="row"
        ),
        "activations: is 'token' with scales of groups; must be None then": lambda: nvfp4.Fp8Linear(
            64, 4, activations="token", scales="group"
        ),
        "dtype: is int8; must be float16, bfloat16 or float32": lambda: nvfp4.Fp8Linear(4, 4, dtype=torch.int8),
        "weight: dtype is float32; must be float8_e4m3fn": tensors(weight=weight.float()),
        "weight: shape is [32]; must be [N, K] with 1 or more of each": tensors(weight=weight[0]),
        "weight_scale: shape is [32]; must be [] or [4] or [1, 1] or [4, 1]": tensors(weight_scale=torch.ones(32)),
        "weight_scale: dtype is float64; must be float32": tensors(weight_scale=one.double()),
        "weight_scale: is nan; must be positive and finite": tensors(weight_scale=torch.tensor([1, torch.nan, 1, 1])),
        "weight_scale: is 0; must be positive and finite": tensors(weight_scale=0 * one),
        "input_scale: is given but activations is 'token'; must be 'tensor' then": tensors(
            input_scale=one, activations="token"
        ),
        "input_scale: is -1; must be positive and finite": tensors(input_scale=-one, activations="tensor"),
        "bias: shape is [32]; must be [4]": tensors(bias=torch.zeros(32)),
        "x: shape is [2, 31]; the last dimension must be in_features = 32": lambda: nvfp4.Fp8Linear(32, 4)(
            torch.zeros(2, 31)
        ),
        "x: dtype is float64; must be float16, bfloat16 or float32": lambda: nvfp4.Fp8Linear(32, 4)(
            torch.zeros(2, 32).double()
        ),
        "dtype: is int64; must be a floating-point type": lambda: nvfp4.Fp8Linear(32, 4).type(torch.int64),
    }
    for message, call in calls.items():
        with pytest.raises(nvfp4.Error) as error:
            call()
        assert str(error.value) == message
    with pytest.raises(RuntimeError, match=r"weight: is float32 \[4, 32\]; must be float8_e4m3fn \[4, 32\]"):
        state(weight=weight.float())()
    with pytest.raises(RuntimeError, match=r"weight_scale: is bfloat16 \[\]; must be float32 \[\]"):
        state(weight_scale=one.bfloat16())()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("activations", "scales"), KINDS)
def test_on_a_gpu(activations: str | None, scales: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    """The sums of torch._scaled_mm are less exact than fp32. In 32 products on an H200 they were off by up to 2^-13.9
    of the sum of absolute products; four times that is accepted."""
    if not gpu():
        pytest.skip(NO_GPU)
    layer = layer_of(generator, activations, scales)
    if layer.bias is not None:
        layer.bias = layer.bias.to(dtype)
    x = (torch.randn(5, K, generator=generator) * 2).to(dtype)
    bound = bound_of(layer, x)
    want = defined(layer, x)
    magnitude = values(layer, x).abs() @ weight_of(layer.weight, layer.weight_scale).abs().T
    with torch.no_grad():
        moved = copy.deepcopy(layer).to("cuda")
        y = moved(x.to("cuda"))
    if moved._has_scaled_mm(x.to("cuda")):
        bound = bound + magnitude * 2.0**-12
    assert ((y.cpu().double() - want).abs() <= bound).all()


# ---- experts ----


def experts_of(
    generator: torch.Generator, activations: str | None = None, scales: str = "channel", gated: bool = True
) -> nvfp4.Fp8Experts:
    """Four experts with biases, 32 hidden and 48 inner values."""
    layers = {}
    for e in range(4):
        for name, n, k in (("gate_proj", 48, 32), ("up_proj", 48, 32), ("down_proj", 32, 48)):
            if gated or name != "gate_proj":
                weight = (torch.randn(n, k, generator=generator) * 60).to(FP8)
                scale = (torch.rand(scale_shape(scales, n, k), generator=generator) + 0.5) * 0.004
                if scales == "group":
                    scale = 2.0 ** torch.randint(-10, -6, scale.shape, generator=generator)
                bias = torch.randn(n, generator=generator)
                layers[f"{e}.{name}"] = nvfp4.Fp8Linear.from_packed(Fp8Tensors(weight, scale, None, bias, activations))
    first = ("{}.gate_proj", "{}.up_proj") if gated else ("{}.up_proj",)
    return nvfp4.Fp8Experts(4, 32, 48, layers, first, gated=gated)


def routing(generator: torch.Generator, tokens: int = 7) -> tuple[Tensor, Tensor]:
    """Two different experts of each token, of which some are elsewhere; expert 2 has no token."""
    index = torch.stack([torch.randperm(3, generator=generator)[:2] for _ in range(tokens)])
    index[index == 2] = 3
    index[1, 0], index[3] = -1, 9
    return index, torch.rand(tokens, 2, generator=generator)


def plain_experts(experts: nvfp4.Fp8Experts, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """In fp64, by dense weights."""
    y = torch.zeros_like(x)

    def product(name: str, rows: Tensor) -> Tensor:
        layer = experts.get_submodule(name)
        return rows @ weight_of(layer.weight, layer.weight_scale).T + layer.bias.double()

    for token, (own, factors) in enumerate(zip(index.tolist(), weights)):
        for e, factor in zip(own, factors):
            if 0 <= e < 4:
                rows = x[token : token + 1]
                h = product(f"{e}.up_proj", rows)
                gate = product(f"{e}.gate_proj", rows) if experts.gated else h
                h = torch.nn.functional.silu(gate) * (h if experts.gated else 1)
                y[token] += factor * product(f"{e}.down_proj", h)[0]
    return y


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("scales", [*SCALES, "group"])
def test_experts(scales: str, gated: bool, generator: torch.Generator) -> None:
    """Results and gradients against a loop in fp64, and the same bits with gradients recorded as without."""
    experts = experts_of(generator, None, scales, gated)
    x, (index, weights) = torch.randn(7, 32, generator=generator), routing(generator)
    wanted_x, wanted_w = x.double().requires_grad_(), weights.double().requires_grad_()
    result = plain_experts(experts, wanted_x, index, wanted_w)
    wanted = result.detach()
    with torch.no_grad():
        y = experts(x, index, weights)
    assert float((y - wanted).norm() / wanted.norm()) < 1e-5 and not y[3].any()
    given_x, given_w = x.clone().requires_grad_(), weights.clone().requires_grad_()
    again = experts(given_x, index, given_w)
    assert torch.equal(again, y)
    dy = torch.randn(7, 32, generator=generator)
    again.backward(dy)
    result.backward(dy.double())
    for own, theirs in ((given_x, wanted_x), (given_w, wanted_w)):
        assert float((own.grad - theirs.grad).norm() / theirs.grad.norm()) < 1e-5
    for dtype in (torch.bfloat16, torch.float16):
        with torch.no_grad():
            z = experts(x.to(dtype), index, weights.to(dtype))
        assert z.dtype == dtype and float((z - wanted).norm() / wanted.norm()) < 16 * HALF[dtype]


@pytest.mark.parametrize("activations", ["tensor", "token", "block"])
def test_experts_with_quantized_inputs(activations: str, generator: torch.Generator) -> None:
    """Each expert's layers have the rows that are routed to it."""
    experts = experts_of(generator, activations)
    x, (index, weights) = torch.randn(7, 32, generator=generator), routing(generator)
    with torch.no_grad():
        y = experts(x, index, weights)
        each = torch.zeros(7, 2, 32)
        for e in range(4):
            tokens, slots = (index == e).nonzero(as_tuple=True)
            if len(tokens):
                own = [experts.layer(name, e) for name in (*experts.first, experts.down)]
                each[tokens, slots] = own[2](nvfp4.gated(own[0](x[tokens]), own[1](x[tokens])))
        wanted = (each * weights.unsqueeze(2)).sum(1)
    assert torch.allclose(y, wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(nvfp4.Error, match="requires a gradient, which 0.gate_proj with activations='"):
        experts(x.requires_grad_(), index, weights)


def test_copies_and_errors_of_experts(generator: torch.Generator) -> None:
    experts = experts_of(generator)
    x, (index, weights) = torch.randn(7, 32, generator=generator), routing(generator)
    fresh = experts_of(generator)
    fresh.load_state_dict(experts.state_dict())
    with torch.no_grad():
        want = experts(x, index, weights)
        mapped = torch.tensor([3, 0, 1, -1], dtype=torch.int32)  # what others call 0 is 3 here
        theirs = torch.where(index == 3, 0, torch.where((index >= 0) & (index < 2), index + 1, -1))
        assert torch.equal(experts(x, theirs, weights, mapped), want)
        for copied in (copy.deepcopy(experts), pickle.loads(pickle.dumps(experts)), fresh, experts.to(torch.float64)):
            assert torch.equal(copied(x, index, weights), want) and repr(copied).startswith("nvfp4.Fp8Experts(")
    meta = copy.deepcopy(experts).to("meta")
    assert meta(x.to("meta"), index.to("meta"), weights.to("meta")).shape == x.shape
    layers = experts.layers
    for message, change in {
        "layers: has no 3.up_proj; must have 0.gate_proj, 0.up_proj, 0.down_proj of 4 experts": {"3.up_proj": None},
        "layers: has 4.up_proj, which is none of 0.gate_proj, 0.up_proj, 0.down_proj of 4 experts": {
            "4.up_proj": layers["0.up_proj"]
        },
        "layers: 1.down_proj is 48 x 32 (N x K); must be 32 x 48": {"1.down_proj": layers["0.up_proj"]},
        "layers: 1.down_proj: is of type Linear; must be an nvfp4.Fp8Linear": {"1.down_proj": torch.nn.Linear(4, 4)},
    }.items():
        own = {name: layer for name, layer in {**layers, **change}.items() if layer is not None}
        with pytest.raises(nvfp4.Error) as error:
            nvfp4.Fp8Experts(4, 32, 48, own)
        assert str(error.value) == message
    for names in ((), ("{}.gate_proj", "{}.up_proj") * 2):
        with pytest.raises(nvfp4.Error, match=f"^first: has {len(names)} names; must have 1 or 2$"):
            nvfp4.Fp8Experts(4, 32, 48, layers, names)
