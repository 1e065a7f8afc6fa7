"""GPTQ of one weight: codes and block scales that keep the product with inputs of a known Hessian.

The loss of a weight's row is d H d', where d is the error of the row and H the sum of x x^T over inputs x. Columns are
quantized one after another; each one's error is spread over the columns that follow it, by the rows of U, the upper
Cholesky factor of the inverse of H. A block of 16 columns shares a scale: `nvfp4.gptq_block` runs all candidates of the
scale through the block and takes the one with the least loss.

    order    blocks by the falling sum of their diagonal of H, columns of a block by the falling diagonal
    chunk    128 columns: inside, each block's errors go to the rest of the chunk; then one product to all later columns
    H        divided by the mean of its diagonal, plus damping on the diagonal; factored in fp64

The order is undone at the end, so the result is an ordinary NVFP4 matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from nvfp4 import _C, _api
from nvfp4.layers.checks import check_tensor
from nvfp4.layers.packed import BLOCK

CHUNK = 128  # columns whose errors are added to all later columns by one product
SLICE = 2**27  # values of a weight that are fp32 at a time
MIN_DAMPING, MAX_DAMPING = 0.1, 1.0  # of a Hessian of many rows, and of few
RAISED = 3  # times that a damping is raised tenfold, where the damped Hessian is not positive definite


@dataclass(frozen=True)
class Factor:
    """The Cholesky factor of an inverse Hessian, with the order of columns in which it was computed.

    Attributes:
        u (Tensor): float32 [K, K], upper triangular.
        order (Tensor): int64 [K]: the column of the weight that is quantized at each step.
        damping (float): what was added to the diagonal of the Hessian, after its division by the mean.
    """

    u: Tensor
    order: Tensor
    damping: float


@contextmanager
def exact_mode(device: torch.device) -> Iterator[None]:
    """Computes as written: without autocast, which would round operands, and without gradients. Tensors that are made
    inside can be changed later."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        if device.type != "meta":
            stack.enter_context(torch.autocast(device.type, enabled=False))
        yield


def check_statistics(name: str, given: object, owner: str, weights: str, weight: Tensor) -> None:
    """Rejects from_linear's `importance` or `hessian` where it is not that of the weight's inputs. `owner` is the word
    of `weights` that it belongs to."""
    if given is None:
        if weights == "gptq" == owner:
            raise _C.Error(f"{name}: is None but weights is 'gptq'; must be the sum of x x^T over the layer's inputs")
        return
    if weights != owner:
        raise _C.Error(f"{name}: is given but weights is {weights!r}; must be None then")
    k = weight.shape[1]
    check_tensor(name, given, torch.float32, (k,) if owner == "search" else (k, k))
    assert isinstance(given, Tensor)
    if given.device != weight.device:
        raise _C.Error(f"{name}: is on {given.device} but the weight on {weight.device}; must be on one device")


def default_damping(k: int, rows: int) -> float:
    """The damping of a Hessian of K columns from so many rows, by measurement: .1 for many rows, 1 for few."""
    return min(MAX_DAMPING, max(MIN_DAMPING, 0.4 * k / rows))


def factor(hessian: Tensor, damping: float) -> Factor:
    """Factors a Hessian [K, K]. A column that is zero on the diagonal, which no input reaches, gets 1 there, and its
    weights are rounded without feedback.

    Raises:
        nvfp4.Error: it has a value that is not finite, a negative one on its diagonal, or is not positive definite with
            1000 times the damping either.
    """
    diagonal = hessian.diagonal().double()
    if not bool(diagonal.isfinite().all()):
        raise _C.Error("hessian: has a value that is NaN or infinite; must be finite")
    if bool((diagonal < 0).any()):
        raise _C.Error(f"hessian: has {float(diagonal.amin()):g} on its diagonal; must have 0 or more")
    live = diagonal > 0
    mean = diagonal[live].mean() if bool(live.any()) else diagonal.new_ones(())
    diagonal = torch.where(live, diagonal / mean, 1.0)
    blocks = diagonal.reshape(-1, BLOCK)
    first = blocks.sum(1).argsort(descending=True, stable=True)
    within = blocks[first].argsort(dim=1, descending=True, stable=True)
    order = (first[:, None] * BLOCK + within).flatten()
    # With R upper triangular and H = R R', U is the inverse of R. Reversed, R is the lower factor that torch computes.
    backward = order.flip(0)
    reverse = hessian[backward[:, None], backward].double().div_(mean)
    for attempt in range(RAISED + 1):
        added = damping * 10**attempt
        reverse.diagonal().copy_(diagonal[backward] + added)
        lower, wrong = torch.linalg.cholesky_ex(reverse)
        if bool(wrong) or not bool(lower.diagonal().isfinite().all()):
            continue
        del reverse  # several of these matrices at a time would be gigabytes
        identity = torch.eye(len(order), dtype=torch.float64, device=lower.device)
        inverse = torch.linalg.solve_triangular(lower, identity, upper=False).float()
        return Factor(inverse.flip(0, 1).contiguous(), order, added)  # LAPACK has it by columns
    raise _C.Error(
        f"hessian: is not positive definite with {added:g} of its mean diagonal added; must be a sum of x x^T"
    )


def gptq(weight: Tensor, factor: Factor, global_scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantizes a weight [N, K].

    Args:
        factor: that of the Hessian of the weight's inputs.
        global_scale: float32 [].

    Returns:
        data uint8 [N, K/2], scale float8_e4m3fn [N, K/16] in the linear layout, and loss float64 [N]: of each row
        d (H / mean + damping) d'.
    """
    rows, k = weight.shape
    step = max(1, SLICE // k)
    parts = [gptq_slice(weight[row : row + step], factor, global_scale) for row in range(0, max(rows, 1), step)]
    data, scale, loss = (torch.cat(tensors) for tensors in zip(*parts))
    return data, scale.view(torch.float8_e4m3fn), loss


def gptq_slice(weight: Tensor, factor: Factor, global_scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same of some rows. The scales are bytes."""
    u, order, (n, k) = factor.u, factor.order, weight.shape
    w = weight.float().index_select(1, order)  # a copy, contiguous
    packed = torch.empty(n, k // 2, dtype=torch.uint8, device=w.device)  # in the order of computation
    scale = torch.empty(n, k // BLOCK, dtype=torch.uint8, device=w.device)
    errors = torch.empty(n, CHUNK, dtype=torch.float32, device=w.device)
    loss = torch.zeros(n, dtype=torch.float64, device=w.device)
    for start in range(0, k, CHUNK):
        stop = min(start + CHUNK, k)
        for i in range(start, stop, BLOCK):
            j = i + BLOCK
            data, own, error = _api.gptq_block(w[:, i:j], u[i:j, i:j], global_scale=global_scale)
            packed[:, i // 2 : j // 2] = data
            scale[:, i // BLOCK] = own.view(torch.uint8)[:, 0]
            errors[:, i - start : j - start] = error
            if j < stop:
                w[:, j:stop].addmm_(error, u[i:j, j:stop], alpha=-1)
        chunk = errors[:, : stop - start]
        loss += chunk.square().sum(1, dtype=torch.float64)
        if stop < k:
            w[:, stop:].addmm_(chunk, u[start:stop, stop:], alpha=-1)
    places = order.argsort()
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1).index_select(1, places)
    blocks = (order[::BLOCK] // BLOCK).argsort()
    return codes[:, ::2] | codes[:, 1::2] << 4, scale.index_select(1, blocks), loss
