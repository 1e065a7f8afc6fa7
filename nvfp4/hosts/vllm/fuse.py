"""A pass over vLLM's compiled graph, by NVFP4_VLLM_FUSE=1: norms and activations that quantize what a W4A4 layer reads.

In the graph after the gradient passes a W4A4 layer with a static input scale is torch.ops.nvfp4.quantize_gemm, and a
norm is one operator of vllm_ir. The pass finds these by torch's pattern matcher:

    rms_norm(x, weight, eps) or fused_add_rms_norm(x, residual, weight, eps), read by one quantize_gemm alone
    silu(x[:, :K]) * x[:, K:] as torch's decompositions write SiluAndMul, read by one quantize_gemm alone

and puts rms_norm_quantize or gated_quantize, and gemm, in their place. Values are rounded where vLLM's own kernels
round them: x + residual, the normalized value and its product with the weight; silu and its product.

vLLM takes the pass from its configuration, where it enters the key of the cache of compiled code by its uuid.
"""

from __future__ import annotations

import functools
import hashlib
import math
import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized
from torch._inductor import pattern_matcher as pm
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from vllm.compilation.passes.inductor_pass import InductorPass
from vllm.config import CompilationMode, VllmConfig
from vllm.logger import init_logger
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.platforms import current_platform

from nvfp4 import _C
from nvfp4 import torch_ops as torch_ops  # registers torch.ops.nvfp4
from nvfp4.layers.packed import BLOCK

SWITCH = "NVFP4_VLLM_FUSE"
ops, ir = torch.ops.nvfp4, torch.ops.vllm_ir
PRODUCTS = (ops.gemm.default, ops.quantize_gemm.default)
Check: TypeAlias = Callable[[pm.Match], bool]
Replace: TypeAlias = Callable[[pm.Match], tuple[fx.Node, fx.Node]]  # makes the layer's data and scales

logger = init_logger("vllm.plugins.nvfp4")


def register() -> None:
    """Has the platform add the pass to each configuration that it completes. A second call changes nothing.

    Raises:
        nvfp4.Error: NVFP4_VLLM_FUSE is neither 0 nor 1.
    """
    given = os.environ.get(SWITCH, "0")
    if given not in ("0", "1"):
        raise _C.Error(f"{SWITCH}: is {given!r}; must be 0 or 1")
    platform = type(current_platform)
    own = platform.check_and_update_config
    if getattr(own, "of_nvfp4", False):
        return

    def check_and_update_config(cls: Any, vllm_config: VllmConfig) -> None:
        own(vllm_config)
        add_pass(vllm_config)

    check_and_update_config.of_nvfp4 = True  # type: ignore[attr-defined]
    platform.check_and_update_config = classmethod(check_and_update_config)


def add_pass(config: VllmConfig) -> None:
    compilation = config.compilation_config
    key = current_platform.pass_key
    if compilation.mode != CompilationMode.VLLM_COMPILE or compilation.backend not in ("", "inductor"):
        logger.warning_once("%s: nothing is fused, as vLLM does not compile this model by its own passes", SWITCH)
    elif key in compilation.inductor_compile_config:
        logger.warning_once("%s: nothing is fused, as the configuration has another %s", SWITCH, key)
    else:
        compilation.inductor_compile_config[key] = QuantizerFusion()


class QuantizerFusion(InductorPass):
    """The pass. It has no state, so that vLLM can copy it and send it to its processes."""

    def __call__(self, graph: fx.Graph) -> None:
        layers = len([*graph.find_nodes(op="call_function", target=ops.quantize_gemm.default)])
        fused = patterns().apply(graph)
        if layers and not fused:
            logger.warning_once(
                "%s: a graph with %d W4A4 layers is unchanged: no norm or activation before them is recognised, or "
                "their input scales are dynamic",
                SWITCH,
                layers,
            )
        logger.debug("%s: %d of %d quantizers are fused", SWITCH, fused, layers)

    def uuid(self) -> str:
        return hashlib.sha256(Path(__file__).read_bytes() + str(_C.version).encode()).hexdigest()


@functools.cache
def patterns() -> pm.PatternMatcherPass:
    found = pm.PatternMatcherPass(pass_name="nvfp4_quantizer_fusion")

    def add(input_of_layer: Any, check: Check, replace: Replace) -> None:
        others = (pm.Ignored() for _ in ops.quantize_gemm.default._schema.arguments[1:])
        layer = pm.CallFunction(ops.quantize_gemm.default, input_of_layer, *others)

        def checked(match: pm.Match) -> bool:
            return layer_applies(match) and check(match)

        def handler(match: pm.Match, *values: Any, **named: Any) -> None:
            multiply(match.output_node(), *replace(match))
            match.erase_nodes()

        pm.register_graph_pattern(layer, checked, pass_dict=found)(handler)

    x, residual, weight, eps = (pm.KeywordArg(name) for name in ("x", "residual", "weight", "eps"))
    add(pm.CallFunction(ir.rms_norm.default, x, weight, eps), norm_applies, quantize_norm)
    both = pm.CallFunction(ir.fused_add_rms_norm.default, x, residual, weight, eps, _users=pm.MULTIPLE)
    add(pm.CallFunction(operator.getitem, both, 0), norm_applies, quantize_norm)
    for dtype in (torch.bfloat16, torch.float32):  # fp16's is bf16's: a pattern matches any dtype of a conversion
        with torch._guards.tracing(None), unset_fake_temporarily(), FakeTensorMode():
            activation: Any = pm.gen_pattern(silu_and_mul, [torch.empty(2, 64, dtype=dtype)], pm.fwd_only)
        activation.users = 1  # the layer alone; in the traced function nothing reads it
        add(activation, activation_applies, quantize_activation)
    return found


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    return SiluAndMul.forward_native(x)


