"""Checks of nvfp4.parallel on several ranks: `python parallel_checks.py FOLDER DEVICE RANKS`.

The program imports torch once and forks the ranks (gloo and "cpu", or NCCL and "cuda" with a GPU for each). Each rank
runs every check below and of reduce_checks.py, with equal data, on the mesh of all ranks; of four, the first two run
them on a mesh of two as well. FOLDER/RANK.json has of each check "" or what went wrong. A rank that fails ends, so that
the others fail with it.
"""

from __future__ import annotations

import copy
import faulthandler
import itertools
import json
import mmap
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support"), str(Path(__file__).resolve().parent)]

import reduce_checks  # noqa: E402, F401  (registers its checks)
import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401  (DTensor imports it at its first use: a second in each rank)
import torch.distributed as dist  # noqa: E402
from error_bounds import gamma, roundings  # noqa: E402
from guarded_memory import PROT_NONE, protect  # noqa: E402
from parallel_ranks import CHECKS, FULL, MODES, K, N, Ranks, check, error, parallelize, same  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard  # noqa: E402
from torch.distributed.tensor import parallel as torch_parallel  # noqa: E402

import nvfp4  # noqa: E402
from nvfp4.checkpoints import compressed_tensors, modelopt, read  # noqa: E402
from nvfp4.layers.parallel import ColwiseParallel, RowwiseParallel  # noqa: E402

# ---- numbers ----


@check
def exact_sums_give_one_ranks_bits(ranks: Ranks) -> None:
    """Sums that no order of additions rounds, in every mode, dtype and layout of the result."""
    dtypes = [torch.bfloat16, torch.float16, torch.float32]
    for i, (activations, static) in enumerate(MODES):
        for j, (vector, bias) in enumerate([(True, True), (False, i == 2)]):
            layer = ranks.layer(activations, static, vector=vector, bias=bias)
            x = ranks.integers(2, 15, K).to(ranks.device, dtypes[(i + j) % 3])
            want = layer(x)
            columns = parallelize(copy.deepcopy(layer), ranks.mesh, ColwiseParallel())
            assert same(columns(x), ranks.own(want))
            rows = parallelize(copy.deepcopy(layer), ranks.mesh, RowwiseParallel())
            assert same(rows(ranks.own(x)), want)
            again = parallelize(copy.deepcopy(layer), ranks.mesh, RowwiseParallel(output_layouts=Shard(-1)))
            assert same(again(ranks.own(x)), ranks.own(want))


@check
def a_pre_quant_scale_is_split_along_k(ranks: Ranks) -> None:
    """Powers of two, so that the scaled input is exact."""
    for activations, static in MODES:
        layer = ranks.layer(activations, static)
        x = ranks.integers(2, 15, K).to(ranks.device, torch.bfloat16)
        want = layer(x)
        scale = 2.0 ** torch.randint(-2, 3, (K,), generator=ranks.generator)
        layer.pre_quant_scale = scale.to(ranks.device, torch.bfloat16)
        x = x / layer.pre_quant_scale
        assert same(layer(x), want)
        columns = parallelize(copy.deepcopy(layer), ranks.mesh, ColwiseParallel())
        assert same(columns(x), ranks.own(want))
        rows = parallelize(copy.deepcopy(layer), ranks.mesh, RowwiseParallel())
        assert same(rows(ranks.own(x)), want)


@check
def random_numbers_stay_within_the_bound(ranks: Ranks) -> None:
    """K additions at most, R - 1 of them between ranks, alpha, bias, and one rounding. By rows of the weight: the bits
    of one rank with these rows, and on a CPU, where no order depends on N, the bits of the whole layer."""
    for activations, static in MODES:
        linear, layer, x, a, w, alpha = ranks.random_layer(activations, static, torch.bfloat16)
        bias = linear.bias.detach().cpu().double()
        exact = alpha * (a @ w.T) + bias
        kernel = "sm80" if ranks.device == "cuda" else nvfp4.info()["cpu_kernel"]
        many = roundings(kernel, K, activations is None, ranks.size) + 3
        loss = gamma(many) * (alpha * (a.abs() @ w.abs().T) + bias.abs())
        loss += torch.finfo(x.dtype).eps / 2 * (exact.abs() + loss)
        rows = parallelize(copy.deepcopy(layer), ranks.mesh, RowwiseParallel())
        columns = parallelize(copy.deepcopy(layer), ranks.mesh, ColwiseParallel(output_layouts=Replicate()))
        with torch.no_grad():
            got = rows(ranks.own(x).to(ranks.device)), columns(x.to(ranks.device))
            for y in got:
                assert y.dtype == x.dtype and ((y.cpu().double() - exact).abs() <= loss).all()
            if ranks.device == "cpu":
                assert same(got[1], layer(x))


