"""nvfp4.transformers.fuse_quantizers: norms and activations of a model that quantize what the next layer reads.

What reads a norm's result is found in the source of the classes, as in Llama's:

    a decoder layer    y = self.input_layernorm(x) and in the next statement y, ... = self.self_attn(y, ...)
    the module there   reads y.shape, and calls its layers with y alone: self.q_proj(y), self.k_proj(y), self.v_proj(y)
    an MLP             returns self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))

That a norm has the roundings of rms_norm_quantize is found by its results.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from nvfp4 import _C
from nvfp4.layers.checks import check_type
from nvfp4.layers.fused import FusedPart
from nvfp4.layers.linear import Linear
from nvfp4.layers.quantized_input import QuantizingMLP, QuantizingNorm, rms_norm
from nvfp4.layers.readers import parsed, path_of, sources
from nvfp4.layers.traversal import HOOKS

NORMS = ("input_layernorm", "post_attention_layernorm")


class NotFused(Exception):
    """Why a norm or an MLP stays as it is."""


def fuse_quantizers(model: torch.nn.Module) -> list[str]:
    """Lets the norms and activations of a model quantize the inputs of its W4A4 layers, in place.

    A norm that feeds q_proj, k_proj and v_proj, or gate_proj and up_proj, then computes one quantized input in one pass
    over memory (nvfp4.rms_norm_quantize). These layers are joined, as by quantize_model(fuse=True). The activation of
    an MLP quantizes the input of down_proj (nvfp4.gated_quantize).

    Results have the roundings of the steps that are replaced (`round_steps`): a norm's bits can only differ where torch
    adds the squares in another order, an activation's where torch's silu differs in its last bits of fp32. A step that
    needs a gradient, runs under autocast or on other dtypes is computed as before.

    Args:
        model (torch.nn.Module): a model of transformers with NVFP4 layers, by quantize_model or from_pretrained.
            The decoder layers, attention and MLPs that are recognised have the form of Llama's classes, as Mistral's,
            Qwen2's and Qwen3's do. The layers have static input scales, equal for those that read one norm.

    Returns:
        The names of the norms and MLPs that quantize. Anything else is unchanged, and one warning names the first norm
        or MLP that is, with the reason.

    Afterwards the model takes no adapters, as with quantize_model(fuse=True). save_pretrained stores the layers one by
    one.

    Raises:
        nvfp4.Error: model is no torch.nn.Module.

    Examples:
        >>> import nvfp4.transformers
        >>> model = nvfp4.transformers.load("Llama-NVFP4", dtype="bfloat16")  # doctest: +SKIP
        >>> names = nvfp4.transformers.fuse_quantizers(model)  # doctest: +SKIP
    """
    check_type("model", model, torch.nn.Module, "a torch.nn.Module")
    fused: list[str] = []
    unchanged: dict[str, str] = {}
    for name, layer in [*model.named_modules()]:
        for norm in NORMS if all(hasattr(layer, norm) for norm in NORMS) else ():
            place = f"{name}.{norm}" if name else norm
            try:
                fuse_norm(layer, norm)
                fused.append(place)
            except NotFused as error:
                unchanged[place] = str(error)
        mlp = getattr(layer, "mlp", None)
        if isinstance(mlp, torch.nn.Module) and hasattr(layer, NORMS[0]):
            place = f"{name}.mlp" if name else "mlp"
            try:
                fuse_mlp(layer)
                fused.append(place)
            except NotFused as error:
                unchanged[place] = str(error)
    if not fused and not unchanged:
        unchanged["model"] = f"has no module with {' and '.join(NORMS)}"
    if unchanged:
        place, why = next(iter(unchanged.items()))
        warnings.warn(
            f"fuse_quantizers: leaves {len(unchanged)} norms and MLPs as they are. The first is {place}: {why}",
            stacklevel=2,
        )
    return fused


def fuse_norm(layer: Any, name: str) -> None:
    norm = getattr(layer, name)
    eps = rounded_norm(norm)
    reader = getattr(layer, reader_of(function_of(layer), name), None)
    if isinstance(reader, QuantizingMLP):
        names = ["gate_proj", "up_proj"]
    elif isinstance(reader, torch.nn.Module):
        names = layers_called(function_of(reader))
    else:
        raise NotFused(f"{type(layer).__name__}.forward does not give its result to a module")
    layers = readers_of(reader, names)
    if layers[0].in_features != norm.weight.numel() or layers[0].weight.device != norm.weight.device:
        raise NotFused("its weight has another length than the layers that read it, or is on another device")
    target = join(reader, names, layers)
    setattr(layer, name, QuantizingNorm(norm.weight, eps, target).train(norm.training))


def fuse_mlp(layer: Any) -> None:
    mlp = layer.mlp
    if isinstance(mlp, QuantizingMLP):
        raise NotFused("quantizes already")
    check_form(function_of(mlp))
    if not isinstance(mlp.act_fn, torch.nn.Module) or not computes_silu(mlp.act_fn):
        raise NotFused("its act_fn is not silu")
    check_layer("down_proj", mlp.down_proj)
    layer.mlp = QuantizingMLP(mlp)


# ---- what modules compute ----


def rounded_norm(norm: Any) -> float:
    """The eps of an RMSNorm, whose steps are those of `rms_norm`: on integers, whose squares have an exact mean, it has
    the same bits."""
    if isinstance(norm, QuantizingNorm):
        raise NotFused("quantizes already")
    weight = getattr(norm, "weight", None)
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if not isinstance(weight, torch.Tensor) or not isinstance(eps, float) or [*norm.state_dict()] != ["weight"]:
        raise NotFused(f"{type(norm).__name__} has other attributes than an RMSNorm's weight and eps")
    if weight.is_meta or weight.ndim != 1:
        raise NotFused("its weight is on the device meta, or has several dimensions")
    check_plain(norm)
    x = (torch.arange(2 * weight.numel(), device=weight.device) * 37 % 15 - 7).view(2, -1).to(weight.dtype)
    with torch.no_grad():
        found = norm(x)
        if not isinstance(found, torch.Tensor) or not torch.equal(found, rms_norm(x, weight, eps)):
            raise NotFused(f"{type(norm).__name__} rounds at other places than an RMSNorm of Llama's form")
    return eps


def computes_silu(function: torch.nn.Module) -> bool:
    x = torch.arange(-256, 256) / 16
    return torch.equal(function(x), torch.nn.functional.silu(x))


def check_plain(module: torch.nn.Module) -> None:
    """A module runs the forward of its class, and nothing beside it."""
    if "forward" in vars(module):
        raise NotFused(f"{type(module).__name__} has a forward of its own, as accelerate and kernels set it")
    if any(getattr(module, name) for name in HOOKS):
        raise NotFused(f"{type(module).__name__} has hooks")


def check_layer(name: str, layer: object) -> Linear:
    if type(layer) is not Linear:
        raise NotFused(f"{name} is a {type(layer).__name__}, no nvfp4.Linear")
    check_plain(layer)
    if layer.activations is None:
        raise NotFused(f"{name} takes 16-bit inputs (W4A16)")
    if layer.input_global_scale is None:
        raise NotFused(f"{name} has a dynamic input scale, which is computed from the input")
    if not layer.takes_quantized():
        raise NotFused(f"{name} has a pre_quant_scale or block_scale='four_over_six'")
    return layer


def readers_of(module: Any, names: Sequence[str]) -> list[Linear]:
    """A module's layers of these names, or the one that they are joined in already."""
    layers = [getattr(module, name, None) for name in names]
    parts = [layer for layer in layers if isinstance(layer, FusedPart)]
    if not parts:
        return [check_layer(name, layer) for name, layer in zip(names, layers)]
    whole = parts[0].joined()
    if not len(names) == len(parts) == len(parts[0].sizes) or any(part.joined() is not whole for part in parts):
        raise NotFused(f"{', '.join(names)} are joined with other layers")
    return [check_layer(names[0], whole)]