def value(node: Any) -> Any:
    return node.meta["val"]


def is_input(node: fx.Node) -> bool:
    """Whether a node stands for a tensor that is there before the graph runs."""
    return node.op in ("placeholder", "get_attr")


def norm_of(match: pm.Match) -> fx.Node:
    return next(n for n in match.nodes if n.target in (ir.rms_norm.default, ir.fused_add_rms_norm.default))


def layer_of(match: pm.Match) -> dict[str, Any]:
    """The arguments of quantize_gemm by their names."""
    names = (argument.name for argument in ops.quantize_gemm.default._schema.arguments)
    return dict(zip(names, match.output_node().args, strict=True))


# ---- what is replaced ----


def layer_applies(match: pm.Match) -> bool:
    """Whether a layer takes its input as a fused quantizer makes it. Its scale must precede all other nodes."""
    layer = layer_of(match)
    a, scale = value(layer["a"]), layer["global_scale"]
    there = is_input(scale) and value(scale).dtype == torch.float32
    return there and layer["block_scale"] == "amax6" and a.ndim == 2 and a.shape[1] % BLOCK == 0


def norm_applies(match: pm.Match) -> bool:
    norm = norm_of(match)
    *rows, weight = (value(node) for node in norm.args if isinstance(node, fx.Node))
    same = all(t.dtype == weight.dtype and t.is_contiguous() and t.ndim == 2 for t in rows)
    return same and weight.ndim == 1


def activation_applies(match: pm.Match) -> bool:
    """Whether gate is the first half of x and up the second."""
    k, given = value(layer_of(match)["a"]).shape[1], [half.args for half in halves(match)]
    whole = value(given[0][0]).shape[-1]
    if whole != 2 * k or any(len(args) != 4 for args in given):
        return False
    return [(args[1], args[2], min(args[3], whole)) for args in given] == [(1, 0, k), (1, k, whole)]


def halves(match: pm.Match) -> tuple[fx.Node, fx.Node]:
    """The slices of x whose silu is taken, and by which it is multiplied."""
    slices = [node for node in match.nodes if node.target == torch.ops.aten.slice.Tensor]
    (up,) = [node for node in slices if node in layer_of(match)["a"].args]
    (gate,) = [node for node in slices if node is not up]
    return gate, up


# ---- what replaces it ----


def quantize_norm(match: pm.Match) -> tuple[fx.Node, fx.Node]:
    """rms_norm_quantize at the place of the norm, since others may read the new residual before the layer."""
    norm, layer, graph = norm_of(match), layer_of(match), match.graph
    x, *residual, weight, eps = norm.args
    if residual:  # their sum takes the place of x: Inductor would first copy a residual that is an input of the graph
        x, residual = residual[0], [x]
    with graph.inserting_before(norm):
        arguments = {
            "x": x,
            "weight": weight,
            "residual": residual[0] if residual else absent(graph, value(x)),
            "global_scale": layer["global_scale"],
            "global_value": layer["global_value"],
            "eps": eps,
            "scale_layout": layer["scale_layout"],
            "round_steps": 1,
        }
        mode = value(x).fake_mode
        made = call(graph, mode, auto_functionalized, (ops.rms_norm_quantize.default,), arguments)
        data, scale, new = (call(graph, mode, operator.getitem, (made, i)) for i in range(3))
    for user in [*norm.users]:
        if residual and user.args[1] == 1:
            user.replace_all_uses_with(new)
            graph.erase_node(user)
    return data, scale


def quantize_activation(match: pm.Match) -> tuple[fx.Node, fx.Node]:
    graph, product, layer = match.graph, match.output_node(), layer_of(match)
    mode = value(product).fake_mode
    with graph.inserting_before(product):
        gate, up = (call(graph, mode, node.target, node.args) for node in halves(match))
        given = (gate, up, layer["global_scale"], absent(graph, value(gate)), layer["global_value"])
        more = ("silu", math.inf, 1.702, layer["scale_layout"], 1)
        made = call(graph, mode, ops.gated_quantize.default, (*given, *more))
        data, scale = (call(graph, mode, operator.getitem, (made, i)) for i in range(2))
    return data, scale


def multiply(product: fx.Node, data: fx.Node, scale: fx.Node) -> None:
    """Puts gemm in the place of quantize_gemm. Weights that no node of the graph can write are constant_b."""
    _, b, scale_b, _, alpha, bias, c, _, alpha_value, beta, layout, _, backend, flags, dtype = product.args
    if all(is_input(node) and all(user.target in PRODUCTS for user in node.users) for node in (b, scale_b)):
        flags |= _C.CONSTANT_B
    given = (data, b, scale, scale_b, alpha, bias, c, alpha_value, beta, layout, backend, flags, dtype)
    with product.graph.inserting_before(product):
        product.replace_all_uses_with(call(product.graph, value(product).fake_mode, ops.gemm.default, given))


def absent(graph: fx.Graph, like: Any) -> fx.Node:
    """The tensor that stands for an absent one (nvfp4/torch_ops.py)."""
    how = {"dtype": torch.uint8, "device": like.device}
    return call(graph, like.fake_mode, torch.ops.aten.empty.memory_format, ([0],), how)


def call(graph: fx.Graph, mode: Any, target: Any, args: tuple[Any, ...], kwargs: Any = None) -> fx.Node:
    """A new node, with the description of its result that later passes read. mode: that of the graph's fakes."""
    node = graph.call_function(target, args, kwargs or {})
    values = fx.map_arg((node.args, node.kwargs), value)
    with mode:
        node.meta["val"] = target(*values[0], **values[1])
    return node