@check
def a_dynamic_scale_is_the_whole_inputs(ranks: Ranks) -> None:
    """Only the last rank's columns have large values; then a NaN and an infinity in the first's, and in the last's."""
    layer = ranks.layer("nvfp4", False)
    rows = parallelize(copy.deepcopy(layer), ranks.mesh, RowwiseParallel())
    x = torch.randn(9, K, generator=ranks.generator)
    x[:, -K // ranks.size :] *= 100
    bound = 2.0**-11 * layer(x.to(ranks.device)).abs().amax()
    for value, at in itertools.product((1.0, float("nan"), float("inf")), (5, K - 5)):
        x[3, 5] = x[3, K - 5] = 1.0
        x[3, at] = value
        want, got = layer(x.to(ranks.device)), rows(ranks.own(x).to(ranks.device))
        assert torch.equal(want.isnan(), got.isnan())
        assert ((got - want).abs() <= bound)[~want.isnan()].all()
        assert want[4].isfinite().all()


@check
def equal_bits_from_run_to_run_and_on_every_rank(ranks: Ranks) -> None:
    layer = nvfp4.Linear.from_linear(nn.Linear(1024, 130)).to(ranks.device)
    rows = parallelize(layer, ranks.mesh, RowwiseParallel())
    x = ranks.own(torch.randn(5, 1024, generator=ranks.generator)).to(ranks.device)
    with torch.no_grad():
        first = rows(x)
        for i in range(1000 if ranks.device == "cuda" or FULL else 20):
            if i % 5 == 0:
                rows(torch.randn(i + 1, x.shape[1]).to(ranks.device))
            assert same(rows(x), first)
    others = [torch.empty_like(first) for _ in range(ranks.size)]
    dist.all_gather(others, first, group=ranks.mesh.get_group())
    assert all(same(other, first) for other in others)


@check
def layouts_of_inputs_and_outputs(ranks: Ranks) -> None:
    """Rows of x that no number of ranks divides: sequence parallelism pads them."""
    layer = ranks.layer("nvfp4", False)
    x = ranks.integers(13, K).to(ranks.device)
    want = layer(x)

    def split(style: torch_parallel.ParallelStyle) -> nn.Module:
        return parallelize(copy.deepcopy(layer), ranks.mesh, style)

    assert same(split(RowwiseParallel(output_layouts=Shard(0)))(ranks.own(x)), ranks.own(want, 0))
    assert same(split(RowwiseParallel(input_layouts=Replicate()))(x), want)
    y = split(RowwiseParallel(use_local_output=False))(DTensor.from_local(ranks.own(x), ranks.mesh, (Shard(-1),)))
    assert isinstance(y, DTensor) and y.placements == (Replicate(),) and same(y.to_local(), want)
    y = split(RowwiseParallel(output_layouts=Shard(1), use_local_output=False))(ranks.own(x))
    assert y.shape == want.shape and same(y.full_tensor(), want)
    y = split(ColwiseParallel(use_local_output=False))(x)
    assert isinstance(y, DTensor) and y.shape == want.shape and same(y.full_tensor(), want)
    gathered = split(ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()))
    assert same(gathered(ranks.own(x.repeat(4, 1), 0)), want.repeat(4, 1))
    for style, width in ((ColwiseParallel(), K), (RowwiseParallel(), K // ranks.size)):
        empty = split(style)(x.new_empty(2, 0, width))
        assert empty.shape == (2, 0, ranks.own(want).shape[1] if width == K else N)


@check
def rows_that_no_number_of_ranks_divides(ranks: Ranks) -> None:
    layer = ranks.layer("nvfp4", True, n=259)
    x = ranks.integers(3, K).to(ranks.device)
    want = layer(x)
    assert same(parallelize(copy.deepcopy(layer), ranks.mesh, ColwiseParallel())(x), ranks.own(want))
    assert same(
        parallelize(copy.deepcopy(layer), ranks.mesh, ColwiseParallel(output_layouts=Replicate()))(x), want
    )  # fmt: skip


@check
def a_fused_layer_has_its_share_of_each_part(ranks: Ranks) -> None:
    parts = [ranks.layer("nvfp4", True, n=n, vector=False) for n in (132, 36, 36)]
    x = ranks.integers(5, K).to(ranks.device)
    fused = parallelize(nvfp4.Linear.fuse(parts), ranks.mesh, ColwiseParallel(parts=[132, 36, 36]))
    assert same(fused(x), torch.cat([ranks.own(part(x)) for part in parts], -1))


@check
def gradients_of_the_input(ranks: Ranks) -> None:
    """A pair of layers, as in a model: each rank sees the gradient of the whole input."""
    warnings.filterwarnings("error", "c10d::")  # of a collective in place, which autograd takes for no operation
    up = ranks.layer(None, False, vector=False, bias=False)
    down = ranks.layer(None, False, k=256, n=40, vector=False, bias=False)
    for layer in (up, down):
        layer.weight_global_scale = torch.tensor(0.25, device=ranks.device)
        layer.update_alpha()
    x = ranks.integers(3, K).to(ranks.device).requires_grad_()
    z = ranks.integers(4, 256).to(ranks.device, torch.bfloat16).requires_grad_()
    shapes = (3, N), (4, 40)
    dy, dz = (torch.randint(-4, 5, shape, generator=ranks.generator).to(ranks.device) for shape in shapes)
    dy, dz = dy.float(), dz.bfloat16()
    want = torch.autograd.grad(up(x), x, dy)[0], torch.autograd.grad(down(z), z, dz)[0]
    for layout, own in ((Shard(-1), ranks.own(dy)), (Replicate(), dy)):
        columns = parallelize(copy.deepcopy(up), ranks.mesh, ColwiseParallel(output_layouts=layout))
        assert same(torch.autograd.grad(columns(x), x, own)[0], want[0])
    for layout, own in ((Replicate(), dz), (Shard(-1), ranks.own(dz)), (Shard(0), ranks.own(dz, 0))):
        rows = parallelize(copy.deepcopy(down), ranks.mesh, RowwiseParallel(output_layouts=layout))
        mine = ranks.own(z.detach()).requires_grad_()
        assert same(torch.autograd.grad(rows(mine), mine, own)[0], ranks.own(want[1]))


# ---- modules ----


class Block(nn.Module):
    """q, k, v and o without the attention between, and a head that stays dense."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.attn = nn.ModuleDict({f"{name}_proj": nn.Linear(256, 512, bias) for name in "qkv"})
        self.attn["o_proj"] = nn.Linear(512, 256, bias)
        self.norm = nn.LayerNorm(256)
        self.lm_head = nn.Linear(256, 64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.attn[f"{name}_proj"](x) for name in "qkv")
        return self.lm_head(self.norm(x + self.attn["o_proj"](q + k.relu() - v)))


def plan() -> dict[str, torch_parallel.ParallelStyle]:
    styles = {"attn.[qkv]_proj": ColwiseParallel(), "attn.o_proj": RowwiseParallel()}
    return styles | {"lm_head": ColwiseParallel(output_layouts=Replicate())}


@check
def a_plan_splits_a_model(ranks: Ranks) -> None:
    """The first rank's model is split, as torch does it. Layers that are dense are torch's; joined ones stay joined."""
    for fuse in (False, True):
        torch.manual_seed(ranks.rank)
        model = Block().to(ranks.device)
        nvfp4.quantize_model(model, fuse=fuse)
        x = ranks.integers(7, 256).to(ranks.device)
        with torch.no_grad():
            want = model(x)
            dist.broadcast(want, dist.get_global_rank(ranks.mesh.get_group(), 0), group=ranks.mesh.get_group())
            parallelize(model, ranks.mesh, plan())
            assert torch.allclose(model(x), want, rtol=1e-4, atol=1e-4)
        width = 512 // ranks.size
        assert [model.attn[f"{name}_proj"].out_features for name in "qkv"] == [width] * 3
        assert model.attn["o_proj"].in_features == width and isinstance(model.lm_head.weight, DTensor)
        kept = model.attn["q_proj"].linear.weight if fuse else model.attn["q_proj"].weight
        assert kept.shape[0] == (3 * width if fuse else width)
        error("layer: is part", lambda model=model: nvfp4.save(model, "never", "modelopt"))
        error("layer: is part", model.attn["o_proj"].to_linear)
        error("attn.q_proj: is a ColwiseLinear; must be", lambda model=model: nvfp4.dequantize_model(model))
        error("module: is split already", lambda model=model: parallelize(model, ranks.mesh, plan()))
        state = {name: t.clone() for name, t in model.attn.state_dict().items()}
        copy.deepcopy(model.attn).load_state_dict(state)
        assert f"part {ranks.rank} of {ranks.size} of 256 x 512" in repr(model)
    model = Block(bias=False).to(ranks.device)
    nvfp4.quantize_model(model, fuse=True)
    parallelize(model, ranks.mesh, {"attn.[qk]_proj": ColwiseParallel()})
    with torch.no_grad():
        model.attn["k_proj"](x)
        error("layer: is joined with layers that a parallel plan splits", lambda: model.attn["v_proj"](x))


@check
def recorded_w4a4_runs_and_its_backward_raises(ranks: Ranks) -> None:
    for style in (ColwiseParallel, RowwiseParallel):
        x = ranks.integers(3, K).to(ranks.device)
        layer = parallelize(ranks.layer("nvfp4", True), ranks.mesh, style())
        given = ranks.own(x) if style is RowwiseParallel else x
        with torch.no_grad():
            want = layer(given)
        y = layer(given.clone().requires_grad_())
        assert same(y.detach(), want)
        error("activations: is 'nvfp4' (W4A4), which has no gradient", y.sum().backward)


@check
def a_mesh_of_one_rank_changes_nothing(ranks: Ranks) -> None:
    model = Block().to(ranks.device)
    nvfp4.quantize_model(model, ignore=["lm_head"], fuse=True)
    x = ranks.integers(7, 256).to(ranks.device)
    with torch.no_grad():
        want = model(x)
        parallelize(model, MESHES["alone"], plan())
        assert same(model(x), want)


@check
def a_rank_may_split_its_own_tensors(ranks: Ranks) -> None:
    layer = ranks.layer("nvfp4", True)
    layer.weight += ranks.rank  # another one on each rank
    x = ranks.integers(3, K).to(ranks.device)
    want = ranks.own(layer(x))
    assert same(parallelize(layer, ranks.mesh, ColwiseParallel(), src_data_rank=None)(x), want)


@check
def errors_name_the_rule(ranks: Ranks) -> None:
    mesh, size = ranks.mesh, ranks.size

    def split(style: torch_parallel.ParallelStyle, k: int = K, n: int = N) -> Callable[[], object]:
        return lambda: parallelize(nvfp4.Linear(k, n, device=ranks.device), mesh, style)

    unit = f"; must be a multiple of 64 for each of the {size} ranks"
    error(f"in_features: is 96{unit}", split(RowwiseParallel(), k=96))
    error(f"in_features: is {64 * size + 32}{unit}", split(RowwiseParallel(), k=64 * size + 32))
    error(f"in_features: is {32 * size}{unit}", split(RowwiseParallel(), k=32 * size))
    few = size + 1 if size > 2 else 1
    error(f"out_features: is {few}; must have rows for each of the {size} ranks", split(ColwiseParallel(), n=few))
    error("parts: has one of 37 rows; must be multiples of", split(ColwiseParallel(parts=[100, 37, 35])))
    error(
        "parts: are [100, 36], 136 in all; must add up to out_features = 172", split(ColwiseParallel(parts=[100, 36]))
    )
    error("parts: are given, with an output", lambda: ColwiseParallel(parts=[4], output_layouts=Replicate()))
    error("parts: are given for a Linear", lambda: parallelize(nn.Linear(4, 4), mesh, ColwiseParallel(parts=[4])))
    error("output_layouts: is Partial", lambda: RowwiseParallel(output_layouts=Partial()))
    layer = ranks.layer("nvfp4", True)
    rows = parallelize(copy.deepcopy(layer), mesh, RowwiseParallel())
    wide = f"x: shape is [2, {K}]; the last dimension must be in_features = {K // size}"
    error(wide, lambda: rows(torch.ones(2, K, device=ranks.device)))
    model = Block().to(ranks.device)
    nvfp4.quantize_model(model, fuse=True)
    error("module: is joined", lambda: parallelize(model, mesh, {"attn.q_proj": RowwiseParallel()}))
    error("module: is joined", lambda: parallelize(model, mesh, {"attn.q_proj": ColwiseParallel(parts=[512])}))
    error("device_mesh: has 2 dimensions; must have 1", lambda: parallelize(layer, MESHES["2-D"], RowwiseParallel()))


# ---- loading ----


def stored(ranks: Ranks, folder: Path, format: str, w4a4: bool) -> Path:
    """A checkpoint of a Big, whose weights have pages that belong to one rank alone."""
    import safetensors.torch as safetensors

    path = folder / f"{ranks.size}_{format}_{w4a4}_{dist.get_rank()}"
    write = {"modelopt": modelopt, "compressed-tensors": compressed_tensors}[format].write
    torch.manual_seed(5)
    tensors = {"norm.weight": torch.randn(64), "norm.bias": torch.randn(64), "lm_head.weight": torch.randn(50, 64)}
    for name, layer in Big(folder=None).layers.items():
        quantized = nvfp4.Linear.from_linear(layer, "nvfp4" if w4a4 else None, 2.0**-9 if w4a4 else None)
        quantized.weight_global_scale = torch.tensor(2.0**-11)
        tensors |= {f"layers.{name}.{key}": t for key, t in write(quantized.packed()).items()}
    path.mkdir()
    safetensors.save_file({name: t.clone() for name, t in tensors.items()}, path / "model.safetensors")
    algorithm = "NVFP4" if w4a4 else "W4A16_NVFP4"
    config = {"quant_method": format, "quant_algo": algorithm, "ignore": ["lm_head"]}
    if format == "compressed-tensors":
        four = {"num_bits": 4, "type": "float", "group_size": 16}
        inputs = four | {"dynamic": "local"} if w4a4 else None
        groups = {"group_0": {"targets": ["Linear"], "weights": four, "input_activations": inputs}}
        config = {"quant_method": format, "ignore": ["lm_head"], "config_groups": groups}
    (path / "config.json").write_text(json.dumps({"quantization_config": config}))
    return path


class Big(nn.Module):
    """`down` has rows of 32 kB: of four ranks each has two pages of every row."""

    def __init__(self, folder: object = None) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"up": nn.Linear(256, 1030), "down": nn.Linear(65536, 17, bias=False)})
        self.norm = nn.LayerNorm(64)
        self.lm_head = nn.Linear(64, 50, bias=False)


def forbidden(t: Tensor, own: tuple[slice, slice]) -> Iterator[tuple[int, int]]:
    """Addresses of the whole pages of a [rows, bytes] tensor outside of a rank's slice."""
    rows, width = t.shape
    mine = torch.zeros(rows, width, dtype=torch.bool)
    mine[own] = True
    edges = torch.nn.functional.pad(mine.flatten().int(), (1, 1), value=1).diff()
    first, last = ((edges == sign).nonzero().flatten().tolist() for sign in (-1, 1))
    for begin, end in zip(first, last):
        begin, end = t.data_ptr() + begin, t.data_ptr() + end
        begin, end = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if begin < end:
            yield begin, end


@check
def loading_reads_a_ranks_own_slices(ranks: Ranks) -> None:
    """While a rank loads, all whole pages of other ranks' slices are inaccessible: reading one ends the process."""
    rank, size, folder = ranks.rank, ranks.size, FOLDER
    read_files = read.read_files
    counts = []

    def guarded(path: Path, mapped: bool) -> tuple[dict[str, Tensor], dict[str, str]]:
        tensors, metadata = read_files(path, mapped)
        closed = total = 0
        for name, t in tensors.items():
            if t.ndim == 2 and ".up." in name:
                step = -(-t.shape[0] // size)
                own = slice(rank * step, (rank + 1) * step), slice(None)
            elif t.ndim == 2 and ".down." in name:
                step = t.shape[1] // size
                own = slice(None), slice(rank * step, (rank + 1) * step)
            else:
                continue
            total += t.nbytes
            for begin, end in forbidden(t.view(torch.uint8), own):
                protect(begin, end - begin, PROT_NONE)
                closed += end - begin
        counts.append(closed / total)
        return tensors, metadata

    styles = {"layers.up": ColwiseParallel(), "layers.down": RowwiseParallel()}
    head = {"lm_head": torch_parallel.ColwiseParallel()}
    for format, w4a4, meta in (("modelopt", True, True), ("compressed-tensors", False, False)):
        path = stored(ranks, folder, format, w4a4)
        with torch.device("meta" if meta else ranks.device):
            model, whole = Big(), Big()
        nvfp4.load(path, whole)
        read.read_files = guarded
        try:
            nvfp4.load(path, model, mesh=ranks.mesh, plan=styles | head)
        finally:
            read.read_files = read_files
        for name, style in styles.items():
            got = model.get_submodule(name)
            want = parallelize(whole.get_submodule(name), ranks.mesh, style, src_data_rank=None)
            assert type(got) is type(want) and got.activations == want.activations == ("nvfp4" if w4a4 else None)
            for key, t in want.named_buffers():
                mine = got.get_buffer(key)
                assert mine.device.type == ranks.device, (name, key, mine.device)
                assert same(mine.view(-1).view(torch.uint8), t.to(mine.device).view(-1).view(torch.uint8)), (
                    name,
                    key,
                    mine,
                    t,
                )
        assert same(model.lm_head.weight.to_local(), ranks.own(whole.lm_head.weight, 0).to(ranks.device))
        assert same(model.norm.weight, whole.norm.weight)
    # Not closed are pages of two ranks, and the scales of `down`: 4 kB a row.
    assert min(counts) > 0.65 * (1 - 1 / size), counts


@check
def a_plan_that_does_not_fit_changes_nothing(ranks: Ranks) -> None:
    path = stored(ranks, FOLDER, "modelopt", False)
    model = Big()
    before = {name: (t.data_ptr(), t.clone()) for name, t in model.state_dict().items()}
    mesh = ranks.mesh

    def load(**plan: torch_parallel.ParallelStyle) -> Callable[[], object]:
        given = {key.replace("_", "."): style for key, style in plan.items()}
        return lambda: nvfp4.load(path, model, mesh=mesh, plan=given)

    error("plan: has torch.distributed.tensor.parallel.style.ColwiseParallel for layers.up, which is NVFP4",
          load(layers_up=torch_parallel.ColwiseParallel()))  # fmt: skip
    error("plan: 'layers.none' matches no module of the model", load(layers_none=ColwiseParallel()))
    many = {"layers.*": ColwiseParallel(), "layers.up": ColwiseParallel()}
    error("plan: 'layers.up' matches 'layers.up', which an earlier key matches too",
          lambda: nvfp4.load(path, model, mesh=mesh, plan=many))  # fmt: skip
    error("layers.up.parts: has one of 515 rows", load(layers_down=RowwiseParallel(),
                                                       layers_up=ColwiseParallel(parts=[515, 515])))  # fmt: skip
    tensors = {name: t.clone() for name, t in read.read_files(path)[0].items()}
    tensors["layers.down.weight_scale"].view(torch.uint8)[3] = 0x7F
    for plan in ({"layers.down": RowwiseParallel()}, {"layers.up": ColwiseParallel()}):  # sliced, and whole
        error("layers.down.weight_scale: is nan at row 3, column 0",
              lambda plan=plan: nvfp4.load(tensors, model, mesh=mesh, plan=plan))  # fmt: skip
    import safetensors.torch as safetensors

    for key in ("weight_scale_2", "bias", "weight_scale", "weight"):
        tensors.pop(f"layers.up.{key}")
    tensors["layers.up.weight"] = torch.ones(1030, 256).to(torch.float8_e4m3fn)
    tensors |= {"layers.up.weight_scale": torch.ones(1030), "layers.up.bias": torch.zeros(1030)}
    layers = {"layers.up": "FP8_PER_CHANNEL_PER_TOKEN", "layers.down": "W4A16_NVFP4"}
    layers = {name: {"quant_algo": algorithm} for name, algorithm in layers.items()}
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    safetensors.save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"quantization_config": config}))
    error("plan: has layers.up, which is FP8 and cannot be split", load(layers_up=ColwiseParallel()))
    error("plan: and mesh must be given together", lambda: nvfp4.load(path, model, mesh=mesh))
    error("plan: is given without a model", lambda: nvfp4.load(path, mesh=mesh, plan={}))
    assert all(t.data_ptr() == before[name][0] and same(t, before[name][1]) for name, t in model.state_dict().items())


