"""What quantize_model and dequantize_model did to a model."""

from __future__ import annotations

from dataclasses import dataclass, field

from nvfp4 import _text


@dataclass(frozen=True)
class QuantizedLayer:
    """Describes a layer that quantize_model has quantized, or that dequantize_model has made dense.

    Attributes:
        name (str): the name of the module in the model.
        shape (tuple of ints): (N, K) of its weight. Of experts (E, H, I).
        error (float): |W - W'| / |W| of the weight W before and W' now, by Frobenius norms; 0 for a weight of zeros.
        bytes_before (int): the bytes of weight and bias before.
        bytes_after (int): the same now. NVFP4 layers have scales too, alpha among them.
        input_global_scale (float or None): the scale that calibration found, or that the NVFP4 layer had. Of experts
            the largest of gate and up.
            None: the scale is dynamic, or the activations are not quantized.
        fused (tuple of str): the names of the layers that became one module with this one, itself included; () if none.
    """

    name: str
    shape: tuple[int, ...]
    error: float
    bytes_before: int
    bytes_after: int
    input_global_scale: float | None = None
    fused: tuple[str, ...] = ()


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
        unreached (dict of list of int): of each module of experts the experts that no sample reached in `calibrate`.
    """

    layers: list[QuantizedLayer] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    dense: dict[str, int] = field(default_factory=dict)
    other_bytes: int = 0
    unreached: dict[str, list[int]] = field(default_factory=dict)

    @property
    def bytes_before(self) -> int:
        """The bytes of the whole model before."""
        return sum(layer.bytes_before for layer in self.layers) + self.other_bytes

    @property
    def bytes_after(self) -> int:
        """The bytes of the whole model now."""
        return sum(layer.bytes_after for layer in self.layers) + self.other_bytes

    def __str__(self) -> str:
        rows = [
            (
                layer.name,
                "x".join(map(str, layer.shape)),
                f"{layer.error:.4f}",
                str(layer.bytes_before),
                str(layer.bytes_after),
                "-" if layer.input_global_scale is None else f"{layer.input_global_scale:.3g}",
                "+".join(name.rpartition(".")[2] for name in layer.fused),
            )
            for layer in self.layers
        ]
        if self.other_bytes:
            rows.append(("all else", "", "", str(self.other_bytes), str(self.other_bytes), "", ""))
        rows.append(("total", "", "", str(self.bytes_before), str(self.bytes_after), "", ""))
        columns = ("layer", "N x K", "error", "bytes before", "bytes after", "input scale", "fused")
        text = _text.plain(columns, rows, [True] + [False] * 5 + [True])
        dense = [f"dense: {name}: {count} bytes" for name, count in self.dense.items()]
        missed = [f"not reached: {name}: experts {_text.shown(which)}" for name, which in self.unreached.items()]
        skipped = [f"skipped: {name}: {reason}" for name, reason in self.skipped.items()]
        return "\n".join([text, *skipped, *missed, *dense])
