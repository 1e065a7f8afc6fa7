"""What quantize_model and dequantize_model did to a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike

from nvfp4 import _C, _text


@dataclass(frozen=True)
class QuantizedLayer:
    """Describes a layer that quantize_model has quantized, or that dequantize_model has made dense.

    Attributes:
        name (str): the name of the module in the model.
        shape (tuple of ints): (N, K) of its weight; for experts (E, H, I).
        error (float): |W - W'| / |W| of the weight W before and W' now, by Frobenius norms; 0 for a weight of zeros.
            With weights="gptq" it misleads: it is larger than that of "search", and the output error smaller.
        bytes_before (int): the bytes of weight and bias before.
        bytes_after (int): the same now. NVFP4 layers have scales too, alpha among them.
        input_global_scale (float or None): the scale that calibration found, or that the NVFP4 layer had; for experts
            the largest of gate and up.
            None: the scale is dynamic, or the activations are not quantized.
        fused (tuple of str): the names of the layers that became one module with this one, itself included; () if none.
        output_error (float or None): the relative error of the layer's output on the samples of `calibrate`, before the
            bias: sqrt(tr(D H D') / tr(W H W')), where D = W - W' and H is the sum of x x^T over the inputs x.
            With weights="search" H has its diagonal alone. None: there were no samples, or weights is "round".
            For experts the traces of both products are added over all experts that were reached.
        output_error_before (float or None): the same of a weight that is rounded by block_scale="amax6".
        rows (int or None): how many inputs the layer read. For experts it is the least number among those that were
            reached. None: it is not known.
        damping (float or None): the damping of GPTQ if the Hessian needed more than was asked for, else None. For
            experts it is the largest.
        seconds (float): how long quantizing took, without `calibrate`. Layers that are quantized together share it.
    """

    name: str
    shape: tuple[int, ...]
    error: float
    bytes_before: int
    bytes_after: int
    input_global_scale: float | None = None
    fused: tuple[str, ...] = ()
    output_error: float | None = None
    output_error_before: float | None = None
    rows: int | None = None
    damping: float | None = None
    seconds: float = field(default=0.0, compare=False)

    @property
    def damage(self) -> float:
        """The error by which layers are sorted: that of the output if it is known."""
        return self.error if self.output_error is None else self.output_error


@dataclass
class QuantizeReport:
    """Reports the work of quantize_model or dequantize_model. `print(report)` prints it as a table.

    Attributes:
        layers (list of QuantizedLayer): the layers that are NVFP4 now, or were, in the model's order, then modules of
            experts.
        skipped (dict of str): the names of the other linear layers, each with the reason.
            Large parameters that are in no linear layer are here too, if they have 3 dimensions or more, such as
            experts that nvfp4 does not know, or 2 and are no embedding.
        dense (dict of int): the bytes of each parameter that stays dense and has more than 1 MB, or more than 1 % of
            the model.
        other_bytes (int): the bytes of all parameters and buffers that are not in `layers`.
        unreached (dict of list of int): for each module of experts, the experts that no sample of `calibrate` reached.
            With weights="search" and "gptq" their gate and up are quantized by "search" with the mean squares of the
            module's tokens, and their down without samples.
        weights (str): the argument of quantize_model.
        unreached_layers (list of str): layers that no sample of `calibrate` reached. Their weights are quantized by
            "search" without samples. If the layers of experts are linear layers of their own, gate and up of such an
            expert take the mean squares of what the other experts read.
        towers (dict of int): the number of layers in each module for images, such as `model.visual` and
            `multi_modal_projector`, that are NVFP4 now. Producers leave these modules dense.
    """

    layers: list[QuantizedLayer] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    dense: dict[str, int] = field(default_factory=dict)
    other_bytes: int = 0
    unreached: dict[str, list[int]] = field(default_factory=dict)
    weights: str = "round"
    unreached_layers: list[str] = field(default_factory=list)
    towers: dict[str, int] = field(default_factory=dict)

    @property
    def bytes_before(self) -> int:
        """The bytes of the whole model before."""
        return sum(layer.bytes_before for layer in self.layers) + self.other_bytes

    @property
    def bytes_after(self) -> int:
        """The bytes of the whole model now."""
        return sum(layer.bytes_after for layer in self.layers) + self.other_bytes

    def plot(self, file: str | PathLike[str]) -> None:
        """Draws the output error of each layer, and that of rounding beside it, into a file.

        Args:
            file (str or path): its ending is the format, such as .png, .svg or .pdf.

        Raises:
            nvfp4.Error: no layer has an output error, or matplotlib is not installed (the extra `plot`).
        """
        draw([layer for layer in self.layers if layer.output_error is not None], self.weights, file)

    def __str__(self) -> str:
        searched = self.weights != "round"
        layers = sorted(self.layers, key=lambda layer: -layer.damage) if searched else self.layers
        rows = [(*described(layer), *(outputs(layer) if searched else ())) for layer in layers]
        more = ("",) * (3 if searched else 0)
        if self.other_bytes:
            rows.append(("all else", "", "", str(self.other_bytes), str(self.other_bytes), "", "", *more))
        rows.append(("total", "", "", str(self.bytes_before), str(self.bytes_after), "", "", *more))
        columns = ["layer", "N x K", "error", "bytes before", "bytes after", "input scale", "fused"]
        columns += ["output error", "rounded", "rows"] if searched else []
        text = [_text.plain(columns, rows, [True] + [False] * 5 + [True] + [False] * len(more))]
        if self.weights == "gptq":
            text.append("GPTQ changes outputs less and weights more than rounding does: judge by the output error.")
        text += [f"skipped: {name}: {reason}" for name, reason in self.skipped.items()]
        text += [f"not reached: {name}: experts {_text.shown(which)}" for name, which in self.unreached.items()]
        text += [f"not reached: {name}: quantized by 'search'" for name in self.unreached_layers]
        text += [f"damping: {row.name}: raised to {row.damping:g}" for row in layers if row.damping is not None]
        text += [f"dense: {name}: {count} bytes" for name, count in self.dense.items()]
        text += [
            f"for images: {name}: has {count} NVFP4 layers; producers leave it dense, as ignore=[{name!r}] does"
            for name, count in self.towers.items()
        ]
        return "\n".join(text)


def described(layer: QuantizedLayer) -> tuple[str, ...]:
    return (
        layer.name,
        "x".join(map(str, layer.shape)),
        f"{layer.error:.4f}",
        str(layer.bytes_before),
        str(layer.bytes_after),
        "-" if layer.input_global_scale is None else f"{layer.input_global_scale:.3g}",
        "+".join(name.rpartition(".")[2] for name in layer.fused),
    )


def outputs(layer: QuantizedLayer) -> tuple[str, ...]:
    """The columns that weights other than "round" add."""
    errors = (layer.output_error, layer.output_error_before)
    return (*("-" if e is None else f"{e:.4f}" for e in errors), "-" if layer.rows is None else str(layer.rows))


def draw(layers: Sequence[QuantizedLayer], weights: str, file: str | PathLike[str]) -> None:
    if not layers:
        raise _C.Error(
            "report: has no output errors; must be of quantize_model with calibrate and weights='search' or 'gptq'"
        )
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        message = f"report: plot needs matplotlib, which could not be imported ({error}); pip install 'matplotlib>=3.8'"
        raise _C.Error(message) from None
    places = range(len(layers))
    figure = Figure(figsize=(max(6.0, 0.12 * len(layers) + 3.0), 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(places, [layer.output_error_before for layer in layers], "s", label="round", color="#c2410c")
    axes.plot(places, [layer.output_error for layer in layers], "o", label=weights, color="#0b63c5")
    axes.set_xticks(places, [layer.name for layer in layers], rotation=90, fontsize=6)
    axes.set_ylabel("relative error of the output")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#e4e7eb")
    axes.legend()
    figure.savefig(file)
