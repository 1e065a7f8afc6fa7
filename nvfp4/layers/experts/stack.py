"""The matrices of nvfp4.Experts: a stack of those of all experts, and the global scales of their inputs."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from nvfp4 import _C, _api
from nvfp4.layers.buffers import FixedBuffers, aligned, round_up
from nvfp4.layers.checks import short
from nvfp4.layers.packed import BLOCK

if TYPE_CHECKING:
    from typing_extensions import Self

# left [E, N, r] and right [E, r, K], whose product an adapter adds to a stack's weights [E, N, K].
Adapter: TypeAlias = tuple[Tensor, Tensor]


class Stack(FixedBuffers):
    """E * P NVFP4 matrices [N, K]: those of E experts, each with P parts whose results lie side by side.

    On a CPU the matrices may stay where they are, in mapped files that have a tensor for each (`keep`). A state dict
    and another device get the buffers, which are filled expert by expert then.

    Buffers:
        weight: [E, P, N, K/2] uint8, or None.
        weight_scale: [E, P, N rounded up to 128, K/16 rounded up to 4] float8_e4m3fn in the 128x4 layout, or None.
        weight_global_scale: float32 [E, P], multipliers; or [E, P, N], one for each row.
        input_global_scale: float32 [E, P], multipliers, NaN for an expert without one; or None.
        bias: [E, P, N], or None.

    Attributes:
        shape: (E, P, N, K).
        kept: of each part the values [N, K/2] and the linear scales [N, K/16] of each expert, as bytes; or None.
    """

    fixed = ("weight_scale", "weight_global_scale", "input_global_scale")
    e4m3 = ("weight_scale",)

    weight: Tensor | None
    weight_scale: Tensor | None
    weight_global_scale: Tensor
    input_global_scale: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        experts: int,
        parts: int,
        rows: int,
        columns: int,
        bias: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.shape = (experts, parts, rows, columns)
        self.kept: list[tuple[list[Tensor], list[Tensor]]] | None = None
        self._known_scales: Any = None  # of two buffers and their versions (None: settled), what input_scales returned
        self.register_buffer("weight", None)
        self.register_buffer("weight_scale", None)
        self._buffers.update(self.blank(device))
        self.register_buffer("weight_global_scale", torch.ones(experts, parts, dtype=torch.float32, device=device))
        self.register_buffer("input_global_scale", None)
        zeros = torch.zeros(experts, parts, rows, dtype=dtype, device=device) if bias else None
        self.register_buffer("bias", zeros)

    def blank(self, device: torch.device | str | int | None) -> dict[str, Tensor | None]:
        """weight and weight_scale of zeros, which the scales' padding keeps."""
        experts, parts, rows, columns = self.shape
        scales = (experts, parts, round_up(rows, 128), round_up(columns // BLOCK, 4))
        return {
            "weight": torch.zeros(experts, parts, rows, columns // 2, dtype=torch.uint8, device=device),
            "weight_scale": torch.zeros(scales, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn),
        }

    @property
    def nbytes(self) -> int:
        kept = [t for part in self.kept or () for tensors in part for t in tensors]
        return sum(t.nbytes for t in (*self.buffers(), *kept))

    def keep(self, part: int, weights: list[Tensor], scales: list[Tensor]) -> None:
        """Takes a part's matrices, and their scales in the linear layout, as they are, on a CPU."""
        self.weight = self.weight_scale = None
        if self.kept is None:
            self.kept = [([], [])] * self.shape[1]
        self.kept[part] = ([aligned(t) for t in weights], [t.contiguous().view(torch.uint8) for t in scales])

    def stacked(self, device: torch.device) -> dict[str, Tensor | None]:
        """weight and weight_scale of the matrices that are kept, on a device."""
        experts, parts, rows, columns = self.shape
        assert self.kept is not None
        result = self.blank(device)
        weight, scale = result["weight"], result["weight_scale"]
        assert weight is not None and scale is not None
        linear = torch.empty(experts, rows, columns // BLOCK, dtype=torch.uint8, device=device)
        for p, (values, scales) in enumerate(self.kept):
            for e in range(experts):
                weight[e, p].copy_(values[e])
                linear[e].copy_(scales[e])
            scale[:, p] = swizzled(linear)
        return result

    def gather(self, device: torch.device) -> None:
        """Copies matrices that are kept to buffers on a device."""
        if self.kept is not None:
            self._buffers.update(self.stacked(device))
            self.kept = None

    def matrices(self) -> Callable[[int, int], tuple[Tensor, Tensor]]:
        """A function of expert and part: the values [N, K/2] and the linear scales [N, K/16]."""
        kept, weight, scale = self.kept, self.weight, self.weight_scale
        if kept is not None:
            return lambda e, p: (kept[p][0][e], kept[p][1][e].view(torch.float8_e4m3fn))
        assert weight is not None and scale is not None
        experts, parts, rows, columns = self.shape
        blocks = scale.reshape(experts * parts, *scale.shape[2:])
        linear = _api.unswizzle(blocks, rows, columns // BLOCK).reshape(experts, parts, rows, columns // BLOCK)
        return lambda e, p: (weight[e, p], linear[e, p])

    # ---- what torch.nn.Module does with the buffers ----

    def __getstate__(self) -> dict[str, Any]:
        """A copy's buffers have other versions."""
        state, known = super().__getstate__(), self._known_scales
        return state | {"_known_scales": known if known is not None and known[2] is None else None}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        if self.kept is not None:
            device = fn(torch.empty(0, dtype=torch.uint8)).device
            if device.type != "cpu":
                self.gather(device)
        return super()._apply(fn, recurse)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if self in _left_out.get():
            return
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.kept is not None:
            destination.update({prefix + name: t for name, t in self.stacked(torch.device("cpu")).items()})

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Also takes a state with input scales where this stack has none, and the reverse. Another dtype is an
        error."""
        mismatches = self.no_tensors(state_dict, prefix)
        wanted = {"weight": torch.uint8, "weight_scale": torch.float8_e4m3fn}
        for name in ("weight", "weight_scale", "weight_global_scale", "input_global_scale"):
            t, dtype = state_dict.get(prefix + name), wanted.get(name, torch.float32)
            if isinstance(t, Tensor) and t.dtype != dtype:
                mismatches.append(f"{prefix}{name}: is {short(t.dtype)}; must be {short(dtype)}")
        if mismatches:
            arguments[-1].extend(mismatches)  # load_state_dict raises them, with those of other modules
            return
        if prefix + "weight" in state_dict:
            if state_dict.get(prefix + "input_global_scale") is None:
                self.input_global_scale = None
            elif self.input_global_scale is None:
                self.input_global_scale = self.weight_global_scale.new_empty(self.shape[:2])
            own = state_dict.get(prefix + "weight_global_scale", self.weight_global_scale)
            shape = tuple(own.shape)
            if shape != self.weight_global_scale.shape and shape in (self.shape[:2], self.shape[:3]):
                self.weight_global_scale = self.weight_global_scale.new_empty(shape)
            if self.kept is not None:
                self._buffers.update(self.blank("cpu"))
                self.kept = None
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self._renew()

    def _renew(self) -> None:
        """Brings what `input_scales` last returned up to date, in its place: CUDA graphs may read it."""
        given, own, known = self.input_global_scale, self.weight_global_scale, self._known_scales
        if known is None or given is None or known[0] is not given or known[1] is not own:
            return
        if known[3][0].is_inference() and not torch.is_inference_mode_enabled():
            return  # these cannot be written, nor could the buffers
        for t, value in zip(known[3], computed_scales(given, own)):
            t.copy_(value)
        self._known_scales = (given, own, known[2] and (given._version, own._version), known[3])

    def extra_repr(self) -> str:
        experts, parts, rows, columns = self.shape
        return f"{experts} x {parts} matrices of {rows} x {columns}, bias={self.bias is not None}"

    # ---- the products ----

    def factors(self, name: str, adapter: Adapter | None) -> tuple[Tensor | None, Tensor | None]:
        """Both factors of an adapter, the argument `name`, or two times None."""
        if adapter is None:
            return None, None
        experts, parts, rows, columns = self.shape
        left, right = adapter
        rank = left.shape[-1] if left.ndim else 0
        if left.shape != (experts, parts * rows, rank) or right.shape != (experts, rank, columns):
            shapes, wanted = f"{list(left.shape)} and {list(right.shape)}", f"[{experts}, {parts * rows}, r]"
            raise _C.Error(f"{name}: shapes are {shapes}; must be {wanted} and [{experts}, r, {columns}]")
        return left, right

    def input_scales(self) -> tuple[Tensor | None, Tensor]:
        """The global scale of each expert's quantized input, [E], or None without one, and alpha with it, in the shape
        of weight_global_scale. The parts of an expert share their input, and the largest of their scales; an expert
        without one takes the largest of all. A CUDA graph keeps the values from before it was made; a state dict that
        is loaded renews them there."""
        given, own = self.input_global_scale, self.weight_global_scale
        if given is None:
            return None, own
        # Inference tensors have no version, and compiled code sees none.
        lasting = not (torch.compiler.is_compiling() or given.is_inference() or own.is_inference())
        versions = (given._version, own._version) if lasting else None
        known = self._known_scales
        if known is not None and known[0] is given and known[1] is own:
            if known[2] is None or known[2] == versions:
                return known[3]
            if lasting and not is_captured(given):
                self._renew()
                return known[3]
        if not lasting or is_captured(given):  # what a graph computes has no value yet
            return computed_scales(given, own)
        with torch.inference_mode(False):  # so that _renew may write the results
            result = computed_scales(given, own)
        self._known_scales = (given, own, versions, result)
        return result

    def settle(self) -> None:
        """Computes what `input_scales` returns for good: the buffers' values must not change any more. Otherwise each
        call computes it where buffers have no version (inference mode)."""
        self._known_scales = None
        self._known_scales = (self.input_global_scale, self.weight_global_scale, None, self.input_scales())

    def used(self, ends: Tensor) -> tuple[list[int], Tensor]:
        """The experts that have rows, and their ends. Lists are read on the host, so a call passes no more than it
        needs: few of many experts for a single token."""
        if torch.compiler.is_compiling():
            return [*range(self.shape[0])], ends
        used = ends.diff(prepend=ends.new_zeros(1)).nonzero().flatten()
        used = used if used.numel() else used.new_zeros(1)
        return used.tolist(), ends[used].contiguous()


def experts_of(ends: Tensor, count: int) -> Tensor:
    """The expert of each of the first `count` rows, whose groups end at `ends`; E at and past the last end."""
    return torch.searchsorted(ends, torch.arange(count, device=ends.device, dtype=torch.int32), right=True)


def as_grouped_gemm_takes_it(bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A bias of products whose result has this dtype."""
    return bias if bias is None or bias.dtype == dtype else bias.float()


def computed_scales(given: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Stack.input_scales of its buffers input_global_scale and weight_global_scale."""
    largest = given.nan_to_num(0.0).amax(1)
    scales = torch.where(largest > 0, largest, largest.amax())
    return scales, own * scales.reshape(-1, *[1] * (own.ndim - 1))


def is_captured(t: Tensor) -> bool:
    """Whether what is computed of this tensor becomes part of a CUDA graph."""
    return t.is_cuda and torch.cuda.is_current_stream_capturing()


def swizzled(linear: Tensor) -> Tensor:
    """Linear scales [L, N, K/16] in the 128x4 layout: [L, N rounded up to 128, K/16 rounded up to 4] float8_e4m3fn."""
    count, rows, columns = linear.shape
    scales: Tensor = _api.swizzle(linear.view(torch.float8_e4m3fn))
    return scales.reshape(count, round_up(rows, 128), round_up(columns, 4))


# The stacks that this thread's state dicts leave out.
_left_out: contextvars.ContextVar[frozenset[Stack]] = contextvars.ContextVar("left_out", default=frozenset())


@contextlib.contextmanager
def left_out_of_state(model: torch.nn.Module) -> Iterator[None]:
    """Makes state dicts without stacks, whose matrices would be copied. Other threads' have them."""
    token = _left_out.set(frozenset(module for module in model.modules() if isinstance(module, Stack)))
    try:
        yield
    finally:
        _left_out.reset(token)
