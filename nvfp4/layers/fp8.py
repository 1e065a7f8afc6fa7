"""nvfp4.Fp8Linear: a linear layer with FP8 weights, as checkpoints have them beside NVFP4 layers.

    weight         [N, K] float8_e4m3fn
    weight_scale   float32 multipliers: [] for the whole weight, [N] with one for each row (a channel),
                   [ceil(N/128), ceil(K/128)] with one for each block of 128 x 128 values, or [N, ceil(K/32)] with a
                   power of two for each group of 32 values of a row (MXFP8)
    input_scale    float32 [], where the scale of the input is stored

It has no kernel of its own: torch multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

import torch
import torch.nn.functional as F
from torch import Tensor

from nvfp4 import _C
from nvfp4.layers.buffers import FixedBuffers
from nvfp4.layers.checks import check_positive, check_tensor, check_type, short
from nvfp4.layers.packed import layer_input

FP8 = torch.float8_e4m3fn
LARGEST = 448.0  # of float8_e4m3fn
BLOCK = 128  # rows and columns of the weight that share a scale, and values of a row of the input
GROUP = 32  # values of a row of the weight that share a scale in MXFP8
ACTIVATIONS = ("tensor", "token", "block", None)
SCALES = ("tensor", "channel", "block", "group")  # which part of the weight shares a scale


@dataclass(frozen=True)
class StoredScales:
    """How a checkpoint stores the scales of an FP8 layer, so that it is written with the same bytes.

    Attributes:
        format: "compressed-tensors" or "modelopt".
        scales: the name, shape and dtype of each scale there, by its name here.
        mode: the layer's mode by the configuration, where it quantizes the input and nvfp4 does not; else None.
    """

    format: str
    scales: Mapping[str, tuple[str, tuple[int, ...], torch.dtype]] = field(default_factory=dict)
    mode: str | None = None


@dataclass(frozen=True)
class Fp8Tensors:
    """Holds the tensors of y = x . W^T + bias, where W = weight * weight_scale has N rows and K columns.

    Attributes:
        weight (Tensor): [N, K] float8_e4m3fn.
        weight_scale (Tensor): float32: [], [N], [ceil(N/128), ceil(K/128)], or [N, ceil(K/32)].
        input_scale (Tensor, optional): float32 [], the scale with which inputs are quantized; for "tensor" alone.
            Default: None.
        bias (Tensor, optional): [N]. Default: None.
        activations (str, optional): which part of the input shares a scale, as of Fp8Linear. Default: None.
        stored (StoredScales, optional): how a checkpoint stores the scales. Default: None.

    Raises:
        nvfp4.Error: a tensor has another shape or dtype, or a scale is not positive and finite. The values of a tensor
            on the meta device are not checked.
    """

    weight: Tensor
    weight_scale: Tensor
    input_scale: Tensor | None = None
    bias: Tensor | None = None
    activations: str | None = None
    stored: StoredScales | None = None

    def __post_init__(self) -> None:
        check_activations(self.activations)
        check_tensor("weight", self.weight, FP8)
        if self.weight.ndim != 2 or 0 in self.weight.shape:
            raise _C.Error(f"weight: shape is {list(self.weight.shape)}; must be [N, K] with 1 or more of each")
        n, k = self.weight.shape
        check_tensor("weight_scale", self.weight_scale, torch.float32, *shapes_of(n, k).values())
        check_positive("weight_scale", self.weight_scale)
        check_groups(self.scales, self.activations)
        if self.input_scale is not None:
            if self.activations != "tensor":
                raise _C.Error(f"input_scale: is given but activations is {self.activations!r}; must be 'tensor' then")
            check_tensor("input_scale", self.input_scale, torch.float32, ())
            check_positive("input_scale", self.input_scale)
        if self.bias is not None:
            check_tensor("bias", self.bias, None, (n,))

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    @property
    def scales(self) -> str:
        """Which part of the weight shares a scale: "tensor", "channel", "block" or "group"."""
        return scales_of(self.weight_scale, *self.weight.shape)

    def dense(self, dtype: torch.dtype) -> Tensor:
        """The weight [N, K], rounded once."""
        return _dense(self.weight, _expanded(self.weight_scale, *self.weight.shape), dtype)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in vars(self).values() if isinstance(t, Tensor))


class Fp8Linear(FixedBuffers):
    """A torch.nn.Linear with FP8 (e4m3) weights: y = x . W^T + bias, where W = weight * weight_scale.

    nvfp4.load makes such layers of the FP8 layers of a checkpoint. A new layer holds zeros; `from_packed` and
    `load_state_dict` fill it.

    Args:
        in_features (int): K, 1 or more.
        out_features (int): N, 1 or more.
        bias (bool, optional): whether the layer has a bias. Default: True.
        activations (str, optional): which part of the input shares a scale: "tensor", "token", "block" or None.
            Default: None.
            "tensor" quantizes the input to FP8 with input_scale, or if that is None with the scale of the whole input.
            "token" quantizes each row of the input with its own scale.
            "block" quantizes each 128 values of a row with their own scale.
            None leaves the input as it is.
        scales (str, optional): which part of the weight shares a scale: "tensor", "channel" (a row), "block"
            (128 x 128 values) or "group" (32 values of a row, MXFP8), which needs activations=None. Default: "tensor".
        device (torch.device, str or int, optional): the device of the buffers. Default: torch's default device.
        dtype (torch.dtype, optional): the dtype of the bias. Default: torch.get_default_dtype().

    Buffers:
        weight: [N, K] float8_e4m3fn.
        weight_scale: float32: [], [N], [ceil(N/128), ceil(K/128)], or [N, ceil(K/32)].
        input_scale: float32 [], or None.
        bias: [N], or None.

    Shape:
        input: [..., K] in float16, bfloat16 or float32. Under autocast it is first cast to autocast's dtype.
        output: [..., N] in the same dtype.

    Quantizing divides the input by its scale in fp32, limits it to 448 and rounds it to FP8. A scale that is not stored
    is the largest absolute value over 448, in fp32; 1 where all values are 0. A NaN makes all results NaN that depend
    on its scale. So does an infinity, if the scale is not stored.

    What rounds, beside the sums and the one rounding of the result:

    - scales "tensor" and "channel": FP8 values are exact in 16 bits and in fp32, so products of 16-bit or quantized
      inputs are exact and summed in fp32. The scales of weight and input, and the bias, are applied to the sums in
      fp32. Only the products with a float32 input that is not quantized round.
    - scales or activations "block": the weight and a quantized input are multiplied by their scales in fp32 and rounded
      to the dtype of the input, before they are multiplied.
    - scales "group", powers of two: values times scales are exact in float32 and bfloat16, from 2^-130 on in the
      latter. For float16, which has a smaller range, the product is that of float32.
    - A GPU of compute capability 8.9 or more multiplies FP8 by FP8 (torch._scaled_mm), if neither has blocks, N and K
      are multiples of 16, and input and bias are bfloat16 (or both float16, with scales and activations "tensor"). Its
      sums are less exact than fp32: on an H200 they were off by up to 2^-13 of the sum of absolute products.
    - Any other product takes a temporary dense weight.

    With activations=None there is a gradient with respect to x. With other ones there is none, and an input that
    requires one is rejected while gradients are recorded.

    `.to(dtype)`, `.half()` and similar methods cast the bias alone. `load_state_dict` takes scales of another shape
    than this layer has, but no other dtype.

    Raises:
        nvfp4.Error: an argument breaks a rule.

    Examples:
        >>> import nvfp4, torch
        >>> nvfp4.Fp8Linear(64, 32, activations="token", scales="channel")
        nvfp4.Fp8Linear(in_features=64, out_features=32, bias=True, activations='token', scales='channel')
    """

    weight: Tensor
    weight_scale: Tensor
    input_scale: Tensor | None
    bias: Tensor | None
    fixed = ("weight", "weight_scale", "input_scale")
    e4m3 = ("weight",)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        activations: str | None = None,
        scales: str = "tensor",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("in_features", in_features), ("out_features", out_features)):
            check_type(name, size, SupportsIndex, "an integer")
            if size <= 0:
                raise _C.Error(f"{name}: is {size}; must be 1 or more")
        check_activations(activations)
        if scales not in SCALES:
            raise _C.Error(f"scales: is {scales!r}; must be {', '.join(map(repr, SCALES[:-1]))} or {SCALES[-1]!r}")
        check_groups(scales, activations)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in (torch.float16, torch.bfloat16, torch.float32):
            raise _C.Error(f"dtype: is {short(dtype)}; must be float16, bfloat16 or float32")
        self.in_features, self.out_features, self.activations = in_features, out_features, activations
        self.stored: StoredScales | None = None
        shape = shapes_of(out_features, in_features)[scales]
        data = torch.zeros(out_features, in_features, dtype=torch.uint8, device=device)
        self.register_buffer("weight", data.view(FP8))
        self.register_buffer("weight_scale", torch.ones(shape, dtype=torch.float32, device=device))
        self.register_buffer("input_scale", None)
        self.register_buffer("bias", torch.zeros(out_features, dtype=dtype, device=device) if bias else None)

    @classmethod
    def from_packed(cls, tensors: Fp8Tensors) -> Fp8Linear:
        """Makes a layer of the tensors that nvfp4.checkpoints reads. They are shared and not copied."""
        n, k = tensors.out_features, tensors.in_features
        layer = cls(k, n, False, tensors.activations, tensors.scales, "meta", torch.float32)
        layer.weight, layer.weight_scale = tensors.weight, tensors.weight_scale
        layer.input_scale, layer.bias, layer.stored = tensors.input_scale, tensors.bias, tensors.stored
        return layer

    def packed(self) -> Fp8Tensors:
        """Returns the layer's tensors as nvfp4.checkpoints writes them. They are shared."""
        scales = (self.weight_scale, self.input_scale)
        return Fp8Tensors(self.weight, *scales, self.bias, self.activations, self.stored)

    @property
    def scales(self) -> str:
        return scales_of(self.weight_scale, self.out_features, self.in_features)

    def _get_name(self) -> str:
        return f"nvfp4.{type(self).__name__}"

    def extra_repr(self) -> str:
        text = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        text += f", activations={self.activations!r}"
        if self.activations == "tensor":
            text += f", input_scale={'dynamic' if self.input_scale is None else 'static'}"
        return text + f", scales={self.scales!r}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Also takes scales of the other shapes, and an input_scale where this layer has none, and the reverse."""
        if mismatches := self.no_tensors(state_dict, prefix) or self.wrong_dtypes(state_dict, prefix):
            arguments[-1].extend(mismatches)
            return
        if prefix + "weight" in state_dict:
            scale, given = (state_dict.get(prefix + name) for name in ("weight_scale", "input_scale"))
            shapes = shapes_of(self.out_features, self.in_features)
            if self.activations is not None:
                del shapes["group"]
            if scale is not None and tuple(scale.shape) in shapes.values():
                if scale.shape != self.weight_scale.shape:
                    self.stored = None  # which was of other scales
                self.weight_scale = self.weight_scale.new_ones(scale.shape)
            if self.activations == "tensor":
                self.input_scale = None if given is None else self.weight_scale.new_ones(())
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    # ---- the product ----

    def forward(self, x: Tensor) -> Tensor:
        x = layer_input(x, self.in_features)
        rows, shape = x.reshape(-1, self.in_features).contiguous(), (*x.shape[:-1], self.out_features)
        if rows.shape[0] == 0:
            return x.new_empty(shape)
        with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):
            return self._product(rows).reshape(shape)

    def _product(self, rows: Tensor) -> Tensor:
        gradient = torch.is_grad_enabled() and rows.requires_grad
        if self.activations is None:
            arguments = (rows, self.weight, self.weight_scale, self.bias)
            return _WeightOnly.apply(*arguments) if gradient else _weight_only(*arguments)
        if gradient:
            raise _C.Error(
                f"x: requires a gradient, which an Fp8Linear with activations={self.activations!r} does not have; call "
                "it under torch.no_grad(), or use activations=None"
            )
        values, scale = quantize(rows, self.activations, self.input_scale)
        if self._has_scaled_mm(rows):
            return self._scaled_mm(values, scale, rows.dtype)
        blocks = self.activations == "block"
        a = _dense(values, scale.repeat_interleave(BLOCK, 1)[:, : self.in_features] if blocks else None, rows.dtype)
        sums = _sums(a, self.weight, self.weight_scale, rows.dtype)
        return _finish(sums if blocks else sums * scale, self.weight_scale, self.bias, rows.dtype)

    def _has_scaled_mm(self, rows: Tensor) -> bool:
        """Whether torch multiplies these tensors as FP8, with this input's dtype for bias and result."""
        if not rows.is_cuda or self.activations == "block" or self.weight_scale.ndim == 2:
            return False
        if self.in_features % 16 or self.out_features % 16 or not hasattr(torch, "_scaled_mm"):
            return False
        if rows.dtype not in (torch.bfloat16, torch.float16)[: 1 if self._by_rows() else 2]:
            return False
        if self.bias is not None and self.bias.dtype != rows.dtype:
            return False
        return torch.cuda.get_device_capability(rows.device) >= (8, 9)

    def _by_rows(self) -> bool:
        return self.activations == "token" or self.weight_scale.ndim == 1

    def _scaled_mm(self, values: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        """With one scale for each of both operands, or with one for each row of both."""
        theirs = self.weight_scale
        if self._by_rows():
            scale = scale.expand(values.shape[0], 1).contiguous()
            theirs = theirs.expand(self.out_features).contiguous().unsqueeze(0)
        # torch.nn.functional.scaled_mm, which is public, cannot be compiled with fullgraph=True (torch 2.11).
        return torch._scaled_mm(values, self.weight.t(), scale, theirs, bias=self.bias, out_dtype=dtype)


def check_activations(activations: str | None) -> None:
    if activations not in ACTIVATIONS:
        raise _C.Error(f"activations: is {activations!r}; must be 'tensor', 'token', 'block' or None")


def check_groups(scales: str, activations: str | None) -> None:
    if scales == "group" and activations is not None:
        raise _C.Error(f"activations: is {activations!r} with scales of groups; must be None then")


def blocks_of(n: int, k: int) -> tuple[int, int]:
    return math.ceil(n / BLOCK), math.ceil(k / BLOCK)


def shapes_of(n: int, k: int) -> dict[str, tuple[int, ...]]:
    """The shape of weight_scale by which part of the weight shares a scale."""
    return dict(zip(SCALES, ((), (n,), blocks_of(n, k), (n, math.ceil(k / GROUP)))))


def scales_of(weight_scale: Tensor, n: int, k: int) -> str:
    """Which part of a weight shares a scale. Where one group is all, it is a block."""
    return next(name for name, shape in shapes_of(n, k).items() if shape == weight_scale.shape)


def quantize(x: Tensor, activations: str, input_scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """An input [M, K] as FP8, and its scale: [], [M, 1] or [M, ceil(K/128)]."""
    x = x.float()
    if activations == "block":
        m, k = x.shape
        padded = F.pad(x, (0, -k % BLOCK)).reshape(m, -1, BLOCK)
        scale = _scale_of(padded.abs().amax(-1))
        return _rounded(padded / scale.unsqueeze(-1)).reshape(m, -1)[:, :k], scale
    if activations == "token":
        scale = _scale_of(x.abs().amax(-1, keepdim=True))
    else:
        scale = _scale_of(x.abs().amax()) if input_scale is None else input_scale
    return _rounded(x / scale), scale


def _scale_of(largest: Tensor) -> Tensor:
    # A GPU multiplies by the reciprocal of a Python number, which can give another last bit than the division.
    return torch.where(largest == 0, 1.0, largest / largest.new_full((), LARGEST))


def _rounded(x: Tensor) -> Tensor:
    return x.clamp(-LARGEST, LARGEST).to(FP8)


def _expanded(scale: Tensor, n: int, k: int) -> Tensor:
    """A weight's scale in a shape that its values can be multiplied by."""
    if scale.ndim < 2:
        return scale.unsqueeze(-1) if scale.ndim else scale
    if scales_of(scale, n, k) == "group":
        return scale.repeat_interleave(GROUP, 1)[:, :k]
    return scale.repeat_interleave(BLOCK, 0)[:n].repeat_interleave(BLOCK, 1)[:, :k]


def _dense(values: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """FP8 values, exact in any dtype, or times a scale and rounded to `dtype` once."""
    if scale is None:
        return values.to(dtype if values.is_cuda else torch.float32)  # which _mm makes of them on a CPU
    return values.float().mul_(scale).to(dtype)


def _sums(x: Tensor, weight: Tensor, weight_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """x . weight^T in fp32. Scales of blocks and groups are in the weight, others are not."""
    if weight_scale.ndim < 2:
        return _mm(x, _dense(weight, None, dtype).t())
    return _mm(x, _dense(weight, _expanded(weight_scale, *weight.shape), _wide(weight, weight_scale, dtype)).t())


def _wide(weight: Tensor, weight_scale: Tensor, dtype: torch.dtype) -> torch.dtype:
    """The dtype of a dense weight beside operands of a dtype. Powers of two may leave the range of float16."""
    groups = scales_of(weight_scale, *weight.shape) == "group"
    return torch.float32 if groups and dtype == torch.float16 else dtype


def _mm(a: Tensor, b: Tensor) -> Tensor:
    """a . b with fp32 sums. On a CPU torch rounds them to 16 bits, unless the operands are fp32."""
    if torch.float32 in (a.dtype, b.dtype) or not a.is_cuda:
        return torch.mm(a.float(), b.float())
    return torch.mm(a, b, out_dtype=torch.float32)


def _finish(sums: Tensor, weight_scale: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    y = sums if weight_scale.ndim == 2 else sums * weight_scale
    return (y if bias is None else y + bias).to(dtype)


def _weight_only(x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None) -> Tensor:
    return _finish(_sums(x, weight, weight_scale, x.dtype), weight_scale, bias, x.dtype)


def input_gradient(dy: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """dy . W in fp32, where W is rounded to dy's dtype. The sums run over rows, so a row's scale is in W too."""
    scale = _expanded(weight_scale, *weight.shape) if weight_scale.ndim else None
    sums = _mm(dy, _dense(weight, scale, _wide(weight, weight_scale, dy.dtype)))
    return sums if weight_scale.ndim else sums * weight_scale


class _WeightOnly(torch.autograd.Function):
    """_weight_only, with a gradient with respect to x that keeps the weight in FP8."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight, weight_scale)
        return _weight_only(x, weight, weight_scale, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dy, (weight, weight_scale) = gradients[0], ctx.saved_tensors
        return input_gradient(dy, weight, weight_scale).to(dy.dtype), None, None, None
