"""nvfp4.quantize_model replaces the linear layers of a model by nvfp4.Linear, in place, and reports on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from nvfp4 import _C, _text
from nvfp4.layers.checks import LARGEST, check_block_scale, check_tensor, check_type, prefix_errors
from nvfp4.layers.dense import find_dense, not_linear
from nvfp4.layers.fused import FusedPart
from nvfp4.layers.hosts import layers_replaced
from nvfp4.layers.invariance import check_invariant, set_batch_invariant
from nvfp4.layers.linear import NOT_INVARIANT, Linear
from nvfp4.layers.packed import ACTIVATIONS
from nvfp4.layers.traversal import is_plain, keep_hooks, places_of, put
from nvfp4.quantizing.calibration import Reached, input_scales
from nvfp4.quantizing.experts import check_finite, quantize_experts
from nvfp4.quantizing.linears import fusible, quantize_layer
from nvfp4.quantizing.report import QuantizeReport
from nvfp4.quantizing.selection import check_ignore, find_linears, find_mixtures


def quantize_model(
    model: torch.nn.Module,
    ignore: Sequence[str] = ("lm_head",),
    activations: str | None = "nvfp4",
    calibrate: Callable[[torch.nn.Module], Any] | None = None,
    fuse: bool = False,
    block_scale: str = "amax6",
    batch_invariant: bool = False,
) -> QuantizeReport:
    """Replaces the linear layers of a model by nvfp4.Linear, and its modules of experts by nvfp4.Experts, in place.

    Linear layers are each torch.nn.Linear and each Conv1D of transformers (GPT-2). Modules of experts are those of
    transformers.

    The weights are quantized layer by layer, each on its own device, so that no more than one of them exists twice.
    On a terminal and in a notebook a progress bar is drawn, while calibrating too.

    Args:
        model (torch.nn.Module): any module; its linear layers are found by type.
            A layer that the model has under several names is quantized once.
            Three kinds of layers are skipped: subclasses of torch.nn.Linear, layers whose in_features is no multiple of
                16,
            and the layers of torch.nn.TransformerEncoderLayer, which reads their weights itself.
        ignore (sequence of str, optional): names of layers to leave as they are. Default: ("lm_head",).
            A pattern with the wildcards of fnmatch is compared with the name of the layer, the names of the modules
            above it, and the last part of each of these.
            A pattern that begins with "re:" is a regular expression, matched from the start of the layer's name.
            A pattern that matches no module is an error; "lm_head" may be missing.
        activations (str, optional): "nvfp4" (W4A4) or None (W4A16), see nvfp4.Linear. Default: "nvfp4".
        calibrate (callable, optional): a function that is given the model and runs it on sample inputs. Default: None.
            It is called before anything is changed.
            The largest absolute value that a layer reads gives its input_global_scale, and so does what each product
            of an expert reads.
            Without the function, and for a layer that it does not reach, the scale is dynamic.
            An expert that it does not reach takes the largest scale of the others; the report names it.
        fuse (bool, optional): whether layers with the same input are joined. Default: False.
            q_proj, k_proj and v_proj (query, key and value) of one module become one layer, and so do gate_proj and
            up_proj (w1 and w3). The model then makes one product instead of three or two. Each part keeps its global
            scale.
            The module that is called first computes all parts. It keeps the others' outputs until they are called with
            the same tensor, so the model must not change that tensor in between.
            A model that calls them with different tensors stays right and becomes slower.
            Parts with different calibrated input scales are not joined, nor are parts of which only some have a bias.
        block_scale (str, optional): how nvfp4.quantize chooses the scales of weights and inputs. Default: "amax6".
            "four_over_six" is more exact and slower to quantize.
        batch_invariant (bool, optional): makes the bits of a sequence independent of its batch in all NVFP4 layers of
            the model, see set_batch_invariant. Default: False.
            With activations="nvfp4" it needs `calibrate`, which must reach every layer.

    Returns:
        A QuantizeReport, which also names what stays dense, such as experts that nvfp4 does not know, and layers that
        are NVFP4 already.

    Hooks of the replaced layers are kept. `save_pretrained` of a model of transformers then writes ModelOpt's format,
    or compressed-tensors if a layer has a dynamic input scale. nvfp4.transformers.load loads both.

    Raises:
        nvfp4.Error: an argument breaks a rule, or a weight or a layer's input has a value that is NaN or infinite. The
            model is unchanged.

    Example:
        >>> import nvfp4, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
        >>> report = nvfp4.quantize_model(model, calibrate=lambda m: m(torch.randn(4, 64)))
        >>> [layer.name for layer in report.layers], report.bytes_before, report.bytes_after
        (['0', '2'], 37408, 6712)
    """
    check_type("model", model, torch.nn.Module, "a torch.nn.Module")
    check_modes(activations, block_scale, batch_invariant, calibrate is not None)
    if activations is None and calibrate is not None:
        raise _C.Error("calibrate: is given but activations is None; there are no input scales then")
    if calibrate is not None and not callable(calibrate):
        raise _C.Error(f"calibrate: is of type {type(calibrate).__name__}; must be a function of the model")
    check_ignore(ignore)
    if type(model) is torch.nn.Linear:
        raise _C.Error("model: is a Linear; use nvfp4.Linear.from_linear")
    if is_plain(model):
        raise _C.Error(f"model: is a {type(model).__name__} itself; must be a module that has it as a child")
    linears, skipped = find_linears(model, ignore)
    mixtures = find_mixtures(model, ignore, skipped)
    for name in mixtures:
        check_finite(name, model.get_submodule(name))
    for name, linear in linears.items():
        with prefix_errors(name):
            check_tensor("weight", linear.weight, None)
            if not linear.weight.is_meta and not bool(linear.weight.isfinite().all()):
                raise _C.Error("weight: has a value that is NaN or infinite; must be finite")
    reached = {name: Reached(model.get_submodule(name), about) for name, about in mixtures.items()}
    scales = {} if calibrate is None else input_scales(model, linears, calibrate, LARGEST[block_scale], reached)
    if batch_invariant:
        check_invariant(dict(model.named_modules()))  # layers that are NVFP4 already
        unscaled = [name for name in linears if name not in scales and activations is not None]
        if unscaled:
            raise _C.Error(f"{unscaled[0]}: is not reached by calibrate, {NOT_INVARIANT}")
    expert_scales = {name: found.input_scales(name) for name, found in reached.items() if calibrate is not None}
    dense, other_bytes = find_dense(model, [*linears.values(), *(model.get_submodule(name) for name in mixtures)])
    skipped |= not_linear(model, dense)
    report, names = QuantizeReport(skipped=skipped, dense=dense, other_bytes=other_bytes), list(linears)
    groups = fusible(model, linears, scales) if fuse else {}
    places = places_of(model, linears)
    made: dict[str, Linear] = {}
    with _text.watched(len(names) + len(mixtures)) as step, torch.no_grad():
        for name in names:
            step(name)
            group = groups.get(name, ())
            layer, row = quantize_layer(name, linears.pop(name), activations, scales.get(name), block_scale, group)
            report.layers.append(row)
            put(places[name], layer)
            if group:
                made[name] = layer
            if group and name == group[-1]:
                layers = [made.pop(part) for part in group]
                for part, own, fused in zip(group, layers, FusedPart.join(layers)):
                    keep_hooks(own, fused)
                    put(places[part], fused)
                del layers, own
            del layer
        for name, about in mixtures.items():
            step(name)
            given = expert_scales.get(name)
            report.layers.append(quantize_experts(model, name, about, block_scale, activations, given))
    if batch_invariant:
        set_batch_invariant(model)
    if calibrate is not None:
        report.unreached = {name: missed for name, found in reached.items() if (missed := found.missed())}
    layers_replaced(model)
    return report


def check_modes(activations: str | None, block_scale: str, batch_invariant: bool, calibrated: bool) -> None:
    if activations not in ACTIVATIONS:
        raise _C.Error(f"activations: is {activations!r}; must be 'nvfp4' or None")
    check_block_scale(block_scale)
    check_type("batch_invariant", batch_invariant, bool, "a bool")
    if batch_invariant and activations is not None and not calibrated:
        raise _C.Error(
            "batch_invariant: is True, but without calibrate the input scales of W4A4 are those of all rows together; "
            "must be False, or be given with calibrate or activations=None"
        )
