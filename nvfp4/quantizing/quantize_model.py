"""nvfp4.quantize_model replaces the linear layers of a model by nvfp4.Linear, in place, and reports on them."""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C, _api, _text
from nvfp4.checkpoints.experts.container import Naming, naming_of
from nvfp4.layers.experts.mixture import Description, Reached, check_finite, describe, is_mixture, quantized
from nvfp4.layers.hosts import is_pretrained, layers_replaced, services
from nvfp4.layers.invariance import check_invariant, set_batch_invariant
from nvfp4.layers.linear import NOT_INVARIANT, Linear
from nvfp4.layers.packed import (
    ACTIVATIONS,
    BLOCK,
    LARGEST,
    check_block_scale,
    check_tensor,
    check_type,
    invertible,
    prefix_errors,
)
from nvfp4.layers.traversal import (
    FUSED,
    FusedPart,
    as_linear,
    find_dense,
    is_plain,
    keep_hooks,
    not_linear,
    places_of,
    put,
)
from nvfp4.quantizing.report import QuantizedLayer, QuantizeReport

ERROR_ROWS = 1024  # rows of a weight that are fp32 at a time; a multiple of the scale tile's 128


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


def quantize_layer(
    name: str,
    old: torch.nn.Module,
    activations: str | None,
    input_scale: float | None,
    block_scale: str,
    fused: tuple[str, ...] = (),
) -> tuple[Linear, QuantizedLayer]:
    """Makes an NVFP4 layer of a linear layer, whose hooks it takes, and describes it."""
    linear = as_linear(old)
    assert linear is not None
    layer = Linear.from_linear(linear, activations, input_scale, block_scale).train(linear.training)
    keep_hooks(old, layer)
    return layer, QuantizedLayer(
        name,
        (layer.out_features, layer.in_features),
        weight_error(linear.weight, layer),
        linear.weight.nbytes + (0 if linear.bias is None else linear.bias.nbytes),
        sum(t.nbytes for t in layer.buffers()),
        input_scale,
        fused,
    )


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


def find_mixtures(model: torch.nn.Module, ignore: Sequence[str], skipped: dict[str, str]) -> dict[str, Description]:
    """The modules of experts to quantize. Adds why others are skipped."""
    found = {}
    for name, module in model.named_modules():
        if not is_mixture(module):
            continue
        about = describe(module)
        pattern = next((pattern for pattern in ignore if matches(name, pattern)), None)
        if not name:
            raise _C.Error(f"model: is a {type(module).__name__} itself; must be a module that has it as a child")
        if pattern is not None:
            skipped[name] = f"ignore has {pattern!r}"
        elif isinstance(about, str):
            skipped[name] = about
        else:
            found[name] = about
    return found


def quantize_experts(
    model: torch.nn.Module,
    name: str,
    about: Description,
    block_scale: str,
    activations: str | None,
    input_scales: tuple[Tensor, Tensor] | None = None,
) -> QuantizedLayer:
    """Puts an nvfp4.Experts in place of a module of experts."""
    old = model.get_submodule(name)
    before = sum(t.nbytes for t in old.parameters())
    naming = naming_in(model, name, about)
    new, error = quantized(old, about, naming.stacked, block_scale, activations, input_scales)
    new.naming = naming
    keep_hooks(old, new)
    put(places_of(model, {name: old})[name], new)
    shape = (about.experts, about.hidden, about.intermediate)
    largest = None if input_scales is None else float(input_scales[0].amax())
    return QuantizedLayer(name, shape, error, before, new.nbytes, largest)


def naming_in(model: torch.nn.Module, name: str, about: Description) -> Naming:
    """How a checkpoint of this model names and stores the experts of a module."""
    if not is_pretrained(model):
        return naming_of(about)
    try:
        expert_names = services("transformers").expert_names
    except ImportError:  # a version that nvfp4.transformers cannot work with
        return naming_of(about)
    return naming_of(about, expert_names(model, name, about.gated))


def check_ignore(ignore: Sequence[str]) -> None:
    if isinstance(ignore, str):
        raise _C.Error(f"ignore: is the string {ignore!r}; must be a sequence of patterns")
    check_type("ignore", ignore, Collection, "a sequence of patterns")
    for pattern in ignore:
        if not isinstance(pattern, str):
            raise _C.Error(f"ignore: has {pattern!r}; must have strings alone")
        if pattern.startswith("re:"):
            try:
                re.compile(pattern.removeprefix("re:"))
            except re.error as error:
                raise _C.Error(f"ignore: {pattern!r} is no regular expression: {error}") from None


