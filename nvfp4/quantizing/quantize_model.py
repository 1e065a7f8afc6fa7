"""nvfp4.quantize_model replaces the linear layers of a model by nvfp4.Linear, in place, and reports on them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C, _text
from nvfp4.layers.checks import (
    LARGEST,
    check_block_scale,
    check_damping,
    check_tensor,
    check_type,
    check_weights,
    prefix_errors,
)
from nvfp4.layers.dense import find_dense, not_linear
from nvfp4.layers.experts.mixture import Description
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.fused import FusedPart
from nvfp4.layers.hosts import layers_replaced
from nvfp4.layers.invariance import check_invariant, set_batch_invariant
from nvfp4.layers.linear import NOT_INVARIANT, Linear
from nvfp4.layers.packed import ACTIVATIONS
from nvfp4.layers.traversal import is_plain, keep_hooks, places_of, put
from nvfp4.quantizing.calibration import Inputs, Reached
from nvfp4.quantizing.experts import check_finite, experts_from, experts_of, naming_in, replace_experts
from nvfp4.quantizing.hessians import Hessians, collect
from nvfp4.quantizing.linears import fusible, quantize_layer
from nvfp4.quantizing.report import QuantizedLayer, QuantizeReport
from nvfp4.quantizing.selection import check_ignore, find_linears, find_mixtures, towers_of
from nvfp4.quantizing.weights import Results, Weights


def quantize_model(
    model: torch.nn.Module,
    ignore: Sequence[str] | str = ("lm_head",),
    activations: str | None = "nvfp4",
    calibrate: Callable[[torch.nn.Module], Any] | None = None,
    fuse: bool = False,
    block_scale: str = "amax6",
    batch_invariant: bool = False,
    weights: str = "round",
    damping: float | None = None,
    hessian_bytes: int | None = None,
) -> QuantizeReport:
    """Replaces the linear layers of a model by nvfp4.Linear, and its modules of experts by nvfp4.Experts, in place.

    Linear layers are each torch.nn.Linear and each Conv1D of transformers (GPT-2). Modules of experts are those of
    transformers.

    The weights are quantized layer by layer, each on its own device. With weights="round" each layer is replaced at
    once, so that no more than one of them exists twice. With "search" and "gptq" all are replaced at the end; the
    quantized weights of a model on a GPU wait in host memory.
    On a terminal and in a notebook a progress bar is drawn, while calibrating too.

    Args:
        model (torch.nn.Module): any module; its linear layers are found by type.
            A layer that the model has under several names is quantized once.
            Three kinds of layers are skipped: subclasses of torch.nn.Linear, layers with in_features that is no
            multiple of 16, and the layers of torch.nn.TransformerEncoderLayer, which reads their weights itself.
        ignore (sequence of str or str, optional): names of layers to leave as they are. Default: ("lm_head",).
            A pattern with the wildcards of fnmatch is compared with the name of the layer, the names of the modules
            above it, and the last part of each of these.
            A pattern that begins with "re:" is a regular expression, matched from the start of the layer's name.
            A pattern that matches no module is an error; "lm_head" may be missing.
            The string "mlp_only" leaves all but MLPs and experts, "experts_only" all but experts. Both go by the names
            of modules, as ModelOpt's presets do, and leave routers, heads and towers for images too.
            Without these strings towers for images and their projectors are quantized, although producers leave them
            dense. The report names them in `towers`.
        activations (str, optional): "nvfp4" (W4A4) or None (W4A16), see nvfp4.Linear. Default: "nvfp4".
        calibrate (callable, optional): a function that is given the model and runs it on sample inputs. Default: None.
            It is called before anything is changed.
            With weights="gptq" it may be called several times, and must then run the same samples each time.
            The largest absolute value that a layer, or a product of an expert, reads gives its input_global_scale.
            Without the function, and for a layer that it does not reach, the scale is dynamic.
            An expert that it does not reach takes the largest scale of the others; the report names it.
            With activations=None it needs weights="search" or "gptq".
        fuse (bool, optional): whether layers with the same input are joined. Default: False.
            q_proj, k_proj and v_proj (query, key and value) of one module become one layer, and so do gate_proj and
            up_proj (w1 and w3). The model then makes one product instead of three or two. Each part keeps its global
            scale.
            The module that is called first computes all parts. It keeps the others' outputs until they are called with
            the same tensor, so the model must not change that tensor in between.
            A model that calls them with different tensors stays right and becomes slower.
            Parts with different calibrated input scales are not joined, and neither are parts if only some have a bias.
        block_scale (str, optional): how nvfp4.quantize chooses the scales of inputs, and of weights with
            weights="round". Default: "amax6".
            "four_over_six" has a smaller squared error and is slower to quantize. Experts quantize inputs by "amax6".
        batch_invariant (bool, optional): makes the bits of a sequence independent of its batch in all NVFP4 layers of
            the model, see set_batch_invariant. Default: False.
            With activations="nvfp4" it needs `calibrate`, which must reach every layer.
        weights (str, optional): how codes and block scales of the weights are chosen. Default: "round".
            "round" takes the scales by block_scale.
            "search" takes the best of 13 scales for each block, by squared error. With `calibrate` the error of each
            input channel counts by the mean square of that channel's inputs.
            "gptq" needs `calibrate`. It takes the codes and scales that change the layer's output on the samples least,
            by GPTQ with the search inside. The same call on one device gives the same bytes; another device may not.
            With "search" and "gptq" layers that may be joined (see `fuse`) share a global scale, and with "gptq" also a
            Hessian if they read one tensor. A layer that `calibrate` does not reach is quantized by "search" without
            samples, and the report names it.
            Each expert is quantized by its own rows. Gate and up of an expert that `calibrate` does not reach take the
            mean squares of all tokens of the module.
        damping (float, optional): for "gptq": this share of the mean diagonal of a layer's Hessian, the sum of x x^T
            over its inputs x, is added to its diagonal. Default: None, which stands for min(1, max(.1, .4 K / inputs)).
            It is raised tenfold, up to three times, while the sum is not positive definite; the report says so.
        hessian_bytes (int, optional): for "gptq": the bytes of the Hessians, K * K * 4 each, that one call of
            `calibrate` collects on a device. There is at least one. Default: None, a quarter of the free memory.
            The result does not depend on it.

    Returns:
        A QuantizeReport, which also names what stays dense, such as experts that nvfp4 does not know, and layers that
        are NVFP4 already.

    Hooks of the replaced layers are kept. `save_pretrained` of a model of transformers then writes ModelOpt's format,
    or compressed-tensors if a layer has a dynamic input scale. nvfp4.transformers.load loads both.

    Raises:
        nvfp4.Error: an argument breaks a rule, a weight or a layer's input has a value that is NaN or infinite, or
            `calibrate` reaches no layer that "search" or "gptq" needs it for. The model is unchanged.

    With "search" and "gptq" an interrupted call leaves the model unchanged too, or has replaced all layers.

    Examples:
        >>> import nvfp4, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
        >>> report = nvfp4.quantize_model(model, calibrate=lambda m: m(torch.randn(4, 64)))
        >>> [layer.name for layer in report.layers], report.bytes_before, report.bytes_after
        (['0', '2'], 37408, 6712)
    """
    options = Options(activations, calibrate, fuse, block_scale, batch_invariant, weights, damping, hessian_bytes)
    return quantize(model, ignore, options, {})


@dataclass(frozen=True)
class Options:
    """The arguments of quantize_model of these names, checked."""

    activations: str | None = "nvfp4"
    calibrate: Callable[[torch.nn.Module], Any] | None = None
    fuse: bool = False
    block_scale: str = "amax6"
    batch_invariant: bool = False
    weights: str = "round"
    damping: float | None = None
    hessian_bytes: int | None = None

    def __post_init__(self) -> None:
        calibrated = self.calibrate is not None
        check_modes(self.activations, self.block_scale, self.batch_invariant, calibrated, self.weights)
        if calibrated and not callable(self.calibrate):
            raise _C.Error(f"calibrate: is of type {type(self.calibrate).__name__}; must be a function of the model")
        if self.weights == "gptq" and not calibrated:
            raise _C.Error(
                "calibrate: is None but weights is 'gptq'; must be a function that runs the model on samples"
            )
        if self.weights == "round" and self.activations is None and calibrated:
            raise _C.Error("calibrate: is given but activations is None; there are no input scales then")
        check_damping(self.damping, self.weights)
        if self.hessian_bytes is not None:
            if self.weights != "gptq":
                raise _C.Error(f"hessian_bytes: is given but weights is {self.weights!r}; must be None then")
            if isinstance(self.hessian_bytes, bool) or not isinstance(self.hessian_bytes, int):
                raise _C.Error(f"hessian_bytes: is of type {type(self.hessian_bytes).__name__}; must be an int or None")
            if self.hessian_bytes <= 0:
                raise _C.Error(f"hessian_bytes: is {self.hessian_bytes}; must be positive")

    def scale_input(self, name: str, read: Inputs) -> float | None:
        """The input_global_scale of a layer; None: it is dynamic, or there is none."""
        scale = read.input_scale(name, LARGEST[self.block_scale])  # which rejects an input that is not finite
        return None if self.activations is None else scale

    def scale_experts(self, found: Reached) -> tuple[Tensor, Tensor] | None:
        """The input scales of a module of experts; None: they are dynamic, or there are none."""
        scales = found.input_scales()  # which rejects an input that is not finite
        return None if self.activations is None else scales

    @property
    def weighs_samples(self) -> bool:
        """Whether weights depend on the samples."""
        return self.calibrate is not None and self.weights != "round"


def quantize(model: torch.nn.Module, ignore: Sequence[str] | str, options: Options, results: Results) -> QuantizeReport:
    """quantize_model, with a mapping that keeps each weight that "search" or "gptq" has finished.

    An interrupted run goes on where it stopped if the next one has the same model, arguments and samples, and a mapping
    with the same content.
    """
    linears, mixtures, skipped = find(model, ignore, options)
    reached = {name: Reached(name, model.get_submodule(name), about) for name, about in mixtures.items()}
    namings = {} if options.weights == "round" else {n: naming_in(model, n, about) for n, about in mixtures.items()}
    inputs = {name: Inputs() for name in linears}
    inputs |= {name: read for found in reached.values() for name, read in found.inputs.items()}
    stacked = [name for name, naming in namings.items() if naming.stacked]
    quantizer = Weights(model, linears, [*reached.values()], stacked, results)
    hessians = (
        Hessians(quantizer.unfinished(), quantizer.siblings, options.hessian_bytes)
        if options.weights == "gptq"
        else None
    )
    if options.calibrate is not None:
        squares = {"round": set[str](), "search": set(inputs), "gptq": quantizer.stand_ins()}[options.weights]
        collect(model, linears, options.calibrate, hessians, inputs, squares, reached.values())
    scales = {name: scale for name in linears if (scale := options.scale_input(name, inputs[name])) is not None}
    expert_scales = {name: options.scale_experts(found) for name, found in reached.items()}
    unreached = [name for name in linears if not inputs[name].rows] if options.weighs_samples else []
    if linears and len(unreached) == len(linears):
        raise _C.Error("calibrate: reaches no linear layer; must run the model on samples")
    if not linears and options.weighs_samples and not any(read.rows for read in inputs.values()):
        raise _C.Error("calibrate: reaches no expert; must run the model on samples")
    if options.batch_invariant:
        check_invariant(dict(model.named_modules()))  # layers that are NVFP4 already
        unscaled = [name for name in linears if name not in scales and options.activations is not None]
        if unscaled:
            raise _C.Error(f"{unscaled[0]}: is not reached by calibrate, {NOT_INVARIANT}")

    dense, other_bytes = find_dense(model, [*linears.values(), *(model.get_submodule(name) for name in mixtures)])
    report = QuantizeReport(skipped=skipped | not_linear(model, dense), dense=dense, other_bytes=other_bytes)
    report.weights, report.unreached_layers = options.weights, unreached
    groups = fusible(model, linears, scales) if options.fuse else {}

    def make(name: str, old: torch.nn.Module) -> tuple[Linear, QuantizedLayer]:
        given = (name, old, options.activations, scales.get(name), options.block_scale, groups.get(name, ()))
        return quantize_layer(*given) if options.weights == "round" else results[name].layer(*given)

    def make_experts(name: str) -> tuple[Experts, QuantizedLayer]:
        found = reached.pop(name)  # which holds the dense experts
        if options.weights == "round":
            given = (options.block_scale, options.activations, expert_scales[name])
            return experts_of(model, name, mixtures[name], *given)
        return experts_from(found, results, namings[name], options.activations, expert_scales[name])

    if hessians is not None and options.calibrate is not None:
        quantizer.gptq(options.calibrate, inputs, hessians, options.damping)
    elif options.weights == "search":
        quantizer.search(quantizer.unfinished(), inputs)
    if options.calibrate is not None:
        report.unreached = {name: missed for name, found in reached.items() if (missed := found.missed())}
    del quantizer, hessians  # which hold the dense layers
    if options.weights == "round":
        with _text.watched(len(linears) + len(mixtures)) as step, torch.no_grad():
            report.layers += replace_linears(model, linears, groups, make, step)
            for name in mixtures:
                step(name)
                report.layers.append(replace_experts(model, name, *make_experts(name)))
    else:
        with uninterrupted(), torch.no_grad():
            report.layers += replace_linears(model, linears, groups, make, _text.unwatched)
            report.layers += [replace_experts(model, name, *make_experts(name)) for name in mixtures]
    if options.batch_invariant:
        set_batch_invariant(model)
    report.towers = towers_of(layer.name for layer in report.layers)
    layers_replaced(model)
    return report


def find(
    model: torch.nn.Module, ignore: Sequence[str] | str, options: Options
) -> tuple[dict[str, torch.nn.Module], dict[str, Description], dict[str, str]]:
    """The linear layers and the modules of experts that become NVFP4, checked, and why others are skipped."""
    check_type("model", model, torch.nn.Module, "a torch.nn.Module")
    check_ignore(ignore)
    if type(model) is torch.nn.Linear:
        raise _C.Error("model: is a Linear; use nvfp4.Linear.from_linear")
    if is_plain(model):
        raise _C.Error(f"model: is a {type(model).__name__} itself; must be a module that has it as a child")
    linears, skipped = find_linears(model, ignore)
    mixtures = find_mixtures(model, ignore, skipped)
    if isinstance(ignore, str) and not linears and not mixtures:
        raise _C.Error(f"ignore: {ignore!r} leaves no layer of the model to quantize; must leave 1 or more")
    for name in mixtures:
        check_finite(name, model.get_submodule(name), options.weights)
    for name, linear in linears.items():
        with prefix_errors(name):
            check_weight(linear, options.weights)
    return linears, mixtures, skipped


def replace_linears(
    model: torch.nn.Module,
    linears: dict[str, torch.nn.Module],
    groups: Mapping[str, tuple[str, ...]],
    make: Callable[[str, torch.nn.Module], tuple[Linear, QuantizedLayer]],
    step: Callable[[str], None],
) -> list[QuantizedLayer]:
    """Puts an NVFP4 layer in place of each linear layer, one by one, and joins those of a group. Empties `linears`, so
    that a dense layer goes before the next one is made."""
    rows, places = [], places_of(model, linears)
    made: dict[str, Linear] = {}
    for name in [*linears]:
        step(name)
        layer, row = make(name, linears.pop(name))
        rows.append(row)
        put(places[name], layer)
        group = groups.get(name, ())
        if group:
            made[name] = layer
        if group and name == group[-1]:
            layers = [made.pop(part) for part in group]
            for part, own, fused in zip(group, layers, FusedPart.join(layers)):
                keep_hooks(own, fused)
                put(places[part], fused)
            del layers, own
        del layer
    return rows


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Lets Ctrl-C wait for the end, in the main thread; Python gives it to no other. A handler that Python did not set
    stays, since it could not be set again."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def check_weight(linear: torch.nn.Module, weights: str) -> None:
    weight: Any = linear.weight
    check_tensor("weight", weight, None)
    if weight.is_meta and weights != "round":
        raise _C.Error(f"weight: is on the meta device; must have values for weights={weights!r}")
    if not weight.is_meta and not bool(weight.isfinite().all()):
        raise _C.Error("weight: has a value that is NaN or infinite; must be finite")


def check_modes(
    activations: str | None, block_scale: str, batch_invariant: bool, calibrated: bool, weights: str = "round"
) -> None:
    if activations not in ACTIVATIONS:
        raise _C.Error(f"activations: is {activations!r}; must be 'nvfp4' or None")
    check_block_scale(block_scale)
    check_weights(weights)
    check_type("batch_invariant", batch_invariant, bool, "a bool")
    if batch_invariant and activations is not None and not calibrated:
        raise _C.Error(
            "batch_invariant: is True, but without calibrate the input scales of W4A4 are those of all rows together; "
            "must be False, or be given with calibrate or activations=None"
        )
