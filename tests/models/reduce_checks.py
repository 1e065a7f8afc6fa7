"""Checks of what the ranks of nvfp4.parallel send in 16 bits, and of experts on several ranks: parallel_checks.py runs
them."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
import torch.distributed as dist
from error_bounds import gamma, roundings
from expert_layers import filled
from parallel_ranks import FULL, MODES, K, N, Ranks, check, error, parallelize, same
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode

import nvfp4
from nvfp4.checkpoints import modelopt
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.packed import PackedLinear
from nvfp4.layers.parallel import ColwiseParallel, RowwiseParallel

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Calls(TorchDispatchMode):
    """The operators that are called, without views, and the dtype of the first tensor of each."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, torch.dtype | None]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = args[0][0] if args and isinstance(args[0], (list, tuple)) and args[0] else next(iter(args), None)
        if not getattr(function, "is_view", False):
            self.found.append((function._schema.name, first.dtype if isinstance(first, Tensor) else None))
        return function(*args, **(kwargs or {}))


def small(ranks: Ranks, activations: str | None, static: bool, n: int = N) -> nvfp4.Linear:
    """Each quarter of a row has one value, 1 or -1. With the inputs of `values` all sums of terms and of the bias are
    integers of at most 32 times 7/8 and the row's power of 2, and so have 8 significant bits."""
    g = ranks.generator
    weight = torch.zeros(n, 4, K // 4, dtype=torch.uint8)
    at = torch.randint(K // 4, (n, 4, 1), generator=g)
    weight.scatter_(2, at, 2 + 8 * torch.randint(2, at.shape, dtype=torch.uint8, generator=g))
    nibbles, scale = weight.reshape(n, K), 2.0 ** torch.randint(-2, 3, (n,), generator=g)
    return nvfp4.Linear.from_packed(
        PackedLinear(
            nibbles[:, ::2] | nibbles[:, 1::2] << 4,
            torch.ones(n, K // 16).to(torch.float8_e4m3fn),
            scale,
            torch.tensor(1.0) if static else None,
            torch.randint(-8, 9, (n,), generator=g) * 0.875 * scale,
            activations,
        )
    ).to(ranks.device)


def values(ranks: Ranks, *shape: int) -> Tensor:
    """They quantize to themselves, and the dynamic global scale is 6 * 7/8 / (6 * 448) = 2^-9."""
    return ranks.integers(*shape).to(ranks.device) * 0.875


def split(layer: nvfp4.Linear, ranks: Ranks, **options: Any) -> nn.Module:
    return parallelize(copy.deepcopy(layer), ranks.mesh, RowwiseParallel(**options))


# ---- reduce ----


@check
def exact_sums_of_16_bits_give_one_ranks_bits(ranks: Ranks) -> None:
    """In every mode, dtype of x, and layout of the result; the bias counts once."""
    dtypes = [torch.bfloat16, torch.float16, torch.float32]
    for (activations, static), reduce in itertools.product(MODES, DTYPES):
        layer = small(ranks, activations, static)
        for dtype in dtypes:
            x = values(ranks, 2, 7, K).to(dtype)
            want = layer(x)
            rows = split(layer, ranks, reduce=reduce)
            assert same(rows(ranks.own(x)), want)
            assert f"reduce='{reduce}'" in repr(rows)
            for dim in (0, 1, -1):
                y = split(layer, ranks, reduce=reduce, output_layouts=Shard(dim))(ranks.own(x))
                assert same(y, part(want, ranks, dim))
            y = split(layer, ranks, reduce=reduce, use_local_output=False)(ranks.own(x))
            assert isinstance(y, DTensor) and same(y.to_local(), want)
        empty = split(layer, ranks, reduce=reduce)(x.new_empty(2, 0, K // ranks.size))
        assert empty.shape == (2, 0, N) and empty.dtype == x.dtype


def part(whole: Tensor, ranks: Ranks, dim: int) -> Tensor:
    """This rank's share as torch.chunk divides it, empty where there are fewer chunks."""
    parts = whole.chunk(ranks.size, dim)
    return parts[ranks.rank] if ranks.rank < len(parts) else whole.narrow(dim, 0, 0)


@check
def sums_of_16_bits_stay_within_the_documented_bound(ranks: Ranks) -> None:
    """The bound in the docstring of RowwiseParallel, on random numbers, with and without a bias."""
    size = ranks.size
    kernel = "sm80" if ranks.device == "cuda" else nvfp4.info()["cpu_kernel"]
    for (activations, static), (reduce, sent), bias in itertools.product(MODES, DTYPES.items(), (True, False)):
        linear, layer, x, a, w, alpha = ranks.random_layer(activations, static, sent, bias)
        exact = total = error = torch.zeros(33, N, dtype=torch.float64)
        off = gamma(roundings(kernel, K // size, activations is None) + 3)
        for rank, (columns, rows) in enumerate(zip(a.chunk(size, 1), w.chunk(size, 1))):
            p, magnitude = alpha * (columns @ rows.T), alpha * (columns.abs() @ rows.abs().T)
            if rank == 0 and linear.bias is not None:
                own = linear.bias.detach().cpu().double()
                p, magnitude = p + own, magnitude + own.abs()
            exact, total, error = exact + p, total + p.abs(), error + off * magnitude
        u = torch.finfo(sent).eps / 2
        bound = error + size * u / (1 - size * u) * (total + error) + (size * 2.0**-25 if reduce == "fp16" else 0)
        with torch.no_grad():
            rows = split(layer, ranks, reduce=reduce)
            y = rows(ranks.own(x).to(ranks.device))
            assert y.dtype == sent and ((y.cpu().double() - exact).abs() <= bound).all()
            assert same(rows(ranks.own(x).to(ranks.device)), y)


@check
def sixteen_bits_are_sent_and_no_kernel_is_added(ranks: Ranks) -> None:
    """By an all-reduce, and by a reduce-scatter; only torch's operators are seen, and not the product."""
    names = {None: "c10d::allreduce_", Shard(0): "_c10d_functional::reduce_scatter_tensor"}
    for (layout, name), (reduce, sent) in itertools.product(names.items(), [*DTYPES.items(), ("fp32", torch.float32)]):
        rows = split(small(ranks, "nvfp4", True), ranks, reduce=reduce, output_layouts=layout)
        x = ranks.own(values(ranks, 8, K).to(DTYPES.get(reduce, torch.bfloat16)))
        with torch.no_grad():
            rows(x)  # the first call compares dtypes
            with Calls() as calls:
                rows(x)
        assert (name, sent) in calls.found
        beside = {operator for operator, _ in calls.found if operator.startswith("aten") and "empty" not in operator}
        assert beside == ({"aten::mul", "aten::add"} if reduce == "fp32" else set())


@check
def a_sequence_parallel_pair(ranks: Ranks) -> None:
    """A row-parallel layer scatters tokens, and the next column-parallel layer gathers them."""
    down, up = small(ranks, "nvfp4", True, n=256), ranks.layer("nvfp4", True, k=256)
    x = values(ranks, 4, 8, K).bfloat16()
    want = ranks.own(up(down(x)))
    for dim in (0, 1):
        rows = split(down, ranks, reduce="bf16", output_layouts=Shard(dim))
        columns = parallelize(copy.deepcopy(up), ranks.mesh, ColwiseParallel(input_layouts=Shard(dim)))
        assert same(columns(rows(ranks.own(x))), want)


@check
def tokens_are_gathered_as_codes(ranks: Ranks) -> None:
    """If the input scale is stored: the bits are those of gathered inputs, on random numbers, and fewer are sent."""
    for (activations, static), dim, rule in itertools.product(MODES, (0, 1), ("amax6", "four_over_six")):
        layer = ranks.layer(activations, static)
        layer.block_scale = rule
        if static:
            layer.input_global_scale.fill_(0.01)
            layer.pre_quant_scale = (torch.rand(K, generator=ranks.generator) + 0.5).to(ranks.device)
            layer.update_alpha()
        whole = parallelize(copy.deepcopy(layer), ranks.mesh, ColwiseParallel())
        columns = parallelize(copy.deepcopy(layer), ranks.mesh, ColwiseParallel(input_layouts=Shard(dim)))
        for dtype, shape in ((torch.bfloat16, (4, 20, K)), (torch.float32, (8, 4, K))):
            x = torch.randn(shape, generator=ranks.generator).to(ranks.device, dtype)
            own = ranks.own(x, dim)
            with torch.no_grad(), Calls() as calls:
                assert same(columns(own), whole(x))
            sent = [dtype for name, dtype in calls.found if "all_gather" in name]
            assert sent == ([torch.uint8] * 2 if static else [x.dtype])
        with torch.no_grad():
            given = DTensor.from_local(own, ranks.mesh, (Shard(dim),))
            assert same(columns(given), whole(x))
            empty = columns(x.new_empty(2, 0, K))
            assert empty.numel() == 0 and empty.shape[-1] == whole.out_features
        y = columns(own.clone().requires_grad_())
        assert same(y.detach(), whole(x)) and y.requires_grad


@check
def gradients_pass_through_sums_of_16_bits(ranks: Ranks) -> None:
    layer = small(ranks, None, False)
    x = values(ranks, 4, K).bfloat16().requires_grad_()
    dy = torch.randint(-4, 5, (4, N), generator=ranks.generator).to(ranks.device, torch.bfloat16)
    y = layer(x)
    (want,) = torch.autograd.grad(y, x, dy)
    for layout, own in ((Replicate(), dy), (Shard(-1), ranks.own(dy)), (Shard(0), ranks.own(dy, 0))):
        mine = ranks.own(x.detach()).requires_grad_()
        got = split(layer, ranks, reduce="bf16", output_layouts=layout)(mine)
        assert same(got.detach(), y.detach() if layout == Replicate() else ranks.own(y.detach(), layout.dim))
        assert same(torch.autograd.grad(got, mine, own)[0], ranks.own(want))


@check
def batch_invariance_with_sums_of_16_bits(ranks: Ranks) -> None:
    """Two ranks have one addition, which has no order."""
    rows = split(nvfp4.Linear.from_linear(nn.Linear(K, N).to(ranks.device), "nvfp4", 0.01), ranks, reduce="bf16")
    nvfp4.set_batch_invariant(rows)
    x = ranks.own(torch.randn(70, K, generator=ranks.generator).bfloat16().to(ranks.device))
    if ranks.size > 2:
        error(f"batch_invariant: is True for a layer whose sums of {ranks.size} ranks", lambda: rows(x))
        return
    with torch.no_grad():
        many = rows(x)
        for i in (0, 3, 69):
            assert same(rows(x[i : i + 1].clone()), many[i : i + 1])


@check
def ranks_that_differ_are_an_error_on_all(ranks: Ranks) -> None:
    """Without it gloo adds bits of other dtypes, and returns garbage."""
    mesh, last = ranks.mesh, ranks.size - 1
    odd = ranks.rank == last
    for word in ("int8", None, torch.bfloat16):
        error(f"reduce: is {word!r}; must be 'fp32', 'bf16' or 'fp16'", lambda word=word: RowwiseParallel(reduce=word))
    layer, style = ranks.layer("nvfp4", True, vector=False), RowwiseParallel(reduce="bf16" if odd else "fp32")
    told = f"reduce: is 'fp32' on rank 0 of the mesh and 'bf16' on rank {last}; must be equal"
    error(told, lambda: parallelize(layer, mesh, style))
    tensors = {f"down.{key}": t.cpu() for key, t in modelopt.write(layer.packed()).items()}
    model = nn.ModuleDict({"down": nn.Linear(K, N)})
    error(f"down.{told}", lambda: nvfp4.load(tensors, model, mesh=mesh, plan={"down": style}))
    assert type(layer) is nvfp4.Linear and type(model["down"]) is nn.Linear
    other = copy.deepcopy(layer)
    other.bias = layer.bias.half() if odd else layer.bias
    other.pre_quant_scale = torch.ones(K, device=ranks.device)
    for style in (RowwiseParallel(), ColwiseParallel()):
        error(f"bias: is float32 on rank 0 of the mesh and float16 on rank {last}",
              lambda style=style: parallelize(other, mesh, style))  # fmt: skip
    styles = [RowwiseParallel(), RowwiseParallel(reduce="bf16"), ColwiseParallel(input_layouts=Shard(0))]
    for style in styles:
        part = parallelize(copy.deepcopy(layer), mesh, style)
        x = ranks.integers(3, part.in_features).to(ranks.device)
        for _ in range(2):
            error(f"x: is float16 on rank 0 of the mesh and bfloat16 on rank {last}; must be equal",
                  lambda part=part, x=x: part(x.bfloat16() if odd else x.half()))  # fmt: skip
        part(x)
        with Calls() as calls:
            part(x)
        assert len([name for name, _ in calls.found if "gather" in name]) == 2 * isinstance(style, ColwiseParallel)


@check
def compiled_layers_that_send_fewer_bits(ranks: Ranks) -> None:
    if not FULL:
        return
    for (activations, static), layout in itertools.product(MODES, (Replicate(), Shard(0))):
        torch._dynamo.reset()
        rows = split(small(ranks, activations, static), ranks, reduce="bf16", output_layouts=layout)
        columns = parallelize(ranks.layer(activations, static), ranks.mesh, ColwiseParallel(input_layouts=layout))
        x = values(ranks, 8, K).bfloat16()
        with torch.no_grad():
            for layer, given in ((rows, ranks.own(x)), (columns, x if layout == Replicate() else ranks.own(x, 0))):
                compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
                assert same(compiled(given), layer(given))


# ---- experts ----


@check
def experts_on_several_ranks_add_up_to_one_ranks_result(ranks: Ranks) -> None:
    """Expert e is on rank e mod R, and expert_map says so; the ranks' results are added. x is a multiple of 6 e4m3
    scales in each block, weights are 0, 1 and -1, so the square of a sum of 4 of them has few bits, in units that
    quantizing makes no smaller than 2^-10. So no sum rounds."""
    count, hidden, inner, tokens, g = 8, 64, 16, 11, ranks.generator
    for activations in ("nvfp4", None):
        whole = Experts(count, hidden, inner, "relu2", False, activations=activations)
        for stack, scale in ((whole.gate_up, 1.0), (whole.down, 2.0**-6)):
            filled(stack, g, integers=True)
            if activations:
                stack.input_global_scale = torch.full_like(stack.weight_global_scale, scale)
        place = torch.arange(count)
        mine = place % ranks.size == ranks.rank
        expert_map = torch.where(mine, place // ranks.size, -1).int().to(ranks.device)
        own = Experts(count // ranks.size, hidden, inner, "relu2", False, activations=activations)
        for part, stack in ((own.gate_up, whole.gate_up), (own.down, whole.down)):
            part.load_state_dict({name: t[mine] for name, t in stack.state_dict().items()})
        x = torch.zeros(tokens, 4, hidden // 4)
        x[..., 3] = 0.75 * (1 - 2 * torch.randint(2, (tokens, 4), generator=g))
        index = torch.rand(tokens, count, generator=g).argsort(1)[:, :3]
        index[2, 1] = -1
        weights = 0.5 ** torch.randint(2, (tokens, 3), generator=g)
        given = [t.to(ranks.device) for t in (x.reshape(tokens, hidden), index, weights)]
        with torch.no_grad():
            want = whole.to(ranks.device)(*given)
            sums = own.to(ranks.device)(*given, expert_map=expert_map)
            assert not same(sums, want)
            dist.all_reduce(sums, group=ranks.mesh.get_group())
            assert same(sums, want) and want.count_nonzero() > want.numel() // 2
