"""Finds the order of the nibbles in a checkpoint's layers, by what its other tensors say.

Values that are exchanged in pairs along K keep every statistic of a single layer. Another
tensor with the same channels shows them if it is not packed along them: the rows of the layer before (up_proj for
down_proj), the norm before, the embedding. Let c be the log norms of the layer's columns and r those of the other
tensor. For each pair of columns, the sums c0 + c1 and r0 + r1 do not change if the two are exchanged; the differences
c0 - c1 change their sign. So the rank correlation of the sums tells whether c and r rise together or against each
other, and that of the differences must have the same sign. The opposite sign, both at 6 standard deviations or more,
is reported. Without such a tensor, or with a weaker correlation, nothing is reported.
"""

from __future__ import annotations

import re

from torch import Tensor

from nvfp4 import _api
from nvfp4.checkpoints.checkpoint import Checkpoint
from nvfp4.layers.buffers import aligned
from nvfp4.layers.packed import BLOCK, PackedLinear

ROWS, BLOCKS = 1024, 64  # a weight's rows or blocks of columns that are decoded, at most
MANY = 2048  # layers, from which on fewer are decoded of each, but at least a quarter: 18,432 layers take half a minute
SIGMAS = 6.0
REFERENCES = 8  # layers and norms of a block, or embeddings, that a layer is compared with, at most
LOOKED_AT = 16  # layers, where the order decides how a whole file is read


PairRanks = tuple[Tensor, Tensor]  # see pair_ranks


def order_of(checkpoint: Checkpoint) -> str | None:
    """The order in which layers of a checkpoint agree; None if nothing tells."""
    references = References(checkpoint, LOOKED_AT)
    layers = list(checkpoint.layers.items())[:LOOKED_AT]
    verdicts = {nibble_order(name, packed, references) for name, packed in layers} - {None}
    return verdicts.pop() if len(verdicts) == 1 else None


def nibble_order(name: str, packed: PackedLinear, references: References) -> str | None:
    """ "in order", "reversed", or None if nothing tells."""
    others = references.of(name, packed.in_features)
    if not others:
        return None
    columns = pair_ranks(column_norms(packed, references.rows))
    verdicts = {order(columns, other) for other in others} - {None}
    return verdicts.pop() if len(verdicts) == 1 else None


class References:
    """Pair ranks of the log norms of input channels, from tensors that are not packed along them: layers of the same
    block that have the channels as rows, its norms, and embeddings. Each is computed once."""

    def __init__(self, checkpoint: Checkpoint, count: int) -> None:
        self.checkpoint = checkpoint
        self.rows, self.blocks = (max(most // 4, min(most, most * MANY // max(count, 1))) for most in (ROWS, BLOCKS))
        self.ranks: dict[str, PairRanks] = {}
        self.names: dict[tuple[str | None, int], list[str]] = {}  # by block and number of channels; None: of all blocks
        for name, packed in checkpoint.layers.items():
            self.names.setdefault((block_of(name), packed.out_features), []).append(name)
        for name, t in checkpoint.tensors.items():
            if not t.is_floating_point() or t.element_size() == 1 or t.ndim not in (1, 2) or not t.numel():
                continue
            if t.ndim == 1 and name.endswith("weight"):
                self.names.setdefault((block_of(name), t.shape[-1]), []).append(name)
            elif t.ndim == 2 and "embed" in name.lower():
                self.names.setdefault((None, t.shape[-1]), []).append(name)

    def of(self, name: str, k: int) -> list[PairRanks]:
        """The ranks of a layer's K input channels; no more than REFERENCES of a kind."""
        names = [*self.names.get((block_of(name), k), [])[:REFERENCES], *self.names.get((None, k), [])[:REFERENCES]]
        for other in names:
            if other != name and other not in self.ranks:
                self.ranks[other] = pair_ranks(self.norms_of(other, k))
        return [self.ranks[other] for other in names if other != name]

    def norms_of(self, name: str, k: int) -> Tensor:
        if name in self.checkpoint.layers:
            return row_norms(self.checkpoint.layers[name], self.blocks)
        t = self.checkpoint.tensors[name]
        return log_norms(t.reshape(-1, k)[:: max(1, t.numel() // k // ROWS)])


def block_of(name: str) -> str:
    """The name up to the last number: model.layers.3 of model.layers.3.mlp.up_proj."""
    match = re.match(r"(.*\.)?\d+(?=\.)", name)
    return match[0] if match else ""


def pair_ranks(norms: Tensor) -> PairRanks:
    """Ranks of the sums and of the differences of each pair of channels."""
    first, second = norms.view(-1, 2).T
    return unit_ranks(first + second), unit_ranks(first - second)


def order(columns: PairRanks, other: PairRanks) -> str | None:
    """The verdict of one reference."""
    sums, differences = (deviations(x, y) for x, y in zip(columns, other, strict=True))
    if abs(sums) < SIGMAS or abs(differences) < SIGMAS:
        return None
    return "in order" if sums * differences > 0 else "reversed"


def deviations(x: Tensor, y: Tensor) -> float:
    """Spearman's rank correlation, over its standard deviation for independent x and y, of unit ranks."""
    return float(x.dot(y)) * (len(x) - 1) ** 0.5


def unit_ranks(x: Tensor) -> Tensor:
    """Ranks with the mean 0, as a vector of length 1; 0 if all values are equal. Equal values share their rank."""
    _, index, counts = x.unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2.0 - (len(x) + 1) / 2.0)[index]
    return ranks / ranks.norm().clamp(min=0.25)  # 0.5 is the least of ranks that are not equal


def log_norms(t: Tensor) -> Tensor:
    """The log of each column's norm."""
    return (t.float().square().sum(0) + 1e-30).log()


def column_norms(packed: PackedLinear, rows: int = ROWS) -> Tensor:
    step = max(1, packed.out_features // rows)
    return log_norms(decoded(packed.weight[::step], packed.weight_scale[::step]))


def row_norms(packed: PackedLinear, most: int = BLOCKS) -> Tensor:
    blocks = packed.weight.reshape(packed.out_features, -1, BLOCK // 2)
    step = max(1, blocks.shape[1] // most)
    weight = blocks[:, ::step].reshape(packed.out_features, -1)
    return log_norms(decoded(weight, packed.weight_scale[:, ::step]).T)


def decoded(weight: Tensor, scale: Tensor) -> Tensor:
    """Without the global scale, which changes no correlation."""
    return _api.dequantize(aligned(weight), aligned(scale), scale_layout="linear")