def join(module: Any, names: Sequence[str], layers: Sequence[Linear]) -> Linear:
    """The layer that computes all of them."""
    if len(layers) == 1:
        return layers[0]
    try:
        parts = FusedPart.join(layers)
    except _C.Error as error:
        raise NotFused(f"{', '.join(names)} cannot be joined: {error}") from None
    for name, part in zip(names, parts):
        setattr(module, name, part)
    return parts[0].joined()


# ---- what their sources say ----


def function_of(module: Any) -> ast.FunctionDef:
    check_plain(module)
    for kind in type(module).__mro__:
        if "forward" in vars(kind):
            text = sources(kind).get("forward")
            if text is None:
                break
            return parsed(text)
    raise NotFused(f"the source of {type(module).__name__}.forward is not there")


def uses(function: ast.FunctionDef, name: str) -> Iterator[tuple[ast.Name, ast.AST]]:
    """The places that read or write a variable, each with the expression around it."""
    for node in ast.walk(function):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Name) and child.id == name:
                yield child, node


def reader_of(function: ast.FunctionDef, norm: str) -> str:
    """The module that alone reads the result of self.<norm>: the statement after the norm's calls it with the result,
    and overwrites the variable."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Attribute) and node.attr == norm]
    for statement, following in zip(function.body, function.body[1:]):
        if not isinstance(statement, ast.Assign) or not isinstance(following, ast.Assign) or len(calls) != 1:
            continue
        target, value = statement.targets[0], statement.value
        if not isinstance(value, ast.Call) or path_of(value.func) != ("self", norm) or not isinstance(target, ast.Name):
            continue
        call, written = following.value, [node for t in following.targets for node in ast.walk(t)]
        path = path_of(call.func) if isinstance(call, ast.Call) else None
        read = [node for node in ast.walk(following.value) if isinstance(node, ast.Name) and node.id == target.id]
        if not isinstance(call, ast.Call) or path is None or path[0] != "self" or len(path) != 2 or len(read) != 1:
            break
        first = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "hidden_states")]
        overwritten = any(isinstance(node, ast.Name) and node.id == target.id for node in written)
        if read[0] in first and overwritten:
            return path[1]
    raise NotFused("the source of the decoder layer's forward does not say that one module alone reads the result")


def layers_called(function: ast.FunctionDef) -> list[str]:
    """The layers of self that read a forward's first argument, which nothing else reads but its shape."""
    argument = function.args.args[1].arg
    calls = {id(n.args[0]): n for n in ast.walk(function) if isinstance(n, ast.Call) and len(n.args) == 1}
    names = []
    for node, around in uses(function, argument):
        if isinstance(around, ast.Attribute) and around.attr == "shape":
            continue
        call = calls.get(id(node))
        path = path_of(call.func) if call is not None and not call.keywords else None
        if path is None or path[0] != "self" or len(path) != 2 or not isinstance(node.ctx, ast.Load):
            raise NotFused(f"the source uses {argument} for more than its layers: {ast.unparse(around)}")
        names.append(path[1])
    if not names:
        raise NotFused(f"no layer reads {argument}")
    return names


def check_form(function: ast.FunctionDef) -> None:
    """That an MLP's forward is the product of the three layers, and nothing else."""
    body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    x = function.args.args[1].arg
    form = f"self.down_proj(self.act_fn(self.gate_proj({x})) * self.up_proj({x}))"
    value = getattr(body[0], "value", None)
    returned = body[-1].value if isinstance(body[-1], ast.Return) else None
    if len(body) == 2 and isinstance(body[0], ast.Assign) and isinstance(returned, ast.Name):
        same = isinstance(body[0].targets[0], ast.Name) and body[0].targets[0].id == returned.id
    else:
        same = len(body) == 1 and value is returned
    if not same or value is None or ast.unparse(value) != form:
        raise NotFused(f"its forward is not {form}")
