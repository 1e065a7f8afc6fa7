"""nvfp4.Experts against a loop over dequantized weights in fp64, its gradients, and what torch does with the module."""

from __future__ import annotations

import copy
import io
import pickle
import shutil
import threading
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import NO_GPU, gpu
from expert_layers import INNER, KINDS, TOKENS, E, H, keep, make, routing
from torch import Tensor

import nvfp4
from nvfp4.layers.experts import w4a16
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.experts.stack import Stack

# Relative error of the result in the Frobenius norm. fp32: sums of at most 64 + 48 products, each rounded to 2^-24.
# 16 bits: the results of gate and up, of the activation, of each expert and of the sum are rounded, to 2^-11 or 2^-8.
BOUNDS = {torch.float32: 112 * 2.0**-24, torch.float16: 4 * 2.0**-11, torch.bfloat16: 4 * 2.0**-8}


def values(stack: Stack) -> Tensor:
    """The weights in fp64, from NumPy's side of the format: [E, P, N, K]."""
    get, (experts, parts, _, _) = stack.matrices(), stack.shape
    pairs = [[get(e, p) for p in range(parts)] for e in range(experts)]
    weight, linear = (
        torch.stack([torch.stack([pair[i].view(torch.uint8) for pair in row]) for row in pairs]) for i in range(2)
    )
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
    codes = torch.stack((weight & 15, weight >> 4), -1).flatten(-2)
    scales = linear.view(torch.float8_e4m3fn).double().repeat_interleave(16, -1)
    return table[codes.long()] * scales * stack.weight_global_scale.double()[..., None, None]


def activated(experts: Experts, gate: Tensor, up: Tensor | None) -> Tensor:
    if experts.limit is not None:
        gate = gate.clamp(max=experts.limit)
        up = None if up is None else up.clamp(-experts.limit, experts.limit)
    alpha = 1.702 if experts.alpha is None else experts.alpha
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "silu": lambda t: t / (1 + torch.exp(-t)),
        "gelu_tanh": lambda t: t / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (t + 0.044715 * t**3))),
        "relu2": lambda t: t.clamp(min=0) ** 2,
        "swiglu": lambda t: t / (1 + torch.exp(-alpha * t)),
    }
    h = functions[experts.activation](gate)
    if experts.activation == "swiglu" and up is not None:
        up = up + 1
    return h if up is None else h * up


def loop(experts: Experts, hidden: Tensor, index: Tensor, weights: Tensor, factors: Sequence[Tensor] = ()) -> Tensor:
    """The sum over each token's experts, one after another, in fp64. `factors`: of the adapters of both stacks."""
    gate_up, down = values(experts.gate_up), values(experts.down)
    if factors:
        left, right, other_left, other_right = (t.double() for t in factors)
        gate_up, down = gate_up + (left @ right).view_as(gate_up), down + (other_left @ other_right).view_as(down)
    bias, last = experts.gate_up.bias, experts.down.bias
    result = []
    for x, ids, factors in zip(hidden.double(), index.tolist(), weights.double()):
        total = torch.zeros(experts.hidden_size, dtype=torch.float64)
        for e, factor in zip(ids, factors):
            if not 0 <= e < experts.num_experts:
                continue
            given = x * factor if experts.apply_router_weight_on_input else x
            parts = [part @ given for part in gate_up[e]]
            if bias is not None:
                parts = [part + b.double() for part, b in zip(parts, bias[e])]
            y = down[e, 0] @ activated(experts, parts[0], parts[1] if experts.gated else None)
            y = y if last is None else y + last[e, 0].double()
            total = total + (y if experts.apply_router_weight_on_input else y * factor)
        result.append(total)
    return torch.stack(result)


def error(y: Tensor, wanted: Tensor) -> float:
    return float((y.detach().double() - wanted).norm() / wanted.norm())


def placed(experts: Experts, place: str) -> tuple[Experts, str]:
    """The experts in stacks or mapped files of a CPU, or on a GPU, and the device."""
    if place == "cuda" and not gpu():
        pytest.skip(NO_GPU)
    own = keep(experts) if place == "mapped" else copy.deepcopy(experts)
    device = "cuda" if place == "cuda" else "cpu"
    return own.to(device), device


