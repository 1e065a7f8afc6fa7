"""nvfp4.Linear on several devices: styles for torch's parallelize_module, with one process for each device.

    ColwiseParallel   each rank has some of the N rows of the weight, and gives those outputs
    RowwiseParallel   each rank has some of the K columns, reads those inputs, and the ranks' sums are added

They are torch's styles of these names and take its layouts. A module that is no nvfp4.Linear is left to torch, so that
one plan serves a model with layers of both kinds. `nvfp4.load` takes a plan too, and reads a rank's own part alone.

    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module
    from nvfp4.parallel import ColwiseParallel, RowwiseParallel

    mesh = init_device_mesh("cuda", (2,))
    parallelize_module(model, mesh, {"mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel()})

A parallel layer's buffers are plain tensors of its rank, not DTensors: scales in the 128x4 layout have no rows that
could be split. Its state dict is the rank's own, and `packed` and nvfp4.save reject it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import NoReturn, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel as TorchColwise
from torch.distributed.tensor.parallel import ParallelStyle
from torch.distributed.tensor.parallel import RowwiseParallel as TorchRowwise

from nvfp4 import _C, _api
from nvfp4.layers.checks import prefix_errors, short
from nvfp4.layers.fused import FusedPart
from nvfp4.layers.gradient import check_no_tangent
from nvfp4.layers.linear import Linear
from nvfp4.layers.packed import BLOCK, PackedLinear, check_block_scales

__all__ = ["ColwiseParallel", "RowwiseParallel"]

K_UNIT = 64  # columns of a scale tile: a rank has whole ones
REDUCED = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}  # what row-parallel ranks send
LAST: tuple[Placement, ...] = (Shard(-1),)
WHOLE: tuple[Placement, ...] = (Replicate(),)


class ColwiseParallel(TorchColwise):
    """Splits an nvfp4.Linear by its outputs: rank r of R has rows r * ceil(N/R) and on, as torch.chunk divides them.

    Args:
        input_layouts (Placement, optional): the layout of x, as in torch's ColwiseParallel. Default: Replicate().
            By default every rank passes the whole x.
        output_layouts (Placement, optional): the layout of the output, as in torch's ColwiseParallel. Default:
            Shard(-1).
            By default every rank gets its own outputs.
        use_local_output (bool, optional): whether the output is a plain tensor and no DTensor. Default: True.
        parts (sequence of int, optional): for a fused layer, the rows of its parts, each a multiple of R. Default:
            None.
            Every rank gets its share of each part, and its outputs follow one another as `Linear.fuse` orders them.
            It is allowed with the default output only.

    An output equals that of an nvfp4.Linear of these rows, to the bit. A dynamic input_global_scale is the whole
    layer's, since each rank has the whole x.

    With input_layouts=Shard(d) of tokens the ranks gather x. A layer with a stored input_global_scale quantizes first,
    so that 4.5 bits of each value are sent instead of 16, except if x is a DTensor or requires a gradient. All ranks
    must have an x of the same dtype, which they compare as those of a RowwiseParallel do.

    Raises:
        nvfp4.Error: an argument breaks a rule, or a rank would have no row.

    Examples:
        >>> from torch.distributed.tensor.parallel import parallelize_module
        >>> parallelize_module(model, mesh, {"mlp.up_proj": ColwiseParallel()})  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        parts: Sequence[int] | None = None,
    ) -> None:
        super().__init__(input_layouts=input_layouts, output_layouts=output_layouts, use_local_output=use_local_output)
        self.parts = None if parts is None else tuple(parts)
        if parts is not None and (self.output_layouts != LAST or not use_local_output):
            raise _C.Error("parts: are given, with an output that is not each rank's own; must have the default output")

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        if isinstance(module, FusedPart):
            self._apply_to_fused(module, device_mesh)
        elif isinstance(module, Linear):
            turn_into_part(module, self, device_mesh)
        elif self.parts is not None:
            raise _C.Error(f"parts: are given for a {type(module).__name__}; must be for an nvfp4.Linear")
        else:
            return super()._apply(module, device_mesh)
        return module

    def _apply_to_fused(self, module: FusedPart, mesh: DeviceMesh) -> None:
        """The first of the joined layers splits all of them; the others must follow (FusedPart.forward)."""
        if self.parts is not None or self.output_layouts != LAST or not self.use_local_output:
            raise _C.Error("module: is joined with others by quantize_model(fuse=True); must have a style without "
                           "parts and with the default output")  # fmt: skip
        linear = module.joined()
        if module.split:
            raise _C.Error("module: is split already; must be split once")
        if type(linear) is Linear:
            style = ColwiseParallel(input_layouts=self.input_layouts[0], parts=module.sizes)
            style.src_data_rank = self.src_data_rank
            turn_into_part(linear, style, mesh)
            module.sizes[:] = [size // mesh.size() for size in module.sizes]  # all parts have this list
        module.split, module.out_features = True, module.sizes[module.index]

    def part(self, packed: PackedLinear, mesh: DeviceMesh) -> PackedLinear:
        """The tensors of this rank; views of the given ones, except where there are `parts`."""
        n, (rank, size) = packed.out_features, place(mesh)
        parts = (n,) if self.parts is None else self.parts
        if sum(parts) != n:
            raise _C.Error(f"parts: are {list(parts)}, {sum(parts)} in all; must add up to out_features = {n}")
        for part in parts:
            if self.parts is not None and part % size:
                raise _C.Error(f"parts: has one of {part} rows; must be multiples of {size}, the ranks of the mesh")
        if (size - 1) * -(-n // size) >= n:
            raise _C.Error(f"out_features: is {n}; must have rows for each of the {size} ranks of the mesh")
        pieces, start = [], 0
        for part in parts:
            step = -(-part // size)
            pieces.append(slice(start + min(rank * step, part), start + min((rank + 1) * step, part)))
            start += part

        def rows(t: Tensor) -> Tensor:
            return t[pieces[0]] if len(pieces) == 1 else torch.cat([t[piece] for piece in pieces])

        scale = packed.weight_global_scale
        return PackedLinear(
            rows(packed.weight),
            rows(packed.weight_scale.view(torch.uint8)).view(torch.float8_e4m3fn),
            rows(scale) if scale.ndim else scale,
            packed.input_global_scale,
            None if packed.bias is None else rows(packed.bias),
            packed.activations,
            packed.pre_quant_scale,
        )


class RowwiseParallel(TorchRowwise):
    """Splits an nvfp4.Linear by its inputs: rank r of R has columns r * K/R and on. K is a multiple of 64 * R.

    Args:
        input_layouts (Placement, optional): the layout of x, as in torch's RowwiseParallel. Default: Shard(-1).
            By default a rank passes its own K/R columns of x.
        output_layouts (Placement, optional): the layout of the output, as in torch's RowwiseParallel. Default:
            Replicate().
            By default a rank gets the whole output. Shard(0), for example, reduces and scatters rows.
        use_local_output (bool, optional): whether the output is a plain tensor and no DTensor. Default: True.
        reduce (str, optional): the numbers that the ranks send and add, "fp32", "bf16" or "fp16". Default: "fp32".
            "fp32" gives the accuracy of one device: the result is rounded once.
            "bf16" and "fp16" send half as many bytes and launch no kernel after the all-reduce, but round more often.
            A module that is no nvfp4.Linear is torch's and sends numbers of its own dtype.

    With reduce="fp32" the ranks' sums are added in fp32, by an all-reduce or a reduce-scatter. alpha and bias, which
    every rank has whole, are then applied once, and the result is rounded once. Where the sums are exact, the bits are
    those of one device.

    With reduce="bf16" or "fp16" each rank computes its share of the result: alpha times its sum. The first rank of the
    mesh adds the bias to its share. A share is computed in fp32 and rounded once to 16 bits. The collective adds the R
    shares and may round after each addition. A last step converts the sum to the dtype of x, if that is another one.

    The bound of that sum: let u be 2^-8 for bf16 and 2^-11 for fp16, P the sum of the absolute values of the exact
    shares, and E the sum of what fp32 may lose in each. Then the error is at most E + R * u / (1 - R * u) * (P + E).
    One device loses u times the absolute result instead, which is less if shares of different signs cancel. In fp16 a
    share below 2^-14 may lose 2^-25 more, and a share or a sum beyond 65504 is infinite. A gradient enters the layer in
    the dtype that is sent.

    The collective chooses the order of additions between ranks: NCCL and gloo repeat it from run to run. With more than
    two ranks a layer with batch_invariant=True raises an error for that reason.

    The ranks share a dynamic input_global_scale, that of the whole x: they reduce the largest |x| (a max all-reduce of
    one number), so that the scale equals one device's.

    All ranks must have the same `reduce`, and an x of the same dtype. parallelize_module and nvfp4.load compare the
    words. A layer's first call compares the dtypes by a small all-gather, for which the host waits once. Compiled code
    and the capture of a CUDA graph compare nothing, so call the layer once before.

    Raises:
        nvfp4.Error: an argument breaks a rule, or ranks differ.

    Examples:
        >>> from torch.distributed.tensor.parallel import parallelize_module
        >>> parallelize_module(model, mesh, {"mlp.down_proj": RowwiseParallel()})  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        reduce: str = "fp32",
    ) -> None:
        super().__init__(input_layouts=input_layouts, output_layouts=output_layouts, use_local_output=use_local_output)
        if not isinstance(reduce, str) or reduce not in REDUCED:
            raise _C.Error(f"reduce: is {reduce!r}; must be 'fp32', 'bf16' or 'fp16'")
        self.reduce = reduce
        if self.output_layouts[0].is_partial():
            raise _C.Error("output_layouts: is Partial; must be Replicate or Shard: bias and rounding follow the sum")

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        if isinstance(module, FusedPart):
            raise _C.Error("module: is joined with others by quantize_model(fuse=True); must be split by its outputs")
        if not isinstance(module, Linear):
            return super()._apply(module, device_mesh)
        turn_into_part(module, self, device_mesh)
        return module

    def part(self, packed: PackedLinear, mesh: DeviceMesh) -> PackedLinear:
        """The tensors of this rank, views of the given ones; bias and global scales are whole."""
        k, (rank, size) = packed.in_features, place(mesh)
        if k % (K_UNIT * size):
            raise _C.Error(
                f"in_features: is {k}; must be a multiple of {K_UNIT} for each of the {size} ranks of the mesh"
            )
        step, before = k // size, packed.pre_quant_scale
        return PackedLinear(
            packed.weight[:, rank * step // 2 : (rank + 1) * step // 2],
            packed.weight_scale[:, rank * step // BLOCK : (rank + 1) * step // BLOCK],
            packed.weight_global_scale,
            packed.input_global_scale,
            packed.bias,
            packed.activations,
            None if before is None else before[rank * step : (rank + 1) * step],
        )


Style: TypeAlias = ColwiseParallel | RowwiseParallel


# ---- the layers ----


class PartLinear(Linear):
    """A rank's part of an nvfp4.Linear. in_features and out_features are the part's.

    Attributes:
        mesh: the ranks that have the parts.
        style: how it was split; its layouts.
        whole: (N, K) of all parts.
    """

    mesh: DeviceMesh
    style: Style
    whole: tuple[int, int]
    compared = False  # whether the ranks have compared the dtype of x

    def _local(self, x: Tensor, wanted: tuple[Placement, ...]) -> Tensor | DTensor:
        """x in the wanted layout; a plain tensor that is in it already stays one."""
        style = self.style
        if not isinstance(x, DTensor) and style.input_layouts == wanted:
            return x
        return style._prepare_input_fn(style.input_layouts, wanted, self, (x,), self.mesh)

    def _compare(self, x: Tensor) -> None:
        """Raises an error on all ranks if their dtypes of x differ, at the first call that can wait for them."""
        if can_wait(x) and not self.compared:
            check_equal({"x": short(x.dtype)}, self.mesh)
            self.compared = True

    def packed(self) -> NoReturn:
        rank, size = place(self.mesh)
        raise _C.Error(
            f"layer: is part {rank} of {size} of an nvfp4.Linear; only whole layers are stored, joined, made "
            "dense or given adapters"
        )

    def to_linear(self, dtype: torch.dtype | None = None) -> NoReturn:
        self.packed()

    def extra_repr(self) -> str:
        rank, size = place(self.mesh)
        return f"{super().extra_repr()}, part {rank} of {size} of {self.whole[0]} x {self.whole[1]}"


class ColwiseLinear(PartLinear):
    def forward(self, x: Tensor) -> Tensor:
        if self.style.input_layouts != WHOLE:
            self._compare(x)
        if self._gathers_codes(x):
            y = self._product_of_codes(self._checked(x))
        else:
            x = self._local(x, WHOLE)
            if not isinstance(x, DTensor) and x.requires_grad and torch.is_grad_enabled():
                x = DTensor.from_local(x, self.mesh, WHOLE, run_check=False)
            if isinstance(x, DTensor):  # each rank's gradient is that of its own outputs
                x = x.to_local(grad_placements=(Partial(),))
            y = super().forward(x)
        if self.style.use_local_output and self.style.output_layouts == LAST:
            return y
        shape = torch.Size((*y.shape[:-1], self.whole[0]))
        stride = torch.empty(shape, device="meta").stride()
        whole = DTensor.from_local(y, self.mesh, LAST, run_check=False, shape=shape, stride=stride)
        return self.style._prepare_output_fn(
            self.style.output_layouts, self.style.use_local_output, self, whole, self.mesh
        )

    def _gathers_codes(self, x: Tensor) -> bool:
        """Whether each rank quantizes its tokens before the ranks gather them: 4.5 bits a value and not 16. A stored
        scale makes the result independent of which rank quantizes a row."""
        layout = self.style.input_layouts[0]
        if self.input_global_scale is None or not layout.is_shard() or type(x) is not Tensor or not x.numel():
            return False
        return layout.dim not in (-1, x.ndim - 1) and not (torch.is_grad_enabled() and x.requires_grad)

    def _product_of_codes(self, x: Tensor) -> Tensor:
        check_no_tangent(x)
        rows = x.reshape(-1, self.in_features).contiguous()
        scale, how = self.input_global_scale, self.block_scale
        data, blocks = _api.quantize(rows, global_scale=scale, scale_layout="linear", block_scale=how)
        parts = (t.view(torch.uint8).reshape(*x.shape[:-1], -1) for t in (data, blocks))
        data, blocks = (local(self._local(t, WHOLE)).contiguous() for t in parts)
        blocks = _api.swizzle(blocks.reshape(-1, blocks.shape[-1]).view(torch.float8_e4m3fn))
        bias = self.bias if self.bias is None or self.bias.dtype == x.dtype else self.bias.float()
        options = {"alpha": self.alpha, "bias": bias, "out_dtype": x.dtype, "batch_invariant": self.batch_invariant}
        y = _api.gemm(data.reshape(-1, data.shape[-1]), self.weight, blocks, self.weight_scale, **options)
        return y.reshape(*data.shape[:-1], self.out_features)


class RowwiseLinear(PartLinear):
    def forward(self, x: Tensor) -> Tensor:
        if self.batch_invariant and self.mesh.size() > 2:
            raise _C.Error(
                f"batch_invariant: is True for a layer whose sums of {self.mesh.size()} ranks are added in the "
                "collective's order, which may depend on the rows; must be split among 2 ranks at most, or by its "
                "outputs"
            )
        x = self._local(x, LAST)
        x = self._checked(local(x))
        self._compare(x)
        terms, alpha = self._terms(x)
        bias = self.bias
        usual = self.style.use_local_output and self.style.output_layouts == WHOLE
        if usual and not recorded(terms):  # without DTensor: 100 us of host time and a copy of the terms less
            if terms.numel():
                dist.all_reduce(terms, group=self.mesh.get_group())
            return self._finish(terms, alpha, bias, x.dtype)
        y = DTensor.from_local(terms, self.mesh, (Partial(),), run_check=False)
        y = y.redistribute(placements=self.style.output_layouts)
        if y.placements[0].is_shard(y.ndim - 1):
            rank, size = place(self.mesh)
            step = -(-self.out_features // size)
            own = slice(rank * step, (rank + 1) * step)
            alpha, bias = alpha[own] if alpha.ndim else alpha, None if bias is None else bias[own]
        result = self._finish(y.to_local(), alpha, bias, x.dtype)
        if self.style.use_local_output:
            return result
        return DTensor.from_local(result, self.mesh, y.placements, run_check=False, shape=y.shape, stride=y.stride())

    def _terms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """This rank's terms of the ranks' sum, in the dtype that is sent, and alpha. In fp32 they are the sums of its
        products, in 16 bits its share of the result."""
        dtype, rows = REDUCED[self.reduce], x.reshape(-1, self.in_features)
        if not rows.shape[0]:
            return x.new_empty((*x.shape[:-1], self.out_features), dtype=dtype), self.alpha
        scale, alpha = self._scales(rows)
        if dtype == torch.float32:
            terms = self._product(rows, scale, None, None, dtype)
        else:
            bias = self.bias if place(self.mesh)[0] == 0 else None
            terms = self._product(rows, scale, alpha, bias, dtype).to(dtype)  # W4A16 gives fp32 for fp32 rows
        return terms.reshape(*x.shape[:-1], self.out_features), alpha

    @property
    def reduce(self) -> str:
        assert isinstance(self.style, RowwiseParallel)
        return self.style.reduce

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.reduce == "fp32" else f", reduce={self.reduce!r}")

    def _dynamic_scale(self, rows: Tensor) -> Tensor:
        """The scale of the whole input. A NaN, which a max may drop, is reduced as infinity: both give the scale 1."""
        low, high = rows.detach().aminmax()  # one pass, without a copy of |x|
        largest = torch.nan_to_num(torch.maximum(-low, high).float(), nan=torch.inf, posinf=torch.inf)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.mesh.get_group())
        return _api.amax_scale(largest.reshape(1, 1), block_scale=self.block_scale).reshape(())

    def _finish(self, sums: Tensor, alpha: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        """The result of added terms. alpha * sum + bias in fp32, as gemm's epilogue rounds them, and one rounding to
        dtype. Terms of 16 bits have alpha and bias."""
        if self.reduce != "fp32":
            return sums.to(dtype)
        if bias is not None:
            operation, terms = torch.add, (sums * alpha, bias.float())
        else:
            operation, terms = torch.mul, (sums, alpha)
        if recorded(sums):
            return operation(*terms).to(dtype)
        return operation(*terms, out=sums.new_empty(sums.shape, dtype=dtype))  # one kernel computes and rounds


def local(x: Tensor) -> Tensor:
    """This rank's tensor of a DTensor; a plain tensor is it already."""
    return x.to_local() if isinstance(x, DTensor) else x


def recorded(t: Tensor) -> bool:
    """Whether operations on a tensor are traced, or recorded for its gradient: then nothing is done in place."""
    return torch.compiler.is_compiling() or (torch.is_grad_enabled() and t.requires_grad)


def place(mesh: DeviceMesh) -> tuple[int, int]:
    """This process's rank in a mesh of one dimension, and how many there are."""
    return mesh.get_local_rank(), mesh.size()


def can_wait(x: Tensor) -> bool:
    """Whether the host may wait for other ranks: in no traced code, and in no capture of a CUDA graph."""
    if torch.compiler.is_compiling() or type(x) is not Tensor or x.is_meta:
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def check_equal(described: Mapping[str, str], mesh: DeviceMesh) -> None:
    """Raises the same error on all ranks if they describe something differently. A collective of other dtypes on some
    ranks returns garbage (gloo) or waits for ever."""
    given: list[Mapping[str, str]] = [{}] * mesh.size()
    dist.all_gather_object(given, dict(described), group=mesh.get_group())
    for rank, other in enumerate(given):
        for name in {**given[0], **other}:
            ours, theirs = given[0].get(name), other.get(name)
            if ours != theirs:
                raise _C.Error(f"{name}: is {ours} on rank 0 of the mesh and {theirs} on rank {rank}; must be equal")


def check_mesh(mesh: DeviceMesh) -> None:
    if mesh.ndim != 1:
        raise _C.Error(f"device_mesh: has {mesh.ndim} dimensions; must have 1, as a slice of it by name has")
    if mesh.get_coordinate() is None:
        raise _C.Error("device_mesh: does not have this process; must have it")


def part_of(packed: PackedLinear, style: Style, mesh: DeviceMesh) -> PartLinear:
    """This rank's layer, where the tensors are."""
    check_mesh(mesh)
    kind = ColwiseLinear if isinstance(style, ColwiseParallel) else RowwiseLinear
    layer = kind.from_packed(style.part(packed, mesh))
    assert isinstance(layer, PartLinear)
    layer.mesh, layer.style, layer.whole = mesh, style, (packed.out_features, packed.in_features)
    return layer


def reduce_of(style: ParallelStyle, prefix: str = "") -> dict[str, str]:
    """The style's `reduce`, if it has one, as check_equal compares it."""
    return {f"{prefix}reduce": repr(style.reduce)} if isinstance(style, RowwiseParallel) else {}


def turn_into_part(module: Linear, style: Style, mesh: DeviceMesh) -> None:
    """Changes the layer in place, as parallelize_module needs it. Unless style.src_data_rank is None, all ranks get
    that rank's tensors first; torch's styles do so too."""
    if isinstance(module, PartLinear):
        raise _C.Error("module: is split already; must be split once")
    packed = module.packed()
    check_mesh(mesh)
    style.part(packed, mesh)  # raises before anything is sent
    source = None if packed.weight.is_meta else style.src_data_rank
    tensors = {} if source is None else {"bias": packed.bias, "pre_quant_scale": packed.pre_quant_scale}
    dtypes = {name: "None" if t is None else short(t.dtype) for name, t in tensors.items()}
    check_equal(reduce_of(style) | dtypes, mesh)
    if source is not None:
        packed = sent(packed, source, mesh)
    layer = part_of(packed, style, mesh)
    if not packed.weight.is_meta:
        layer.to(mesh.device_type)
    own = ("_buffers", "in_features", "out_features", "mesh", "style", "whole")
    module.__dict__.update({name: getattr(layer, name) for name in own})
    module.__class__ = type(layer)


def sent(packed: PackedLinear, source: int, mesh: DeviceMesh) -> PackedLinear:
    """The tensors of one rank of the mesh, on all of them."""

    def send(t: Tensor) -> Tensor:
        raw = t.contiguous().view(torch.uint8) if t.dtype == torch.float8_e4m3fn else t
        return distribute_tensor(raw, mesh, WHOLE, src_data_rank=source).to_local().view(t.dtype)

    given, bias, before = packed.input_global_scale, packed.bias, packed.pre_quant_scale
    return PackedLinear(
        send(packed.weight),
        send(packed.weight_scale),
        send(packed.weight_global_scale),
        None if given is None else send(given),
        None if bias is None else send(bias),
        packed.activations,
        None if before is None else send(before),
    )


# ---- plans ----


def named_styles(model: torch.nn.Module, plan: Mapping[str, ParallelStyle]) -> dict[str, ParallelStyle]:
    """A plan with the names of modules in place of patterns, which match as those of parallelize_module."""
    names = {name: name.split(".") if name else [] for name, _ in model.named_modules(remove_duplicate=False)}
    styles: dict[str, ParallelStyle] = {}
    for key, style in plan.items():
        tokens = key.split(".") if key else []
        matched = [
            name
            for name, own in names.items()
            if len(own) == len(tokens) and all(fnmatch.fnmatch(*pair) for pair in zip(own, tokens))
        ]
        if not matched:
            raise _C.Error(f"plan: {key!r} matches no module of the model")
        for name in matched:
            if name in styles:
                raise _C.Error(f"plan: {key!r} matches {name!r}, which an earlier key matches too")
            styles[name] = style
    return styles


def split_layers(
    layers: Mapping[str, PackedLinear], model: torch.nn.Module, mesh: DeviceMesh, plan: Mapping[str, ParallelStyle]
) -> tuple[dict[str, Linear], dict[str, ParallelStyle]]:
    """This rank's parts of the layers that a plan names, on the mesh's device, and the plan's styles of other modules.
    A layer is sliced before anything else is done with it: of a mapped file only the slices are read, and checked."""
    styles = named_styles(model, plan)
    parts: dict[str, Linear] = {}
    names = [name for name in styles if name in layers]
    if names:
        check_mesh(mesh)
        check_equal({k: word for name in names for k, word in reduce_of(styles[name], f"{name}.").items()}, mesh)
    for name in names:
        style = styles.pop(name)
        if not isinstance(style, (ColwiseParallel, RowwiseParallel)):
            kind = type(style)
            raise _C.Error(
                f"plan: has {kind.__module__}.{kind.__name__} for {name}, which is NVFP4; must be a style of "
                "nvfp4.parallel"
            )
        with prefix_errors(name):
            check_block_scales("weight_scale", style.part(layers[name], mesh))
            parts[name] = part_of(layers[name], style, mesh).to(mesh.device_type)
    return parts, styles