# ---- what only a full run checks, and GPUs ----


@check
def compiled_layers(ranks: Ranks) -> None:
    if not FULL:
        return
    for activations, static in MODES:
        for style in (ColwiseParallel(), RowwiseParallel()):
            torch._dynamo.reset()
            layer = parallelize(ranks.layer(activations, static), ranks.mesh, style)
            compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
            x = ranks.integers(5, layer.in_features).to(ranks.device, torch.bfloat16)
            with torch.no_grad():
                assert same(compiled(x), layer(x))


@check
def graphs(ranks: Ranks) -> None:
    """On every rank's GPU, with a stream of its own: torch.cuda.graph keeps one of the first device that it saw."""
    if ranks.device != "cuda":
        return
    for (activations, static), reduce in itertools.product(MODES, ("fp32", "bf16")):
        up, down = ranks.layer(activations, static), ranks.layer(activations, static, k=256 * ranks.size, n=300)
        up = parallelize(up, ranks.mesh, ColwiseParallel())
        down = parallelize(down, ranks.mesh, RowwiseParallel(reduce=reduce))
        x = torch.randn(5, K, dtype=torch.bfloat16, device="cuda")
        z = torch.randn(5, 256, dtype=torch.bfloat16, device="cuda")
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.no_grad():
            up(x), down(z)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                y = up(x), down(z)
            for _ in range(3):
                x.normal_(), z.normal_()
                for t in y:
                    t.fill_(float("nan"))
                graph.replay()
                assert same(y[0], up(x)) and same(y[1], down(z))


