"""The order of the nibbles in a checkpoint's layers, by what its other tensors say.

Values that are exchanged in pairs along K keep every statistic of a single layer. What shows them is another tensor
with the same channels that is not packed along them: the rows of the layer before (up_proj for down_proj), the norm
before, the embedding. Let c be the log norms of the layer's columns and r those of the other
tensor. For each pair of columns, the sums c0 + c1 and r0 + r1 do not change if the two are exchanged; the differences
c0 - c1 change their sign. So the rank correlation of the sums tells whether c and r rise together or against each
other, and that of the differences must have the same sign. The opposite sign, both at 6 standard deviations or more,
is reported. Without such a tensor, or with a weaker correlation, nothing is said.
"""

from __future__ import annotations

import re

from torch import Tensor

from nvfp4 import _api
from nvfp4.checkpoints.common import Checkpoint
from nvfp4.packed import BLOCK, PackedLinear, aligned

ROWS, BLOCKS = 1024, 64  # a weight's rows or blocks of columns that are decoded, at most
SIGMAS = 6.0
LOOKED_AT = 16  # layers, where the order decides how a whole file is read


def nibble_order(
    name: str, packed: PackedLinear, checkpoint: Checkpoint, norms: dict[str, Tensor] | None = None
) -> str | None:
    """ "in order", "reversed", or None if nothing tells. `norms` keeps the references of other layers."""
    columns = column_norms(packed)
    others = references(name, packed.in_features, checkpoint, {} if norms is None else norms)
    verdicts = {order(columns, other) for other in others} - {None}
    return verdicts.pop() if len(verdicts) == 1 else None


def references(name: str, k: int, checkpoint: Checkpoint, norms: dict[str, Tensor]) -> list[Tensor]:
    """Log norms of a layer's K input channels, from tensors that are not packed along them: layers of the same block
    that have them as rows, its norms, and embeddings."""
    names = []
    for other, packed in checkpoint.layers.items():
        if other != name and packed.out_features == k and block_of(other) == block_of(name):
            names.append(other)
            if other not in norms:
                norms[other] = row_norms(packed)
    for other, t in checkpoint.tensors.items():
        if not t.is_floating_point() or t.element_size() == 1 or t.ndim not in (1, 2) or t.shape[-1] != k:
            continue
        is_norm = t.ndim == 1 and other.endswith("weight") and block_of(other) == block_of(name)
        if is_norm or (t.ndim == 2 and "embed" in other.lower()):
            names.append(other)
            if other not in norms:
                norms[other] = log_norms(t.reshape(-1, k)[:: max(1, t.numel() // k // ROWS)])
    return [norms[other] for other in names]


def block_of(name: str) -> str:
    """The name up to the last number: model.layers.3 of model.layers.3.mlp.up_proj."""
    match = re.match(r"(.*\.)?\d+(?=\.)", name)
    return match[0] if match else ""


def order(columns: Tensor, other: Tensor) -> str | None:
    """The verdict of one reference."""
    (c0, c1), (r0, r1) = columns.view(-1, 2).T, other.view(-1, 2).T
    sums, differences = deviations(c0 + c1, r0 + r1), deviations(c0 - c1, r0 - r1)
    if abs(sums) < SIGMAS or abs(differences) < SIGMAS:
        return None
    return "in order" if sums * differences > 0 else "reversed"


def deviations(x: Tensor, y: Tensor) -> float:
    """Spearman's rank correlation, over its standard deviation for independent x and y."""
    x, y = ranks(x), ranks(y)
    largest = float((x.square().sum() * y.square().sum()).sqrt())
    return float((x * y).sum()) / largest * (len(x) - 1) ** 0.5 if largest else 0.0


def ranks(x: Tensor) -> Tensor:
    """Ranks with the mean 0; equal values share theirs."""
    _, index, counts = x.unique(return_inverse=True, return_counts=True)
    return (counts.cumsum(0) - (counts - 1) / 2.0 - (len(x) + 1) / 2.0).double()[index]


def log_norms(t: Tensor) -> Tensor:
    """The log of each column's norm."""
    return (t.float().square().sum(0) + 1e-30).log()


def column_norms(packed: PackedLinear) -> Tensor:
    step = max(1, packed.out_features // ROWS)
    return log_norms(decoded(packed.weight[::step], packed.weight_scale[::step]))


def row_norms(packed: PackedLinear) -> Tensor:
    blocks = packed.weight.reshape(packed.out_features, -1, BLOCK // 2)
    step = max(1, blocks.shape[1] // BLOCKS)
    weight = blocks[:, ::step].reshape(packed.out_features, -1)
    return log_norms(decoded(weight, packed.weight_scale[:, ::step]).T)


def decoded(weight: Tensor, scale: Tensor) -> Tensor:
    """Without the global scale, which changes no correlation."""
    return _api.dequantize(aligned(weight), aligned(scale), scale_layout="linear")


def order_of(checkpoint: Checkpoint) -> str | None:
    """The order in which layers of a checkpoint agree; None if nothing tells."""
    norms: dict[str, Tensor] = {}
    layers = list(checkpoint.layers.items())[:LOOKED_AT]
    verdicts = {nibble_order(name, packed, checkpoint, norms) for name, packed in layers} - {None}
    return verdicts.pop() if len(verdicts) == 1 else None