def find_linears(model: torch.nn.Module, ignore: Sequence[str]) -> tuple[dict[str, torch.nn.Module], dict[str, str]]:
    """The linear layers to quantize by name, and why others are skipped."""
    linears: dict[str, torch.nn.Module] = {}
    skipped: dict[str, str] = {}
    unused = {pattern for pattern in ignore if pattern != "lm_head"}
    own: dict[str, str] = {}  # modules that read their layers' weights, with their type
    modules = dict(model.named_modules(remove_duplicate=False))
    found: set[int] = set()
    ignored = {id(m) for name, m in modules.items() if any(matches(name, pattern) for pattern in ignore)}
    for name, module in modules.items():
        unused -= {pattern for pattern in unused if matches(name, pattern)}
        if isinstance(module, torch.nn.TransformerEncoderLayer):
            own[f"{name}." if name else ""] = type(module).__name__
        linear = as_linear(module)
        if linear is None and not isinstance(module, FusedPart):
            continue
        above = name.rpartition(".")[0]
        if isinstance(modules.get(above), FusedPart):  # the joined layer, which its parts stand for
            continue
        reader = next((kind for prefix, kind in own.items() if name.startswith(prefix)), None)
        if id(module) in ignored:
            pattern = next((pattern for pattern in ignore if matches(name, pattern)), None)
            skipped[name] = "is the same layer as an ignored one" if pattern is None else f"ignore has {pattern!r}"
        elif linear is None or isinstance(linear, Linear):
            skipped[name] = "is NVFP4 already"
        elif not is_plain(module):
            skipped[name] = f"is a {type(module).__name__}, which may have a forward of its own"
        elif reader is not None:
            skipped[name] = f"{reader} reads its weight itself"
        elif linear.in_features == 0 or linear.in_features % BLOCK:
            skipped[name] = f"in_features is {linear.in_features}, no positive multiple of {BLOCK}"
        elif id(module) not in found:
            linears[name] = module
            found.add(id(module))
    if unused:
        raise _C.Error(f"ignore: {sorted(unused)[0]!r} matches no module of the model")
    return linears, skipped


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern of quantize_model's `ignore` matches a module of this name."""
    if not name:
        return False
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), name) is not None
    parts = name.split(".")
    names = [".".join(parts[: i + 1]) for i in range(len(parts))] + parts
    return any(fnmatch.fnmatchcase(candidate, pattern) for candidate in names)


def input_scales(
    model: torch.nn.Module,
    linears: dict[str, torch.nn.Module],
    calibrate: Callable[[torch.nn.Module], Any],
    largest_value: float,
    reached: Mapping[str, Reached],
) -> dict[str, float]:
    """amax(|x|) / largest_value over all inputs x of each layer while `calibrate` runs, as each format keeps it;
    nothing for a layer that reads none or zeros alone. Notes in `reached` the experts that are called."""
    amax: dict[str, Tensor] = {}

    def hook(name: str) -> Callable[..., None]:
        def record(module: torch.nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            x = arguments[0] if arguments else next(iter(keywords.values()))  # forward has one argument
            if x.numel():
                largest = torch.stack(x.detach().aminmax()).abs().amax().float()
                amax[name] = largest if name not in amax else torch.maximum(amax[name], largest)

        return record

    calls = itertools.count(1)
    hooks = [layer.register_forward_pre_hook(hook(name), with_kwargs=True) for name, layer in linears.items()]
    hooks += [found.module.register_forward_pre_hook(found.record, with_kwargs=True) for found in reached.values()]
    try:
        with _text.watched(None) as step, torch.no_grad():
            hooks.append(model.register_forward_pre_hook(lambda *given: step(f"calibrate: call {next(calls)}")))
            calibrate(model)
    finally:
        for handle in hooks:
            handle.remove()
    scales = {}
    for name, largest in amax.items():
        scale = float(invertible(largest / largest_value))
        if not scale < float("inf"):
            raise _C.Error(f"{name}.input: amax is {float(largest):g} while calibrating; must be finite")
        if scale > 0:
            scales[name] = scale
    return scales


def weight_error(weight: Tensor, layer: Linear) -> float:
    """|weight - the layer's| / |weight|, by slices of rows."""
    if weight.is_meta:
        return 0.0
    lost = total = 0.0
    for row in range(0, len(weight), ERROR_ROWS):
        rows = slice(row, row + ERROR_ROWS)
        w = weight[rows].float()
        total += float(w.square().sum(dtype=torch.float64))
        data, scale = layer.weight[rows], layer.weight_scale[rows]
        w = w - _api.dequantize(data, scale, global_scale=layer.weight_global_scale)
        lost += float(w.square().sum(dtype=torch.float64))
    return (lost / total) ** 0.5 if total else 0.0


def fusible(
    model: torch.nn.Module, linears: dict[str, torch.nn.Module], scales: dict[str, float]
) -> dict[str, tuple[str, ...]]:
    """Maps each layer that can be joined with its siblings to the names of all of them, in the model's order."""
    groups: dict[str, tuple[str, ...]] = {}
    for parent, _ in model.named_modules():
        for siblings in FUSED:
            names = [f"{parent}.{sibling}" if parent else sibling for sibling in siblings]
            if not all(name in linears for name in names):
                continue
            layers = [layer for name in names if (layer := as_linear(linears[name])) is not None]
            if len({layer.in_features for layer in layers}) != 1 or len({scales.get(name) for name in names}) != 1:
                continue
            if len({None if layer.bias is None else layer.bias.dtype for layer in layers}) != 1:
                continue
            if len({layer.weight.device for layer in layers}) == 1:
                ordered = tuple(name for name in linears if name in names)
                groups |= dict.fromkeys(names, ordered)
    return groups
