"""Writes the vectors beside this file: products.json, layout.json and quantize.json.

It knows the format from its documents and shares no code with the rest of the repository, so that the vectors can
judge both reference.py and other implementations. Numbers are written as JSON numbers that a double holds exactly;
NaN is null among results, and "NaN", "Infinity" among inputs.
"""

from __future__ import annotations

import json
import math
import struct
from fractions import Fraction
from pathlib import Path

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E4M3 = [m / 512 if e == 0 else (8 + m) * 2.0 ** (e - 10) for e in range(16) for m in range(8)][:127]


def fp32(x: float) -> float:
    """The nearest fp32 number."""
    try:
        return struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def divide(x: float, y: float) -> float:
    """fp32 quotient. A double quotient of fp32 numbers rounds to the same fp32 number as the exact one."""
    if y == 0.0:
        return math.nan if x == 0.0 or math.isnan(x) else math.copysign(math.inf, x)
    return fp32(x / y)


def nearest(x: float, table: list[float]) -> int:
    """Index of the nearest entry; of two as near the even one; beyond the last the last."""
    if x >= table[-1]:
        return len(table) - 1
    return min(range(len(table)), key=lambda i: (abs(Fraction(x) - Fraction(table[i])), i % 2))


def quantize(x: list[float], g: float) -> tuple[list[int], int]:
    """Bytes of 16 values, low nibble first, and the scale byte."""
    if any(math.isnan(v) for v in x):
        return [0] * 8, 0x7F
    amax = max(abs(v) for v in x)
    scale = nearest(divide(divide(amax, 6.0), g), E4M3)
    if scale == 0:
        return [0] * 8, 0
    codes = []
    for v in x:
        q = divide(v, fp32(E4M3[scale] * g))
        codes.append(nearest(abs(q), E2M1) | (8 if math.copysign(1.0, q) < 0 else 0))
    return [codes[i] | codes[i + 1] << 4 for i in range(0, 16, 2)], scale


def products() -> dict:
    values = E2M1 + [-v for v in E2M1]
    rows = [[v * s for v in values] for s in E4M3] + [[None] * 16]
    return {
        "what": "value_times_scale[scale byte][e2m1 code]; null is NaN; bit 7 of a scale byte is ignored",
        "value_times_scale": rows + rows,
    }


def layout() -> dict:
    cases = []
    for rows, columns in ((1, 1), (33, 3), (128, 4), (130, 9), (257, 29), (384, 64)):
        blocks = (columns + 3) // 4
        places = {(0, 0), (rows - 1, columns - 1), (rows // 2, columns // 2), (rows - 1, 0), (0, columns - 1)}
        places |= {(r, c) for r in (1, 31, 32, 63, 64, 96, 127, 128) for c in (1, 4) if r < rows and c < columns}
        table = []
        for r, c in sorted(places):
            inside = r % 32 * 16 + r % 128 // 32 * 4 + c % 4
            table.append([r, c, (r // 128 * blocks + c // 4) * 512 + inside])
        size = (rows + 127) // 128 * blocks * 512
        cases.append({"rows": rows, "columns": columns, "bytes": size, "row_column_offset": table})
    return {"what": "where the 128x4 layout of rows x columns scales puts a scale", "cases": cases}


def quantize_cases() -> dict:
    nan, inf = math.nan, math.inf
    named = {
        "zeros": ([0.0] * 16, 1.0),
        "zeros of both signs": ([0.0, -0.0] * 8, 1.0),
        "every value, scale 1": (E2M1 + [-v for v in E2M1], 1.0),
        "every tie, scale 1": (
            [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5.0, 0.0],
            1.0,
        ),
        "a scale between two, to even below": ([6 * 1.0625] + [1.0] * 15, 1.0),
        "a scale between two, to even above": ([6 * 1.1875] + [1.0] * 15, 1.0),
        "least scale": ([6 * 2.0**-9] + [2.0**-9] * 15, 1.0),
        "half of the least scale: zeros": ([6 * 2.0**-10] + [2.0**-11] * 15, 1.0),
        "saturated": ([1e6, -1e6, 2688.0, 2000.0, 1.0, 0.0] + [100.0] * 10, 1.0),
        "infinity": ([inf, -inf, 1.0, 300.0] + [1344.0] * 12, 1.0),
        "a NaN": ([1.0] * 15 + [nan], 1.0),
        "global scale": ([0.001 * i * (-1) ** i for i in range(16)], fp32(0.015 / 2688)),
        "global scale that is a power of two": ([float(i) for i in range(16)], 2.0**-6),
    }
    cases = []
    for name, (x, g) in named.items():
        x = [fp32(v) for v in x]
        data, scale = quantize(x, g)
        shown = [v if math.isfinite(v) else "NaN" if math.isnan(v) else f"{'-' * (v < 0)}Infinity" for v in x]
        cases.append({"name": name, "x": shown, "global_scale": g, "data": data, "scale": scale})
    return {
        "what": "16 fp32 values to 8 data bytes (low nibble first) and a scale byte; "
        "scale = e4m3(amax / 6 / g), value = e2m1(x / (scale * g)), each step in fp32, ties to even",
        "cases": cases,
    }


def write(folder: Path) -> None:
    for name, content in (("products", products()), ("layout", layout()), ("quantize", quantize_cases())):
        lines = json.dumps(content, indent=1, allow_nan=False)
        (folder / f"{name}.json").write_text(compact(lines) + "\n")


def compact(text: str) -> str:
    """One line for each innermost list."""
    out: list[str] = []
    for line in text.split("\n"):
        body = line.strip()
        if out and (out[-1].endswith("[") or (out[-1].count("[") > out[-1].count("]"))) and body[:1] not in ("[", "{"):
            out[-1] += body + ("" if body.startswith("]") else " " * body.endswith(","))
        else:
            out.append(line)
    return "\n".join(out)


if __name__ == "__main__":
    write(Path(__file__).parent)
