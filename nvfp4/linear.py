"""nvfp4.Linear: torch.nn.Linear with NVFP4 weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import torch
from torch import Tensor
from torch.autograd import forward_ad

from nvfp4 import _C, _api
from nvfp4.buffers import FIXED, FixedBuffers
from nvfp4.packed import (
    ACTIVATIONS,
    BLOCK,
    PackedLinear,
    aligned,
    check_block_scale,
    check_positive,
    check_tensor,
    check_type,
    round_up,
    short,
)


class Linear(FixedBuffers):
    """A torch.nn.Linear with NVFP4 weights: y = x . W^T + bias, where W is [out_features, in_features].

    A new layer holds zeros. `from_linear`, `from_packed`, `fuse` and `load_state_dict` fill it.

    Args:
        in_features (int): K, a positive multiple of 16.
        out_features (int): N.
        bias (bool, optional): whether the layer has a bias. Default: True.
        activations (str, optional): "nvfp4" or None. Default: "nvfp4".
            "nvfp4" quantizes the input at each call and multiplies by nvfp4.gemm (W4A4).
            None leaves the input as it is (W4A16): nvfp4.gemm multiplies a 16-bit input by the weight. For a float32
                input
            each call dequantizes the whole weight and calls torch.mm.
        device (torch.device, str or int, optional): the device of the buffers. Default: torch's default device.
        dtype (torch.dtype, optional): the dtype of the bias. Default: torch.get_default_dtype().
        block_scale (str, optional): how nvfp4.quantize chooses the scales of the input, "amax6" or "four_over_six".
            Default: "amax6".
            It is not in the state dict, and it has no effect on the weight.

    Buffers:
        weight: [N, K/2] uint8, like gemm's b.
        weight_scale: [N rounded up to 128, K/16 rounded up to 4] float8_e4m3fn in the 128x4 layout.
        weight_global_scale: float32, a multiplier: [], or [N] where each row has its own (fused layers).
        input_global_scale: float32 [], a multiplier; or None, which makes it dynamic.
            The dynamic scale is nvfp4.amax_scale of the whole input x, at each call. The rows of one call share it, so
            the result of a row depends on the others. It is 1 for an input with a NaN or an infinity.
        alpha: float32 [] or [N]: weight_global_scale * input_global_scale, or the first alone if the second is None.
            It is not in the state dict.
        bias: [N], or None.

    Shape:
        input: [..., K] in float16, bfloat16 or float32. Under autocast it is first cast to autocast's dtype.
        output: [..., N] in the same dtype.

    Products are exact and summed in fp32. alpha and bias are applied in fp32, and the result is rounded once. That
    holds for activations=None too: value * scale has at most 6 significant bits and is exact in 16 bits, so the global
    scale is applied to the sums and not to the weights. Only the products with a float32 input round.

    With activations=None there is a gradient with respect to x, by gemm(..., transpose_b=False) of the packed weight.
    (A float32 gradient, or one with an alpha of [N], enters as three bfloat16 parts: three times the work.) With
    "nvfp4" there is no gradient, and an input that requires one is rejected while gradients are recorded. A tangent of
    forward-mode differentiation is rejected too, except by activations=None with float32.

    `.to(dtype)`, `.half()` and similar methods cast the bias alone. Call `update_alpha()` after changing a buffer by
    hand.

    `load_state_dict` rejects another dtype or shape of a buffer. A weight_scale in the linear layout has the same shape
    as the 128x4 one where N is a multiple of 128 and K of 64, so it cannot be rejected there: convert it with
    nvfp4.swizzle.

    Raises:
        nvfp4.Error: an argument breaks a rule.

    Example:
        >>> import nvfp4, torch
        >>> layer = nvfp4.Linear.from_linear(torch.nn.Linear(64, 32))
        >>> with torch.inference_mode():
        ...     layer(torch.randn(2, 3, 64)).shape
        torch.Size([2, 3, 32])
    """

    weight: Tensor
    weight_scale: Tensor
    weight_global_scale: Tensor
    input_global_scale: Tensor | None
    alpha: Tensor
    bias: Tensor | None
    block_scale = "amax6"  # for pickles written without it, and for a module that becomes a layer

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        activations: str | None = "nvfp4",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        block_scale: str = "amax6",
    ) -> None:
        super().__init__()
        check_type("in_features", in_features, SupportsIndex, "an integer")
        check_type("out_features", out_features, SupportsIndex, "an integer")
        if in_features <= 0 or in_features % BLOCK:
            raise _C.Error(f"in_features: is {in_features}; must be a positive multiple of {BLOCK}")
        if out_features < 0:
            raise _C.Error(f"out_features: is {out_features}; must be 0 or more")
        if activations not in ACTIVATIONS:
            raise _C.Error(f"activations: is {activations!r}; must be 'nvfp4' or None")
        check_block_scale(block_scale)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in (torch.float16, torch.bfloat16, torch.float32):
            raise _C.Error(f"dtype: is {short(dtype)}; must be float16, bfloat16 or float32")
        self.in_features = in_features
        self.out_features = out_features
        self.activations = activations
        self.block_scale = block_scale
        scales = (round_up(out_features, 128), round_up(in_features // BLOCK, 4))

        def zeros(*shape: int, dtype: torch.dtype | None) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.register_buffer("weight", zeros(out_features, in_features // 2, dtype=torch.uint8))
        self.register_buffer("weight_scale", zeros(*scales, dtype=torch.uint8).view(torch.float8_e4m3fn))
        self.register_buffer("weight_global_scale", torch.ones((), dtype=torch.float32, device=device))
        self.register_buffer("input_global_scale", None)
        self.register_buffer("bias", zeros(out_features, dtype=dtype) if bias else None)
        self.register_buffer("alpha", None, persistent=False)
        self.update_alpha()

    @classmethod
    def from_linear(
        cls,
        linear: torch.nn.Linear,
        activations: str | None = "nvfp4",
        input_global_scale: float | Tensor | None = None,
        block_scale: str = "amax6",
    ) -> Linear:
        """Quantizes a layer's weight. Its global scale is nvfp4.amax_scale of the weight.

        Args:
            linear (torch.nn.Linear): a layer with a weight [N, K] in float16, bfloat16 or float32.
                Its bias, if any, is shared and not copied.
            activations (str, optional): "nvfp4" or None, as in the constructor. Default: "nvfp4".
            input_global_scale (float or Tensor, optional): a positive number or a tensor of one element. Default: None.
                None makes the scale dynamic.
            block_scale (str, optional): how nvfp4.quantize chooses the scales of the weight and the input. Default:
                "amax6".

        Returns:
            The nvfp4.Linear.

        Raises:
            nvfp4.Error: linear is no torch.nn.Linear, K is no multiple of 16, or the weight has another dtype or a
                value that is not finite.
        """
        check_type("linear", linear, torch.nn.Linear, "a torch.nn.Linear")
        weight, bias = linear.weight.detach(), None if linear.bias is None else linear.bias.detach()
        check_tensor("weight", weight, None)
        if not weight.is_meta and not bool(weight.isfinite().all()):
            raise _C.Error("weight: has a value that is NaN or infinite; must be finite")
        layer = cls(weight.shape[1], weight.shape[0], False, activations, "meta", torch.float32, block_scale)
        weight = weight.contiguous()
        scale = _api.amax_scale(weight, block_scale=block_scale).reshape(())
        data, weight_scale = _api.quantize(weight, global_scale=scale, block_scale=block_scale)
        if input_global_scale is not None:
            if activations is None:
                raise _C.Error("input_global_scale: is given but activations is None; must be None then")
            given = torch.as_tensor(input_global_scale, dtype=torch.float32, device=weight.device)
            if given.numel() != 1:
                raise _C.Error(f"input_global_scale: has {given.numel()} elements; must have 1")
            check_positive("input_global_scale", given)
            input_global_scale = given.detach().clone().reshape(())
        return layer._set(data, weight_scale, scale, input_global_scale, bias)

    @classmethod
    def from_packed(cls, packed: PackedLinear, block_scale: str = "amax6") -> Linear:
        """Makes a layer of the tensors that nvfp4.checkpoints reads.

        Args:
            packed (PackedLinear): the tensors. The weight and the bias are shared and not copied.
                A weight that is not contiguous or not aligned to 8 bytes, as gemm needs it, is copied.
            block_scale (str, optional): how nvfp4.quantize chooses the scales of the input. Default: "amax6".

        Returns:
            The nvfp4.Linear.
        """
        weight, n, k = aligned(packed.weight), packed.out_features, packed.in_features
        layer = cls(k, n, False, packed.activations, "meta", torch.float32, block_scale)
        swizzled = _api.swizzle(packed.weight_scale.contiguous())
        return layer._set(weight, swizzled, packed.weight_global_scale, packed.input_global_scale, packed.bias)

    def packed(self) -> PackedLinear:
        """Returns the layer's tensors as nvfp4.checkpoints writes them. The weight and the bias are shared."""
        scale = _api.unswizzle(self.weight_scale, self.out_features, self.in_features // BLOCK)
        scales = (scale, self.weight_global_scale, self.input_global_scale)
        return PackedLinear(self.weight, *scales, self.bias, self.activations)

    @classmethod
    def fuse(cls, layers: Sequence[Linear]) -> Linear:
        """Joins layers with the same input into one, whose outputs follow one another: [..., N1 + N2 + ...].

        Args:
            layers (sequence of Linear): one or more layers.
                If their weight global scales differ, the new layer has a vector of them, so that no weight changes.

        Returns:
            The nvfp4.Linear.

        Raises:
            nvfp4.Error: the layers differ in in_features, activations, block_scale, input_global_scale or the dtype of
                the bias.
        """
        if not layers:
            raise _C.Error("layers: has none; must have 1 or more")
        first = layers[0]
        for i, layer in enumerate(layers):
            for name in ("in_features", "activations", "block_scale", "input_global_scale", "bias"):
                ours, theirs = _described(getattr(first, name), name), _described(getattr(layer, name), name)
                if ours != theirs:
                    raise _C.Error(f"layers: {name} of layer {i} is {theirs} but of layer 0 {ours}")
        parts = [layer.packed() for layer in layers]
        scales = [part.weight_global_scale for part in parts]
        if all(scale.ndim == 0 and torch.equal(scale, scales[0]) for scale in scales):
            scale = scales[0]
        else:
            scale = torch.cat([scale.expand(part.out_features) for scale, part in zip(scales, parts)])
        bias = None if first.bias is None else torch.cat([part.bias for part in parts if part.bias is not None])
        weight = torch.cat([part.weight for part in parts])
        blocks = torch.cat([part.weight_scale.view(torch.uint8) for part in parts]).view(torch.float8_e4m3fn)
        packed = PackedLinear(weight, blocks, scale, first.input_global_scale, bias, activations=first.activations)
        return cls.from_packed(packed, first.block_scale)

    def _set(
        self,
        weight: Tensor,
        weight_scale: Tensor,
        weight_global_scale: Tensor,
        input_global_scale: Tensor | None,
        bias: Tensor | None,
    ) -> Linear:
        self.weight, self.weight_scale, self.weight_global_scale = weight, weight_scale, weight_global_scale
        self.input_global_scale, self.bias = input_global_scale, bias
        self.update_alpha()
        return self

    def update_alpha(self) -> None:
        """Computes alpha from the global scales."""
        scale, given = self.weight_global_scale, self.input_global_scale
        self.alpha = scale.clone() if given is None else scale * given

    # ---- what torch.nn.Module does with the buffers ----

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Also takes a state whose layer has one weight_global_scale for each row, or an input_global_scale, where
        this layer has not, and the reverse. Another dtype than a buffer's is an error: torch would convert the values,
        or with assign=True keep it."""
        mismatches = []
        for name in ("weight", *FIXED):
            t, own = state_dict.get(prefix + name), self._buffers[name]
            dtype = torch.float32 if own is None else own.dtype
            if isinstance(t, Tensor) and t.dtype != dtype:
                wanted = short(dtype) if own is None else f"{short(dtype)} {list(own.shape)}"
                mismatches.append(f"{prefix}{name}: is {short(t.dtype)} {list(t.shape)}; must be {wanted}")
        if mismatches:
            arguments[-1].extend(mismatches)  # load_state_dict raises them, with those of other modules
            return
        scale, given = (state_dict.get(prefix + name) for name in ("weight_global_scale", "input_global_scale"))
        shape = None if scale is None else tuple(scale.shape)
        if shape in ((), (self.out_features,)) and shape != self.weight_global_scale.shape:
            self.weight_global_scale = self.weight_global_scale.new_ones(shape)
        if prefix + "weight" in state_dict and self.activations is not None:
            self.input_global_scale = None if given is None else self.weight_global_scale.new_ones(())
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self.update_alpha()

    def extra_repr(self) -> str:
        text = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        text += f", activations={self.activations!r}"
        if self.activations is not None:
            text += f", input_global_scale={'dynamic' if self.input_global_scale is None else 'static'}"
        if self.block_scale != "amax6":
            text += f", block_scale={self.block_scale!r}"
        return text + (", weight_global_scale=[N]" if self.weight_global_scale.ndim else "")

    # ---- the product ----

    def forward(self, x: Tensor) -> Tensor:
        x = self._checked(x)
        shape = (*x.shape[:-1], self.out_features)
        rows = x.reshape(-1, self.in_features)
        if rows.shape[0] == 0:
            return x.new_empty(shape)
        scale, alpha = self._scales(rows)
        return self._product(rows, scale, alpha, self.bias, x.dtype).reshape(shape)

    def _checked(self, x: Tensor) -> Tensor:
        """The input in the dtype that the layer computes in."""
        if not isinstance(x, Tensor):
            raise _C.Error(f"x: is of type {type(x).__name__}; must be a torch.Tensor")
        if x.ndim == 0 or x.shape[-1] != self.in_features:
            raise _C.Error(f"x: shape is {list(x.shape)}; the last dimension must be in_features = {self.in_features}")
        if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            raise _C.Error(f"x: dtype is {short(x.dtype)}; must be float16, bfloat16 or float32")
        if not x.is_meta and torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        return x

    def _scales(self, rows: Tensor) -> tuple[Tensor | None, Tensor]:
        """The global scale of an input [rows, K], or None if it is not quantized, and alpha with it."""
        if self.activations is None or self.input_global_scale is not None:
            return self.input_global_scale, self.alpha
        scale = self._dynamic_scale(rows)
        return scale, self.alpha * scale

    def _dynamic_scale(self, rows: Tensor) -> Tensor:
        rows = rows if rows.stride(-1) == 1 else rows.contiguous()
        return _api.amax_scale(rows, block_scale=self.block_scale).reshape(())

    def _product(
        self, rows: Tensor, scale: Tensor | None, alpha: Tensor | None, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """alpha * sums + bias [rows, N], rounded once to dtype. Without alpha: the sums of values and block scales."""
        if self.activations is not None or rows.dtype != torch.float32:
            _check_no_tangent(rows)
        if self.activations is None:
            if torch.is_grad_enabled() and rows.requires_grad:
                return _WeightOnly.apply(rows, self.weight, self.weight_scale, alpha, bias, dtype)
            return _weight_only(rows, self.weight, self.weight_scale, alpha, bias, dtype)
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        if bias is not None and bias.dtype != dtype:
            bias = bias.float()
        a, scale_a = _api.quantize(rows, global_scale=scale, block_scale=self.block_scale)
        # quantize's kernel starts after all work before it and writes a and scale_a alone, so whatever wrote the weight
        # is complete when gemm's starts. Compiled code may put a kernel that computes a weight between the two, and in
        # _weight_only no kernel of ours comes before gemm's.
        return _api.gemm(
            a,
            self.weight,
            scale_a,
            self.weight_scale,
            alpha=alpha,
            bias=bias,
            out_dtype=dtype,
            constant_b=not (torch.compiler.is_compiling() or torch._C._is_tracing()),
        )


def _check_no_tangent(x: Tensor) -> None:
    """Rejects forward-mode differentiation: the kernels would give a tangent of 0."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    if forward_ad.unpack_dual(x).tangent is not None:
        raise _C.Error("x: has a tangent; nvfp4 has no forward-mode derivatives, except of W4A16 with float32")


def _described(value: Any, name: str) -> Any:
    """The value by which an attribute of two layers is compared."""
    if not isinstance(value, Tensor):
        return value
    return short(value.dtype) if name == "bias" else float(value)


def _as_gemm_takes_it(x: Tensor) -> Tensor:
    """Dense rows on 16 bytes: x itself, if it has them. A traced tensor has no address and is taken to be aligned."""
    if x.stride(-1) != 1 or (x.shape[0] > 1 and x.stride(0) != x.shape[1]):
        return x.contiguous()
    traced = torch.compiler.is_compiling() or type(x) is not Tensor
    return x if traced or x.data_ptr() % 16 == 0 else x.clone()


def _weight_only(
    x: Tensor, weight: Tensor, weight_scale: Tensor, alpha: Tensor | None, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    if x.dtype != torch.float32:
        if bias is not None and bias.dtype != dtype:
            bias = bias.float()
        return _api.gemm(_as_gemm_takes_it(x), weight, None, weight_scale, alpha=alpha, bias=bias, out_dtype=dtype)
    with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):
        y = torch.mm(x, _api.dequantize(weight, weight_scale).t())
    y = y if alpha is None else y * alpha
    return y if bias is None else y + bias.float()


class _WeightOnly(torch.autograd.Function):
    """_weight_only, with a gradient with respect to x that multiplies by the packed weight."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        weight_scale: Tensor,
        alpha: Tensor | None,
        bias: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        ctx.save_for_backward(weight, weight_scale, alpha)
        return _weight_only(x, weight, weight_scale, alpha, bias, dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return _input_gradient(gradients[0], *ctx.saved_tensors), None, None, None, None, None


def _input_gradient(dy: Tensor, weight: Tensor, weight_scale: Tensor, alpha: Tensor | None) -> Tensor:
    """(alpha * dy) . W. One alpha is applied to the fp32 sums; one for each row of W lies along the sums."""
    along_sums = alpha is not None and alpha.ndim > 0
    if dy.dtype != torch.float32 and not along_sums:
        dy = _as_gemm_takes_it(dy)
        return _api.gemm(dy, weight, None, weight_scale, alpha=alpha, out_dtype=dy.dtype, transpose_b=False)
    parts = _bf16_parts(dy.float() * alpha if along_sums else dy).reshape(-1, dy.shape[1])
    sums = _api.gemm(parts, weight, None, weight_scale, out_dtype=torch.float32, transpose_b=False)
    dx = sums.reshape(3, *dy.shape[:1], -1).sum(0)
    return (dx if alpha is None or along_sums else dx * alpha).to(dy.dtype)


def _bf16_parts(x: Tensor) -> Tensor:
    """fp32 as three bf16 [3, ...], whose sum it is: each takes the upper 8 of the significant bits that are left. Bits
    are masked, since a compiler may drop a rounding to bf16 and back."""

    def upper(x: Tensor) -> Tensor:
        return (x.contiguous().view(torch.int32) & -0x10000).view(torch.float32)

    def rest(x: Tensor, part: Tensor) -> Tensor:
        return torch.where(x.isinf(), 0.0, x - part)

    first = upper(x)
    second = upper(rest(x, first))
    return torch.stack((first, second, rest(rest(x, first), second))).bfloat16()