# ---- the ranks ----

FOLDER = Path()
MESHES: dict[str, DeviceMesh] = {}  # of two dimensions, and of this process alone


def run(rank: int, device: str, count: int) -> dict[str, str]:
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if device == "cuda" else "gloo"
    store = f"file://{FOLDER / 'store'}"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=count, timeout=timedelta(seconds=60))
    MESHES["2-D"] = init_device_mesh(device, (count, 1), mesh_dim_names=("all", "alone"))
    MESHES["alone"] = MESHES["2-D"]["alone"]
    meshes = [MESHES["2-D"]["all"]]
    if count == 4:
        pairs = init_device_mesh(device, (2, 2), mesh_dim_names=("pair", "place"))
        meshes += [pairs["place"]] if rank < 2 else []
    results: dict[str, str] = {}
    for mesh in meshes:
        for name, function in CHECKS.items():
            key = f"{name}[{mesh.size()}]"
            results[key] = "the process ended"
            (FOLDER / f"{rank}.json").write_text(json.dumps(results))
            try:
                function(Ranks(mesh, device, key))
            except BaseException:
                results[key] = traceback.format_exc()
                return results
            results[key] = ""
    dist.destroy_process_group()
    return results


def main(folder: str, device: str, count: int) -> None:
    global FOLDER
    FOLDER = Path(folder)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    children = []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            faulthandler.enable()
            results = run(rank, device, count)
            (FOLDER / f"{rank}.json").write_text(json.dumps(results))
            os._exit(0)
        children.append(child)
    for rank, child in enumerate(children):
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            print(f"rank {rank} ended with status {status}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
