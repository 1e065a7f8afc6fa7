"""nvfp4.Linear: torch.nn.Linear with NVFP4 weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, SupportsIndex

import torch
from torch import Tensor

from nvfp4 import _C, _api
from nvfp4.layers.buffers import FixedBuffers, aligned, casting, round_up
from nvfp4.layers.checks import (
    check_block_scale,
    check_damping,
    check_dense_dtype,
    check_positive,
    check_tensor,
    check_type,
    check_weights,
    short,
)
from nvfp4.layers.gptq import MIN_DAMPING, check_statistics, exact_mode, factor, gptq
from nvfp4.layers.gradient import (
    WITH_GRADIENT,
    NoGradient,
    WeightOnly,
    check_no_tangent,
    is_constant,
    is_transformed,
    weight_only,
)
from nvfp4.layers.packed import ACTIVATIONS, BLOCK, PackedLinear, invertible, layer_input

NOT_INVARIANT = (
    "so its input scale is that of all rows together; must be calibrated for batch_invariant=True, or have "
    "activations=None"
)


class QuantizedInput:
    """An input x [..., K] of one nvfp4.Linear, quantized with that layer's input scale.

    Args:
        layer (Linear): the layer, the only one that takes it.
        data, scale (Tensor): the rows of x, as nvfp4.quantize returns them in the 128x4 layout.
        like (Tensor): a tensor with the shape, the dtype and the device of x.
    """

    def __init__(self, layer: Linear, data: Tensor, scale: Tensor, like: Tensor) -> None:
        self.layer, self.data, self.scale = layer, data, scale
        self.shape, self.dtype, self.device = like.shape, like.dtype, like.device

    @classmethod
    def __torch_function__(cls, function: Any, *arguments: Any) -> NoReturn:
        raise _C.Error(
            "x: is quantized for an nvfp4.Linear that is not in its place any more; must be a torch.Tensor: load the "
            "model again, without fuse_quantizers"
        )


class Linear(FixedBuffers, torch.nn.Linear):
    """A torch.nn.Linear with NVFP4 weights: y = x . W^T + bias, where W is [out_features, in_features].

    A new layer holds zeros. `from_linear`, `from_packed`, `fuse` and `load_state_dict` fill it. `to_linear` gives a
    dense torch.nn.Linear back.

    The class is derived from torch.nn.Linear so that libraries which look for linear layers, such as PEFT, find these
    too. It has no parameters: its tensors are buffers, and `weight` is packed.

    Args:
        in_features (int): K, a positive multiple of 16.
        out_features (int): N.
        bias (bool, optional): whether the layer has a bias. Default: True.
        activations (str, optional): "nvfp4" or None. Default: "nvfp4".
            "nvfp4" quantizes the input at each call and multiplies by nvfp4.gemm (W4A4).
            None leaves the input as it is (W4A16): nvfp4.gemm multiplies a 16-bit input by the weight. For a float32
            input each call dequantizes the whole weight and calls torch.mm.
        device (torch.device, str or int, optional): the device of the buffers. Default: torch's default device.
        dtype (torch.dtype, optional): the dtype of the bias, and of the weight that `to_linear` makes. Default:
            torch.get_default_dtype().
        block_scale (str, optional): how nvfp4.quantize chooses the scales of the input, "amax6" or "four_over_six".
            Default: "amax6".
            It is not in the state dict, and it has no effect on the weight.
        batch_invariant (bool, optional): makes the bits of a row of the output independent of the other rows.
            Default: False.
            With activations=None a float32 input is multiplied as three bfloat16 parts, which are exact.
            With activations="nvfp4" an input_global_scale is required: forward raises an error without one.
            It is not in the state dict. nvfp4.set_batch_invariant sets it for all layers of a model.

    Buffers:
        weight: [N, K/2] uint8, like gemm's b.
        weight_scale: [N rounded up to 128, K/16 rounded up to 4] float8_e4m3fn in the 128x4 layout.
        weight_global_scale: float32, a multiplier: [], or [N] where each row has its own (fused layers).
        input_global_scale: float32 [], a multiplier; or None, which makes it dynamic.
            The dynamic scale is nvfp4.amax_scale of the whole input x, at each call. The rows of one call share it, so
            the result of a row depends on the others. It is 1 for an input with a NaN or an infinity.
        alpha: float32 [] or [N]: weight_global_scale * input_global_scale, or the first alone if the second is None.
            It is not in the state dict.
        pre_quant_scale: [K] float16, bfloat16 or float32, or None. The input is multiplied by it first (AWQ).
        bias: [N], or None.

    Shape:
        input: [..., K] in float16, bfloat16 or float32. Under autocast it is first cast to autocast's dtype.
        output: [..., N] in the same dtype.

    pre_quant_scale is rounded to the dtype of the input, and so is their product.

    Products are exact and summed in fp32. alpha and bias are applied in fp32, and the result is rounded once. That
    holds for activations=None too: value * scale has at most 6 significant bits and is exact in 16 bits, so the global
    scale is applied to the sums and not to the weights. Only the products with a float32 input round.

    With activations=None there is a gradient with respect to x, by gemm(..., transpose_b=False) of the packed weight.
    (A float32 gradient, or one with an alpha of [N], enters as three bfloat16 parts: three times the work.) With
    "nvfp4" there is no gradient: if the input requires one, the output has a `grad_fn`, and its backward raises
    nvfp4.Error. Compiled and traced code and torch.func reject such an input already. A tangent of forward-mode
    differentiation is rejected too, except by activations=None with float32.

    `.to(dtype)`, `.half()` and similar methods cast the bias alone, and set `dtype`. Call `update_alpha()` after
    changing a buffer by hand.

    `load_state_dict` rejects another dtype or shape of a buffer. A weight_scale in the linear layout has the same shape
    as the 128x4 one where N is a multiple of 128 and K of 64, so it cannot be rejected there: convert it with
    nvfp4.swizzle.

    Raises:
        nvfp4.Error: an argument breaks a rule.

    Examples:
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
    pre_quant_scale: Tensor | None
    fixed = ("weight", "weight_scale", "weight_global_scale", "input_global_scale", "pre_quant_scale", "alpha")
    e4m3 = ("weight_scale",)
    # For pickles written without these, and for a module that becomes a layer.
    block_scale = "amax6"
    batch_invariant = False
    dtype = torch.float32
    divisors: Mapping[str, float] | None = None  # of the PackedLinear that it was made of
    _is_hf_initialized = True  # or transformers, which initializes each torch.nn.Linear, would write random numbers

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        activations: str | None = "nvfp4",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        block_scale: str = "amax6",
        batch_invariant: bool = False,
    ) -> None:
        torch.nn.Module.__init__(self)  # torch.nn.Linear's would make dense parameters
        check_type("in_features", in_features, SupportsIndex, "an integer")
        check_type("out_features", out_features, SupportsIndex, "an integer")
        if in_features <= 0 or in_features % BLOCK:
            raise _C.Error(f"in_features: is {in_features}; must be a positive multiple of {BLOCK}")
        if out_features < 0:
            raise _C.Error(f"out_features: is {out_features}; must be 0 or more")
        if activations not in ACTIVATIONS:
            raise _C.Error(f"activations: is {activations!r}; must be 'nvfp4' or None")
        check_block_scale(block_scale)
        check_type("batch_invariant", batch_invariant, bool, "a bool")
        dtype = torch.get_default_dtype() if dtype is None else dtype
        check_dense_dtype(dtype)
        self.in_features = in_features
        self.out_features = out_features
        self.activations = activations
        self.block_scale = block_scale
        self.batch_invariant = batch_invariant
        self.dtype = dtype
        scales = (round_up(out_features, 128), round_up(in_features // BLOCK, 4))

        def zeros(*shape: int, dtype: torch.dtype | None) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.register_buffer("weight", zeros(out_features, in_features // 2, dtype=torch.uint8))
        self.register_buffer("weight_scale", zeros(*scales, dtype=torch.uint8).view(torch.float8_e4m3fn))
        self.register_buffer("weight_global_scale", torch.ones((), dtype=torch.float32, device=device))
        self.register_buffer("input_global_scale", None)
        self.register_buffer("pre_quant_scale", None)
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
        weights: str = "round",
        importance: Tensor | None = None,
        hessian: Tensor | None = None,
        damping: float | None = None,
    ) -> Linear:
        """Quantizes a layer's weight.

        Its global scale is nvfp4.amax_scale of the weight, changed by at most 1 in the last place so that each format
        stores it without loss.

        quantize_model(weights="gptq", calibrate=...) collects what "gptq" needs from samples.

        Args:
            linear (torch.nn.Linear): a layer with a weight [N, K] in float16, bfloat16 or float32.
                Its bias, if any, is shared and not copied.
            activations (str, optional): "nvfp4" or None, as in the constructor. Default: "nvfp4".
            input_global_scale (float or Tensor, optional): a positive number or a tensor of one element. Default: None.
                None makes the scale dynamic.
            block_scale (str, optional): how nvfp4.quantize chooses the scales of the input, and of the weight with
                weights="round". Default: "amax6".
            weights (str, optional): how codes and block scales of the weight are chosen. Default: "round".
                "round" takes the scales by block_scale.
                "search" takes the best of 13 scales for each block, by squared error.
                "gptq" takes the codes and scales that change the layer's output least, by its inputs' Hessian.
            importance (Tensor, optional): float32 [K], for "search": the weight of each column's squared errors,
                finite and not negative, such as the mean square of each input channel. Default: None, all equal.
            hessian (Tensor, optional): float32 [K, K], required by "gptq": the sum of x x^T over inputs x of the layer,
                times any positive factor. Default: None.
            damping (float, optional): for "gptq": this share of the mean diagonal is added to the Hessian's diagonal.
                Default: None, which stands for 0.1. Fewer than 4 K inputs need more, up to 1.
                It is raised tenfold, up to three times, while the sum is not positive definite.

        Returns:
            The nvfp4.Linear.

        Raises:
            nvfp4.Error: linear is no torch.nn.Linear, K is no multiple of 16, the weight has another dtype or a value
                that is not finite, another argument breaks a rule, or no damping makes the Hessian positive definite.
        """
        check_weights(weights)
        check_damping(damping, weights)
        check_type("linear", linear, torch.nn.Linear, "a torch.nn.Linear")
        weight, bias = linear.weight.detach(), None if linear.bias is None else linear.bias.detach()
        check_tensor("weight", weight, None)
        if not weight.is_meta and not bool(weight.isfinite().all()):
            raise _C.Error("weight: has a value that is NaN or infinite; must be finite")
        layer = cls(weight.shape[1], weight.shape[0], False, activations, "meta", weight.dtype, block_scale)
        weight = weight.contiguous()
        for name, given, owner in (("importance", importance, "search"), ("hessian", hessian, "gptq")):
            check_statistics(name, given, owner, weights, weight)
        rule = block_scale if weights == "round" else "search"
        scale = invertible(_api.amax_scale(weight, block_scale=rule).reshape(()))
        if hessian is not None:
            with exact_mode(weight.device):
                data, linear_scale, _ = gptq(
                    weight, factor(hessian, MIN_DAMPING if damping is None else damping), scale
                )
                weight_scale = _api.swizzle(linear_scale)
        elif weights == "search":
            data, weight_scale = _api.quantize(weight, global_scale=scale, block_scale=rule, importance=importance)
        else:
            data, weight_scale = _api.quantize(weight, global_scale=scale, block_scale=rule)
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
    def from_packed(cls, packed: PackedLinear, block_scale: str = "amax6", dtype: torch.dtype | None = None) -> Linear:
        """Makes a layer of the tensors that nvfp4.checkpoints reads.

        Args:
            packed (PackedLinear): the tensors. The weight and the bias are shared and not copied.
                A weight that is not contiguous or not aligned to 8 bytes, as gemm needs it, is copied.
            block_scale (str, optional): how nvfp4.quantize chooses the scales of the input. Default: "amax6".
            dtype (torch.dtype, optional): the dtype of the weight that `to_linear` makes. Default: that of the bias,
                or torch.get_default_dtype() without one.

        Returns:
            The nvfp4.Linear.
        """
        weight, n, k = aligned(packed.weight), packed.out_features, packed.in_features
        if dtype is None and packed.bias is not None:
            dtype = packed.bias.dtype
        layer = cls(k, n, False, packed.activations, "meta", dtype, block_scale)
        swizzled = _api.swizzle(packed.weight_scale.contiguous())
        layer.pre_quant_scale, layer.divisors = packed.pre_quant_scale, packed.divisors
        return layer._set(weight, swizzled, packed.weight_global_scale, packed.input_global_scale, packed.bias)

    def packed(self) -> PackedLinear:
        """Returns the layer's tensors as nvfp4.checkpoints writes them. The weight and the bias are shared."""
        scale = _api.unswizzle(self.weight_scale, self.out_features, self.in_features // BLOCK)
        scales = (scale, self.weight_global_scale, self.input_global_scale)
        return PackedLinear(self.weight, *scales, self.bias, self.activations, self.pre_quant_scale, self.divisors)

    @classmethod
    def fuse(cls, layers: Sequence[Linear]) -> Linear:
        """Joins layers with the same input into one. Their outputs follow one another: [..., N1 + N2 + ...].

        Args:
            layers (sequence of Linear): one or more layers.
                If their weight global scales differ, the new layer has a vector of them, so that no weight changes.

        Returns:
            The nvfp4.Linear.

        Raises:
            nvfp4.Error: the layers differ in in_features, activations, block_scale, batch_invariant,
                input_global_scale, pre_quant_scale or the dtype of the bias.
        """
        if not layers:
            raise _C.Error("layers: has none; must have 1 or more")
        first = layers[0]
        for i, layer in enumerate(layers):
            for name in ("in_features", "activations", "block_scale", "batch_invariant", "input_global_scale", "bias"):
                ours, theirs = _described(getattr(first, name), name), _described(getattr(layer, name), name)
                if ours != theirs:
                    raise _C.Error(f"layers: {name} of layer {i} is {theirs} but of layer 0 {ours}")
            if not _same(first.pre_quant_scale, layer.pre_quant_scale):
                raise _C.Error(f"layers: pre_quant_scale of layer {i} differs from that of layer 0; must be equal")
        parts = [layer.packed() for layer in layers]
        scales = [part.weight_global_scale for part in parts]
        if all(scale.ndim == 0 and torch.equal(scale, scales[0]) for scale in scales):
            scale = scales[0]
        else:
            scale = torch.cat([scale.expand(part.out_features) for scale, part in zip(scales, parts)])
        bias = None if first.bias is None else torch.cat([part.bias for part in parts if part.bias is not None])
        weight = torch.cat([part.weight for part in parts])
        blocks = torch.cat([part.weight_scale.view(torch.uint8) for part in parts]).view(torch.float8_e4m3fn)
        packed = PackedLinear(
            weight, blocks, scale, first.input_global_scale, bias, first.activations, first.pre_quant_scale
        )
        fused = cls.from_packed(packed, first.block_scale, first.dtype)
        fused.batch_invariant = first.batch_invariant
        return fused

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """Returns the dense weight W [N, K]: value * scale * weight_global_scale, computed in fp32. Its columns are
        multiplied by pre_quant_scale, if there is one: W takes the input as it is.

        Args:
            dtype (torch.dtype, optional): float16, bfloat16 or float32. Default: the layer's `dtype`.

        Returns:
            A new tensor on the weight's device. It is exact where the fp32 product and `dtype` hold the value.
        """
        dtype = self.dtype if dtype is None else dtype
        check_dense_dtype(dtype)
        scale, before = self.weight_global_scale, self.pre_quant_scale
        if scale.ndim == 0 and before is None:
            return _api.dequantize(self.weight, self.weight_scale, global_scale=scale, out_dtype=dtype)
        weight = _api.dequantize(self.weight, self.weight_scale) * (scale[:, None] if scale.ndim else scale)
        return (weight if before is None else weight * before.float()).to(dtype)

    def to_linear(self, dtype: torch.dtype | None = None) -> torch.nn.Linear:
        """Returns a torch.nn.Linear with the dense weight and a copy of the bias. Both require a gradient.

        Args:
            dtype (torch.dtype, optional): float16, bfloat16 or float32. Default: the layer's `dtype`.
        """
        weight, bias = self.dequantize(dtype), self.bias
        linear = torch.nn.Linear(self.in_features, self.out_features, bias is not None, "meta")
        linear.weight = torch.nn.Parameter(weight)
        if bias is not None:
            linear.bias = torch.nn.Parameter(bias.to(weight.dtype, copy=True))
        return linear.train(self.training)

    @property
    def W_q(self) -> Tensor:
        """The packed weight. PEFT asks a layer that has this attribute, as HQQ's layers do, for `dequantize()` where it
        needs the dense weight (DoRA)."""
        return self.weight

    def reset_parameters(self) -> None:
        """Raises nvfp4.Error: there are no parameters that could be initialized."""
        raise _C.Error("layer: has no parameters to reset; must be filled by from_linear, from_packed or a state dict")

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

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FixedBuffers:
        """Also casts `dtype`."""
        self.dtype = casting(fn)(torch.empty(0, dtype=self.dtype, device=self.weight.device)).dtype
        return super()._apply(fn, recurse)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._buffers.setdefault("pre_quant_scale", None)  # a pickle of 0.2 does not have it

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Also takes a state whose layer has one weight_global_scale for each row, or an input_global_scale, where
        this layer has not, and the reverse; a pre_quant_scale too, in any floating-point dtype."""
        if messages := self.no_tensors(state_dict, prefix):
            arguments[-1].extend(messages)  # load_state_dict raises them, with those of other modules
            return
        before = state_dict.get(prefix + "pre_quant_scale")
        if prefix + "weight" in state_dict:
            dtype = torch.float32 if before is None else before.dtype
            dtype = dtype if dtype in (torch.float16, torch.bfloat16) else torch.float32
            ones = torch.ones(self.in_features, dtype=dtype, device=self.weight.device)
            self.pre_quant_scale = None if before is None else ones
        mismatches = self.wrong_dtypes(state_dict, prefix)
        if mismatches:
            arguments[-1].extend(mismatches)
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
        if self.activations is None:
            text += ", W4A16"
        else:
            text += f", W4A4, input_global_scale={'dynamic' if self.input_global_scale is None else 'static'}"
        if self.block_scale != "amax6":
            text += f", block_scale={self.block_scale!r}"
        text += ", batch_invariant=True" if self.batch_invariant else ""
        text += ", weight_global_scale=[N]" if self.weight_global_scale.ndim else ""
        return text + ("" if self.pre_quant_scale is None else ", pre_quant_scale=[K]")

    def _get_name(self) -> str:
        return f"nvfp4.{type(self).__name__}"  # in the repr of a model, beside torch's Linear

    # ---- the product ----

    def takes_quantized(self) -> bool:
        """Whether a QuantizedInput holds all that the layer does to its input before the product."""
        static = self.activations is not None and self.input_global_scale is not None
        return static and self.block_scale == "amax6" and self.pre_quant_scale is None

    def forward(self, x: Tensor | QuantizedInput) -> Tensor:
        if isinstance(x, QuantizedInput):
            return self._of_quantized(x)
        x = self._checked(x)
        shape = (*x.shape[:-1], self.out_features)
        rows = x.reshape(-1, self.in_features)
        if rows.shape[0] == 0:
            return x.new_empty(shape)
        scale, alpha = self._scales(rows)
        return self._product(rows, scale, alpha, self.bias, x.dtype).reshape(shape)

    def _of_quantized(self, x: QuantizedInput) -> Tensor:
        if x.layer is not self:
            raise _C.Error("x: is quantized for another layer; must be for this one")
        y = _api.gemm(
            x.data,
            self.weight,
            x.scale,
            self.weight_scale,
            alpha=self.alpha,
            bias=self.bias if self.bias is None or self.bias.dtype == x.dtype else self.bias.float(),
            out_dtype=x.dtype,
            batch_invariant=self.batch_invariant,
            constant_b=is_constant() and not self._forward_pre_hooks,  # these run behind the quantizer
        )
        return y.reshape(*x.shape[:-1], self.out_features)

    def _checked(self, x: Tensor) -> Tensor:
        """The input in the dtype that the layer computes in, times pre_quant_scale."""
        x = layer_input(x, self.in_features)
        return x if self.pre_quant_scale is None else x * self.pre_quant_scale.to(x.dtype)

    def _scales(self, rows: Tensor) -> tuple[Tensor | None, Tensor]:
        """The global scale of an input [rows, K], or None if it is not quantized, and alpha with it."""
        if self.activations is None or self.input_global_scale is not None:
            return self.input_global_scale, self.alpha
        if self.batch_invariant:
            raise _C.Error(f"input_global_scale: is None, {NOT_INVARIANT}")
        scale = self._dynamic_scale(rows)
        return scale, self.alpha * scale

    def _dynamic_scale(self, rows: Tensor) -> Tensor:
        rows = rows.detach() if rows.stride(-1) == 1 else rows.detach().contiguous()
        return _api.amax_scale(rows, block_scale=self.block_scale).reshape(())

    def _product(
        self, rows: Tensor, scale: Tensor | None, alpha: Tensor | None, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """alpha * sums + bias [rows, N], rounded once to dtype. Without alpha: the sums of values and block scales."""
        if self.activations is not None or rows.dtype != torch.float32:
            check_no_tangent(rows)
        if self.activations is None:
            if torch.is_grad_enabled() and rows.requires_grad:
                return WeightOnly.apply(rows, self.weight, self.weight_scale, alpha, bias, dtype, self.batch_invariant)
            return weight_only(rows, self.weight, self.weight_scale, alpha, bias, dtype, self.batch_invariant)
        if torch.is_grad_enabled() and rows.requires_grad:
            if is_transformed():
                raise _C.Error(
                    "x: requires grad, which compiled, traced or transformed W4A4 code cannot take; use "
                    f"torch.no_grad(), or {WITH_GRADIENT}"
                )
            return NoGradient.apply(rows, self._quantized_product, scale, alpha, bias, dtype)
        return self._quantized_product(rows, scale, alpha, bias, dtype)

    def _quantized_product(
        self, rows: Tensor, scale: Tensor | None, alpha: Tensor | None, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        if bias is not None and bias.dtype != dtype:
            bias = bias.float()
        return _api.quantize_gemm(
            rows,
            self.weight,
            self.weight_scale,
            global_scale=scale,
            alpha=alpha,
            bias=bias,
            out_dtype=dtype,
            block_scale=self.block_scale,
            batch_invariant=self.batch_invariant,
        )


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and a.dtype == b.dtype and torch.equal(a, b))


def _described(value: Any, name: str) -> Any:
    """The value by which an attribute of two layers is compared."""
    if not isinstance(value, Tensor):
        return value
    return short(value.dtype) if name == "bias" else float(value)