# ---- results ----


def test_exact_where_no_sum_rounds(generator: torch.Generator) -> None:
    """Integers, squared: equal bits. Hidden may have any leading dimensions."""
    experts = make(generator, "relu2", False, integers=True)
    hidden = torch.randint(-1, 2, (3, 3, H), generator=generator).float()
    index, weights = routing(generator)
    weights = torch.tensor([0.5, 1.0, 2.0])[torch.randint(3, weights.shape, generator=generator)]
    wanted = loop(experts, hidden.reshape(-1, H), index, weights)
    assert wanted.abs().max() > 0
    y = experts(hidden, index.reshape(3, 3, 3), weights.reshape(3, 3, 3))
    assert y.shape == hidden.shape and torch.equal(y.reshape(-1, H).double(), wanted)
    assert torch.equal(experts(hidden.reshape(-1, H), index.int(), weights.half()).double(), wanted)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("activation", "gated"), KINDS)
def test_every_activation(
    activation: str, gated: bool, bias: bool, dtype: torch.dtype, generator: torch.Generator
) -> None:
    limits = {"limit": 7.0, "alpha": 1.5} if activation == "swiglu" else {}
    if activation == "silu" and gated and bias:
        limits = {"limit": 2.0}
    experts = make(generator, activation, gated, bias=bias, **limits)
    hidden = torch.randn(TOKENS, H, generator=generator).to(dtype)
    index, weights = routing(generator)
    y = experts(hidden, index, weights)
    assert y.dtype == dtype and error(y, loop(experts, hidden, index, weights)) < BOUNDS[dtype]


