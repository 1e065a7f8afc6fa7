"""Rules by which a result must agree with the recorded one."""

from dataclasses import dataclass, field

import numpy as np


def _floats(raw: np.ndarray, kind: str) -> np.ndarray:
    """Bytes of f16, bf16, f32 or f64 as f64 values."""
    if kind == "bf16":
        return (raw.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    dtype = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[kind]
    with np.errstate(invalid="ignore"):
        return raw.view(dtype).astype(np.float64)


def _first(wrong: np.ndarray, rows: list[str] | None, per_row: int, shown: str) -> str:
    """A message on the places that differ."""
    at = np.flatnonzero(wrong)
    text = f"{len(at)} of {len(wrong)} differ, first at {at[0]}"
    if rows:
        bad = sorted({int(i) // per_row for i in at})
        text += f" (input {at[0] % per_row} of `{rows[bad[0]]}`)"
        if len(bad) > 1:
            text += "; rows " + "; ".join(rows[i] for i in bad[1:12])
    return f"{text}: {shown}"


@dataclass
class Exact:
    """Every bit. `width` is the size in bytes of what is compared and printed at a time."""

    width: int = 4

    def __call__(self, got: np.ndarray, want: np.ndarray, rows: list[str] | None) -> str | None:
        kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[self.width]
        g, w = got.view(kind), want.view(kind)
        wrong = g != w
        if not wrong.any():
            return None
        i = int(np.flatnonzero(wrong)[0])
        shown = f"{int(g[i]):#0{2 * self.width + 2}x} here, {int(w[i]):#0{2 * self.width + 2}x} on hardware"
        return _first(wrong, rows, len(g) // len(rows) if rows else 1, shown)


@dataclass
class ExactButNaN:
    """Every bit, but one NaN is as good as another: f64 keeps payloads, and PTX does not say which operand's."""

    kind: str = "f64"

    def __call__(self, got: np.ndarray, want: np.ndarray, rows: list[str] | None) -> str | None:
        g, w = _floats(got, self.kind), _floats(want, self.kind)
        bits = got.view(np.uint64) != want.view(np.uint64)
        wrong = bits & ~(np.isnan(g) & np.isnan(w))
        if not wrong.any():
            return None
        i = int(np.flatnonzero(wrong)[0])
        return _first(wrong, rows, len(g) // len(rows) if rows else 1, f"{g[i]!r} here, {w[i]!r} on hardware")


@dataclass
class Approximate:
    """Within bound[row] = (relative, absolute) of hardware; the values at both ends of the pair are of `kind`."""

    kind: str
    bounds: list[tuple[float, float]]

    def __call__(self, got: np.ndarray, want: np.ndarray, rows: list[str] | None) -> str | None:
        if self.kind in ("f16", "bf16"):  # one value in the low half of each word
            got, want = (np.ascontiguousarray(a.view(np.uint16)[::2]).view(np.uint8) for a in (got, want))
        g, w = _floats(got, self.kind), _floats(want, self.kind)
        per_row = len(g) // len(self.bounds)
        relative = np.repeat([b[0] for b in self.bounds], per_row)
        absolute = np.repeat([b[1] for b in self.bounds], per_row)
        with np.errstate(invalid="ignore"):
            close = (g == w) | (np.isnan(g) & np.isnan(w)) | (np.abs(g - w) <= relative * np.abs(w) + absolute)
        if close.all():
            return None
        i = int(np.flatnonzero(~close)[0])
        return _first(~close, rows, per_row, f"{g[i]!r} here, {w[i]!r} on hardware")


@dataclass
class Recorded:
    """Kept for the reader: nothing may depend on it."""

    note: str = field(default="")

    def __call__(self, got: np.ndarray, want: np.ndarray, rows: list[str] | None) -> str | None:
        return None