@pytest.mark.parametrize("place", ["cpu", "mapped", "cuda"])
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("activation", "gated"), KINDS)
def test_one_call_has_the_bits_of_two(
    activation: str,
    gated: bool,
    dtype: torch.dtype,
    place: str,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A product of 16-bit rows and its activation are one call, also with an adapter of the second product."""
    limits = {"limit": 0.5} if activation == "silu" else {"limit": 7.0, "alpha": 1.5} if activation == "swiglu" else {}
    called, one_call = 0, nvfp4._api.gated_grouped_gemm

    def counted(*arguments: Any, **options: Any) -> Tensor:
        nonlocal called
        called += 1
        return one_call(*arguments, **options)

    monkeypatch.setattr(nvfp4._api, "gated_grouped_gemm", counted)
    results = []
    for bias, batch_invariant in ((False, True), (True, False)):
        own = make(generator, activation, gated, bias=bias, batch_invariant=batch_invariant, **limits)
        experts, device = placed(own, place)
        factors = torch.randn(E, H, 2, generator=generator) / 8, torch.randn(E, 2, INNER, generator=generator) / 8
        hidden = torch.randn(TOKENS, H, generator=generator).to(device, dtype)
        index, weights = (t.to(device) for t in routing(generator))
        for adapter in (None, tuple(t.to(device) for t in factors)):
            with torch.no_grad():
                y = experts(hidden, index, weights, down_adapter=adapter)
            results.append((experts, adapter, hidden, index, weights, y))
    assert called == (4 if place != "mapped" and dtype != torch.float32 else 0)
    monkeypatch.setattr(w4a16, "activates", lambda stack, dtype: False)
    for experts, adapter, hidden, index, weights, y in results:
        with torch.no_grad():
            assert torch.equal(y, experts(hidden, index, weights, down_adapter=adapter))
    assert y.isfinite().all() and y.any()


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("k", [1, 3])
def test_router_weights_on_the_input(k: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    experts = make(generator, apply_router_weight_on_input=True)
    hidden = torch.randn(TOKENS, H, generator=generator).to(dtype)
    index, weights = routing(generator, k=k)
    y = experts(hidden, index, weights)
    assert error(y, loop(experts, hidden, index, weights)) < 2 * BOUNDS[dtype]


def test_rows_in_the_order_of_their_experts(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama-4's form. Rows of zeros give zeros and are not computed."""
    experts = make(generator)
    hidden = torch.randn(E * 4, H, generator=generator)
    hidden[[1, 2, 7, 8, 9, 10, 11]] = 0
    own = torch.arange(E).repeat_interleave(4).unsqueeze(1)
    computed: list[int] = []
    product = w4a16.product

    def counted(stack: Stack, a: Tensor, ends: Tensor, *arguments: Any, **options: Any) -> Tensor:
        computed.append(int(ends[-1]))
        return product(stack, a, ends, *arguments, **options)

    monkeypatch.setattr(w4a16, "product", counted)
    y = experts(hidden)
    assert computed == [E * 4 - 7] * 2
    assert error(y, loop(experts, hidden, own, torch.ones(E * 4, 1))) < BOUNDS[torch.float32]
    assert not y[[1, 2, 7, 8]].any() and experts(hidden[:0]).shape == (0, H)
    biased = make(generator, bias=True)
    assert error(biased(hidden), loop(biased, hidden, own, torch.ones(E * 4, 1))) < BOUNDS[torch.float32]


def test_no_tokens_and_no_experts(generator: torch.Generator) -> None:
    experts, hidden = make(generator), torch.randn(3, H, generator=generator)
    index, weights = routing(generator, 3)
    assert experts(hidden[:0], index[:0], weights[:0]).shape == (0, H)
    assert not experts(hidden, torch.full_like(index, E), weights).any()
    assert not experts(hidden, index[:, :0], weights[:, :0]).any()


@pytest.mark.parametrize("place", ["cpu", "mapped", "cuda"])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_batch_invariant(dtype: torch.dtype, place: str, generator: torch.Generator) -> None:
    experts, device = placed(make(generator, batch_invariant=True), place)
    hidden = torch.randn(40, H, generator=generator).to(device, dtype)
    index, weights = (t.to(device) for t in routing(generator, 40))
    whole = experts(hidden, index, weights)
    for rows in (slice(0, 1), slice(5, 8), slice(7, 40)):
        assert torch.equal(experts(hidden[rows], index[rows], weights[rows]), whole[rows])


def test_compiled(generator: torch.Generator) -> None:
    experts, hidden = make(generator), torch.randn(TOKENS, H, generator=generator).bfloat16()
    index, weights = routing(generator)
    compiled = torch.compile(experts, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(hidden, index, weights), experts(hidden, index, weights))


def in_mapped_files(generator: torch.Generator, mode: str) -> Experts:
    activations = None if mode == "W4A16" else "nvfp4"
    experts = make(generator, bias=True, activations=activations)
    for stack in (experts.gate_up, experts.down) if mode == "W4A4" else ():
        stack.input_global_scale = (torch.rand(stack.shape[:2], generator=generator) + 0.5) / 64
    kept = keep(experts)
    assert kept.mode == mode and kept.down.kept is not None
    return kept


MODES = ["W4A16", "W4A4", "W4A4 dynamic"]


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("mode", MODES)
def test_compiled_in_mapped_files(mode: str, dtype: torch.dtype, generator: torch.Generator) -> None:
    """The matrices stay where they are."""
    experts = in_mapped_files(generator, mode)
    one_of_all = mode == "W4A16" and dtype == torch.bfloat16 and shutil.which("g++") is not None
    for backend in ("eager", "aot_eager", *["inductor"] * one_of_all):
        torch._dynamo.reset()
        compiled = torch.compile(experts, backend=backend, fullgraph=True)
        for tokens in (TOKENS, 1, 20):
            hidden, routed = torch.randn(tokens, H, generator=generator).to(dtype), routing(generator, tokens)
            with torch.no_grad():
                assert torch.equal(compiled(hidden, *routed), experts(hidden, *routed)), (backend, tokens)
    assert experts.down.kept is not None and experts.down.weight is None


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_exported_in_mapped_files(mode: str, strict: bool, generator: torch.Generator) -> None:
    """The program's constants are the matrices where they are. A stored program has them once."""
    experts = in_mapped_files(generator, mode)
    for dtype in (torch.float32, torch.bfloat16):
        hidden, routed = torch.randn(TOKENS, H, generator=generator).to(dtype), routing(generator)
        other, again = torch.randn(TOKENS, H, generator=generator).to(dtype), routing(generator)
        with torch.no_grad():
            program = torch.export.export(experts, (hidden, *routed), strict=strict)
            stored = io.BytesIO()
            torch.export.save(program, stored)
            loaded = torch.export.load(stored)
            for run in (program.module(), loaded.module()):
                assert torch.equal(run(hidden, *routed), experts(hidden, *routed))
                assert torch.equal(run(other, *again), experts(other, *again))
        kept = [t for s in (experts.gate_up, experts.down) for part in s.kept for tensors in part for t in tensors]
        constants = [t for t in program.constants.values() if isinstance(t, Tensor)]
        assert {t.data_ptr() for t in kept} <= {t.data_ptr() for t in constants}
        sizes = [member.file_size for member in zipfile.ZipFile(stored).infolist() if "constant" in member.filename]
        assert sum(sizes) < 2 * sum(t.nbytes for t in kept)


def test_autocast(generator: torch.Generator) -> None:
    experts, hidden = make(generator), torch.randn(TOKENS, H, generator=generator)
    index, weights = routing(generator)
    with torch.autocast("cpu", torch.bfloat16):
        y = experts(hidden, index, weights)
    assert torch.equal(y, experts(hidden.bfloat16(), index, weights))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("gated", [True, False])
def test_matrices_that_are_kept(gated: bool, dtype: torch.dtype, generator: torch.Generator) -> None:
    """The bits of a stack, also of gradients; casts keep them, and a state dict has the stack."""
    experts = make(generator, "silu", gated, bias=True)
    kept, (index, weights) = keep(experts), routing(generator)
    hidden = torch.randn(TOKENS, H, generator=generator).to(dtype).requires_grad_()
    addresses = [t.data_ptr() for t in kept.gate_up.kept[0][0]]
    assert kept.gate_up.weight is None and kept.nbytes < experts.nbytes  # without padding of scales
    state = {name: t.nan_to_num() if "weight_scale" not in name else t for name, t in experts.state_dict().items()}
    found = kept.state_dict()
    for name, t in state.items():
        same_bytes = t.view(torch.uint8) == found[name].view(torch.uint8)
        assert found[name].dtype == t.dtype and same_bytes[t.view(torch.uint8) != 0x7F].all()
    for one in (kept, copy.deepcopy(kept), pickle.loads(pickle.dumps(kept)), kept.to(torch.bfloat16)):
        assert one.gate_up.kept is not None and one.gate_up.weight_global_scale.dtype == torch.float32
    assert [t.data_ptr() for t in kept.gate_up.kept[0][0]] == addresses
    kept = keep(experts)
    y, z = experts(hidden, index, weights), kept(hidden, index, weights)
    assert torch.equal(y, z) and error(y, loop(experts, hidden, index, weights)) < BOUNDS[dtype]
    dy = torch.randn(TOKENS, H, generator=generator).to(dtype)
    given, wanted = (torch.autograd.grad(out, hidden, dy)[0] for out in (z, y))
    assert error(given, wanted.double()) < BOUNDS[dtype]
    assert not kept(hidden, torch.full_like(index, E), weights).any()
    fresh = keep(make(generator, "silu", gated, bias=True))
    fresh.load_state_dict(found)
    assert fresh.down.kept is None and torch.equal(fresh(hidden, index, weights), y)
    meta = keep(experts).to("meta")
    assert meta.down.kept is None and meta.down.weight.is_meta


# ---- gradients ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("on_input", [False, True])
@pytest.mark.parametrize(("activation", "gated"), KINDS)
def test_gradients(
    activation: str, gated: bool, on_input: bool, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """Gradients of hidden and of the router's weights against autograd of the loop in fp64."""
    limit = {"limit": 7.0} if activation == "swiglu" else {}
    experts = make(generator, activation, gated, bias=True, apply_router_weight_on_input=on_input, **limit)
    hidden = torch.randn(TOKENS, H, generator=generator).to(dtype).requires_grad_()
    index, weights = routing(generator)
    weights.requires_grad_()
    dy = torch.randn(TOKENS, H, generator=generator)
    given = torch.autograd.grad(experts(hidden, index, weights), (hidden, weights), dy.to(dtype))
    wide = [t.detach().double().requires_grad_() for t in (hidden, weights)]
    wanted = torch.autograd.grad(loop(experts, wide[0], index, wide[1]), wide, dy.double())
    for own, right in zip(given, wanted):
        assert error(own, right) < 4 * BOUNDS[dtype]
    assert given[0].dtype == dtype and not given[1][(index < 0) | (index >= E)].any()


def test_gradient_of_rows_in_order(generator: torch.Generator) -> None:
    experts, hidden = make(generator), torch.randn(E * 2, H, generator=generator, requires_grad=True)
    own = torch.arange(E).repeat_interleave(2).unsqueeze(1)
    (given,) = torch.autograd.grad(experts(hidden).sum(), hidden)
    wide = hidden.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(loop(experts, wide, own, torch.ones(E * 2, 1)).sum(), wide)
    assert error(given, wanted) < 4 * BOUNDS[torch.float32]


# ---- adapters ----


def factors_of(experts: Experts, generator: torch.Generator, rank: int = 3) -> list[Tensor]:
    """The factors of an adapter for each stack, with about the size of the weights."""
    factors = []
    for stack in (experts.gate_up, experts.down):
        count, parts, n, k = stack.shape
        size = float(values(stack).square().mean().sqrt())
        left = torch.randn(count, parts * n, rank, generator=generator) * size
        factors += [left.requires_grad_(), torch.randn(count, rank, k, generator=generator).requires_grad_()]
    return factors


def adapters(factors: list[Tensor], device: str = "cpu") -> dict[str, tuple[Tensor, ...]]:
    """Them as arguments of a call."""
    own = tuple(t.to(device) for t in factors)
    return {"gate_up_adapter": own[:2], "down_adapter": own[2:]}


# Each adapter adds five roundings to a result's four: of both factors, of the two products and of the sum. In fp32 the
# sums have 2 * (64 + 48) terms and those of two ranks.
ADAPTED = {torch.float32: 240 * 2.0**-24, torch.float16: 14 * 2.0**-11, torch.bfloat16: 14 * 2.0**-8}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("on_input", [False, True])
@pytest.mark.parametrize("place", ["cpu", "mapped", "cuda"])
@pytest.mark.parametrize(("activation", "gated"), KINDS)
def test_adapters(
    activation: str, gated: bool, place: str, on_input: bool, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """The result, and the gradients of the input, the router's weights and the factors, against autograd of the loop in
    fp64 with the sum of weights and adapters."""
    # Far from all values: at the limit the gradient has a step, and a rounded value may lie on the other side.
    limit = {"limit": 1000.0} if activation == "swiglu" else {}
    experts = make(generator, activation, gated, bias=True, apply_router_weight_on_input=on_input, **limit)
    factors = factors_of(experts, generator)
    own, device = placed(experts, place)
    options = adapters(factors, device)
    hidden = torch.randn(TOKENS, H, generator=generator).to(dtype).requires_grad_()
    index, weights = routing(generator)
    weights.requires_grad_()
    y = own(hidden.to(device), index.to(device), weights.to(device), **options).cpu()
    with torch.no_grad():
        assert torch.equal(own(hidden.to(device), index.to(device), weights.to(device), **options).cpu(), y)
    dy = torch.randn(TOKENS, H, generator=generator)
    given = torch.autograd.grad(y, (hidden, weights, *factors), dy.to(dtype))
    wide = [t.detach().double().requires_grad_() for t in (hidden, weights, *factors)]
    right = loop(experts, wide[0], index, wide[1], wide[2:])
    assert y.dtype == dtype and error(y, right.detach()) < (2 if on_input else 1) * ADAPTED[dtype]
    for one, wanted in zip(given, torch.autograd.grad(right, wide, dy.double())):
        assert one.shape == wanted.shape and error(one, wanted) < 4 * ADAPTED[dtype]
    assert not any(one[0].any() for one in given[2:])  # expert 0 is never called


@pytest.mark.parametrize("rank", [1, 4, 8, 12])
@pytest.mark.parametrize("place", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_an_adapter_of_zeros(dtype: torch.dtype, place: str, rank: int, generator: torch.Generator) -> None:
    """Changes no bit, of the result and of the other gradients."""
    experts, device = placed(make(generator), place)
    hidden = torch.randn(TOKENS, H, generator=generator).to(device, dtype).requires_grad_()
    index, weights = (t.to(device) for t in routing(generator))
    weights.requires_grad_()
    before = experts(hidden, index, weights)
    gradients = torch.autograd.grad(before.square().sum(), (hidden, weights))
    factors = factors_of(experts.cpu(), generator, rank)
    for left in factors[::2]:
        left.data.zero_()
    experts, _ = placed(experts, place)
    after = experts(hidden, index, weights, **adapters(factors, device))
    assert torch.equal(after, before)
    for own, wanted in zip(torch.autograd.grad(after.square().sum(), (hidden, weights)), gradients):
        assert torch.equal(own, wanted)


@pytest.mark.parametrize("trained", ["factors", "hidden"])
def test_adapters_in_w4a4(trained: str, generator: torch.Generator) -> None:
    """They are added to the product, and the backward names what trains."""
    experts = make(generator, activations="nvfp4")
    hidden = torch.randn(TOKENS, H, generator=generator).requires_grad_(trained == "hidden")
    index, weights = routing(generator)
    plain = experts(hidden, index, weights).detach()
    factors = [t.requires_grad_(trained == "factors") for t in factors_of(experts, generator)]
    y = experts(hidden, index, weights, **adapters(factors))
    with torch.no_grad():
        assert torch.equal(experts(hidden, index, weights, **adapters(factors)), y) and error(y, plain.double()) > 0.1
    with pytest.raises(nvfp4.Error, match=r"^activations: is 'nvfp4' \(W4A4\).*must be activations=None"):
        y.sum().backward()
    for t in factors[::2]:
        t.data.zero_()
    assert torch.equal(experts(hidden, index, weights, **adapters(factors)), plain)


def test_compiled_adapters(generator: torch.Generator) -> None:
    experts, hidden = make(generator), torch.randn(TOKENS, H, generator=generator)
    options = adapters(factors_of(experts, generator))
    index, weights = routing(generator)
    compiled = torch.compile(experts, backend="eager", fullgraph=True)
    with torch.no_grad():
        for x in (hidden.bfloat16(), hidden.bfloat16() * 2):
            assert torch.equal(compiled(x, index, weights, **options), experts(x, index, weights, **options))
        with pytest.raises(Exception, match="hidden: dtype is float32, which torch's grouped_mm does not compile"):
            compiled(hidden, index, weights, **options)


@pytest.mark.parametrize("stack", ["gate_up", "down"])
def test_the_adapter_of_one_stack_alone(stack: str, generator: torch.Generator) -> None:
    """The factors have a gradient where nothing else requires one."""
    experts = make(generator)
    factors = factors_of(experts, generator)
    own = factors[:2] if stack == "gate_up" else factors[2:]
    for t in factors[2:] if stack == "gate_up" else factors[:2]:
        t.data.zero_()
    hidden = torch.randn(TOKENS, H, generator=generator)
    index, weights = routing(generator)
    given = torch.autograd.grad(experts(hidden, index, weights, **{f"{stack}_adapter": tuple(own)}).sum(), own)
    right = loop(experts, hidden, index, weights, factors)
    for one, wanted in zip(given, torch.autograd.grad(right.sum(), own)):
        assert error(one, wanted.double()) < 4 * ADAPTED[torch.float32]


# ---- the module ----


def with_input_scales(experts: Experts) -> Experts:
    experts.gate_up.input_global_scale = torch.rand(E, 2) + 0.1
    experts.down.input_global_scale = torch.rand(E, 1) + 0.1
    experts.down.input_global_scale[1] = torch.nan  # an expert without one
    return experts


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    def equal(s: Tensor, t: Tensor) -> bool:
        return s.dtype == t.dtype and s.shape == t.shape and s.numpy().tobytes() == t.numpy().tobytes()

    def plain(t: Tensor) -> Tensor:
        return t.view(torch.uint8) if t.dtype == torch.float8_e4m3fn else t.contiguous()

    return a.keys() == b.keys() and all(equal(plain(t), plain(b[name])) for name, t in a.items())


def test_state_dict_copies_and_pickles(generator: torch.Generator) -> None:
    experts = with_input_scales(make(generator, bias=True))
    state = experts.state_dict()
    assert {name.rpartition(".")[2] for name in state} == {
        *("weight", "weight_scale", "weight_global_scale", "input_global_scale", "bias")
    }
    fresh = Experts(E, H, INNER, bias=True)
    fresh.load_state_dict(state)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    stored = torch.load(file)
    for other in (fresh, copy.deepcopy(experts), pickle.loads(pickle.dumps(experts))):
        assert same(other.state_dict(), state)
    assert same(stored, state)
    fresh.load_state_dict(make(generator, bias=True).state_dict())  # without input scales
    assert fresh.down.input_global_scale is None
    for stack in (fresh.gate_up, fresh.down):  # as MXFP4 experts of a large span have it
        stack.weight_global_scale = stack.weight_global_scale.unsqueeze(-1).repeat(1, 1, stack.shape[2])
    fresh.load_state_dict(state)
    assert same(fresh.state_dict(), state)


def test_a_state_dict_of_another_thread_is_whole_while_a_model_is_saved(
    generator: torch.Generator, tmp_path: Path
) -> None:
    """nvfp4.save leaves the stacks out of its own state dict alone."""
    pytest.importorskip("safetensors", reason="comes with the extra `test`")
    model = torch.nn.ModuleDict({"experts": make(generator), "norm": torch.nn.LayerNorm(H)})
    wanted, states = model.state_dict(), []

    def meanwhile(*_: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=lambda: states.append(model.state_dict()))
            other.start()
            other.join()

    model.norm.register_state_dict_pre_hook(meanwhile)
    nvfp4.save(model, tmp_path / "saved")
    assert len(states) == 1 and same(states[0], wanted)
    assert sorted(nvfp4.load(tmp_path / "saved").tensors) == ["norm.bias", "norm.weight"]
    assert same(model.state_dict(), wanted)


@pytest.mark.parametrize("cast", [lambda m: m.to(torch.bfloat16), lambda m: m.half(), lambda m: m.double().float()])
def test_casts_leave_scales_alone(cast: Callable[[Any], Any], generator: torch.Generator) -> None:
    experts = with_input_scales(make(generator, bias=True))
    before = {name: t.clone() for name, t in experts.state_dict().items()}
    after = cast(experts).state_dict()
    fixed = [name for name in before if not name.endswith("bias")]
    assert same({name: after[name] for name in fixed}, {name: before[name] for name in fixed})
    assert after["down.bias"].dtype in (torch.bfloat16, torch.float16, torch.float32)


def test_repr_and_meta(generator: torch.Generator) -> None:
    text = repr(make(generator, "swiglu", limit=7.0, batch_invariant=True))
    assert (
        "nvfp4.Experts(\n  5, hidden_size=64, intermediate_size=48, activation='swiglu', gated=True, W4A16, limit=7.0"
        in text
    )
    assert "(gate_up): Stack(5 x 2 matrices of 48 x 64, bias=False)" in text
    meta = Experts(E, H, INNER, device="meta")
    assert all(t.is_meta for t in meta.buffers()) and not list(meta.parameters())


def test_new_experts_are_zero(generator: torch.Generator) -> None:
    index, weights = routing(generator)
    assert not Experts(E, H, INNER)(torch.randn(TOKENS, H, generator=generator), index, weights).any()


BAD_ARGUMENTS: dict[str, dict[str, Any]] = {
    "num_experts: is 0; must be 1 to 1024": {"num_experts": 0},
    "num_experts: is 1025; must be 1 to 1024": {"num_experts": 1025},
    "hidden_size: is 40; must be a positive multiple of 16": {"hidden_size": 40},
    "intermediate_size: is 0; must be a positive multiple of 16": {"intermediate_size": 0},
    "intermediate_size: is of type float; must be an integer": {"intermediate_size": 16.0},
    "limit: is -1; must be positive": {"limit": -1.0},
    "alpha: is 2; must be left out (1.702): silu has none": {"alpha": 2.0},
    "activation: is 'relu2' with a gate; must be 'silu', 'gelu_tanh', 'swiglu'": {"activation": "relu2"},
    "activation: is 'swiglu' without a gate; must be": {"activation": "swiglu", "gated": False},
    "dtype: is int8; must be float16, bfloat16 or float32": {"dtype": torch.int8},
}


@pytest.mark.parametrize("message", BAD_ARGUMENTS)
def test_arguments(message: str) -> None:
    given = {"num_experts": E, "hidden_size": H, "intermediate_size": INNER} | BAD_ARGUMENTS[message]
    with pytest.raises(nvfp4.Error) as raised:
        Experts(**given)
    assert str(raised.value).startswith(message)


X, IDS, W = torch.zeros(4, H), torch.zeros(4, 2, dtype=torch.long), torch.zeros(4, 2)
BAD_INPUTS: dict[str, tuple[Any, ...]] = {
    "hidden: is of type NoneType; must be a torch.Tensor": (None, IDS, W),
    f"hidden: shape is [4, 32]; the last dimension must be hidden_size = {H}": (X[:, :32], IDS, W),
    "hidden: dtype is int64; must be float16, bfloat16 or float32": (X.long(), IDS, W),
    f"hidden: has 4 rows; must be a multiple of num_experts = {E}": (X,),
    "top_k_index: is of type NoneType; must be a torch.Tensor": (X, None, W),
    "top_k_weights: is of type NoneType; must be a torch.Tensor": (X, IDS),
    "top_k_index: dtype is float32; must be int32 or int64": (X, W, W),
    "top_k_index: shape is [3, 2]; must be [4, k] for these tokens": (X, IDS[:3], W[:3]),
    "top_k_weights: dtype is int64; must be float16, bfloat16 or float32": (X, IDS, IDS),
    "top_k_weights: shape is [4, 1]; must be that of top_k_index: [4, 2]": (X, IDS, W[:, :1]),
}


@pytest.mark.parametrize("message", BAD_INPUTS)
def test_inputs(message: str) -> None:
    with pytest.raises(nvfp4.Error) as raised:
        Experts(E, H, INNER)(*BAD_INPUTS[message])
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(("name", "rows", "columns"), [("gate_up", 2 * INNER, H), ("down", H, INNER)])
@pytest.mark.parametrize("bad", range(4))
def test_adapters_of_other_shapes(bad: int, name: str, rows: int, columns: int) -> None:
    left = [(E, rows, 3), (E, rows, 2), (E, rows + 1, 3), (E, rows)][bad]
    right = [(E + 1, 3, columns), (E, 3, columns), (E, 3, columns), (E, 3, columns)][bad]
    adapter = {f"{name}_adapter": (torch.zeros(left), torch.zeros(right))}
    with pytest.raises(nvfp4.Error) as raised:
        Experts(E, H, INNER)(X, IDS, W, **adapter)
    wanted = f"must be [{E}, {rows}, r] and [{E}, r, {columns}]"
    assert str(raised.value) == f"{name}_adapter: shapes are {list(left)} and {list(right)}; {wanted}"


def test_states_of_other_dtypes(generator: torch.Generator) -> None:
    experts = make(generator)
    state = experts.state_dict()
    state["down.weight_scale"] = state["down.weight_scale"].float()
    with pytest.raises(RuntimeError, match=r"down\.weight_scale: is float32; must be float8_e4m3fn"):
        experts.load_state_dict(state)
