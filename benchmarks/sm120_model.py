"""Writes the tables of modelled times of the sm120 kernels into benchmarks/README.md, from csrc/'s own planners.

    python benchmarks/sm120_model.py [--check]

Nothing in them was measured by this project. --check: fails if the page has others.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CSRC = HERE.parent / "csrc"
PAGE = HERE / "README.md"
BEGIN, END = "<!-- sm120_model.py -->\n", "<!-- end -->\n"


@dataclass(frozen=True)
class Gpu:
    name: str
    gb_s: float
    tflop_s: float  # FP4, dense, at boost


GPUS = (Gpu("RTX 5090", 1792, 1676), Gpu("RTX PRO 6000", 1792, 2015), Gpu("GB10", 273, 500))
ROWS = (1, 4, 16, 64, 128, 2304)
SHAPES = ((7168, 16384), (4096, 7168), (7168, 2048))
# By others: GPU, M, N, K, us, of which kernel.
PUBLISHED = (
    (0, 1, 8192, 2048, 10.6, "b12x"),
    (0, 1, 7168, 5120, 19.6, "b12x"),
    (0, 1, 8192, 7168, 26.9, "b12x"),
    (0, 64, 7168, 5120, 23.3, "b12x"),
    (0, 1024, 7168, 4608, 69.7, "b12x"),
    (1, 8192, 8192, 8192, 2 * 8192**3 / 1426e6, "gn-kernels, 600 W"),
    (2, 1, 5120, 2048, 57.0, "CUTLASS"),
    (2, 1, 4608, 7168, 147.0, "CUTLASS"),
    (2, 64, 7168, 5120, 162.0, "CUTLASS"),
)

# Qwen3-30B-A3B: experts, choices of a token, layers; rows of gate and of up, and H.
EXPERTS, CHOICES, LAYERS, INNER, HIDDEN = 128, 8, 48, 768, 2048
# Tokens a second while decoding one sequence, by others, of the whole model.
DECODED = ((0, 268.0, "imp"), (2, 37.0, "a user's report"))
BACK_TO_BACK_US = 3.5  # SINGLE_CALL_US of csrc/plan/launch_plan.h


def floor_us(gpu: Gpu, m: int, n: int, k: int) -> float:
    """The time that memory and tensor cores need at their peaks, for values, scales and a C of 16 bits, once each."""
    moved = (m + n) * k * (1 / 2 + 1 / 16) + 2 * m * n
    return max(moved / gpu.gb_s * 1e-3, 2 * m * n * k / gpu.tflop_s * 1e-6)


def experts_floor_us(gpu: Gpu, tokens: int) -> float:
    return mixture_floor_us(gpu, tokens, EXPERTS, CHOICES, INNER, HIDDEN)


def mixture_floor_us(gpu: Gpu, tokens: int, experts: int, choices: int, inner: int, hidden: int) -> float:
    """The same of a layer's experts, both products, where each token takes any choices of them; without C, as in the
    model, since the kernel behind may find it in L2."""
    hit, weights, rows = experts * (1 - (1 - choices / experts) ** tokens), 3 * inner * hidden, tokens * choices
    moved = (hit * weights + rows * (hidden + inner)) * (1 / 2 + 1 / 16)
    return max(moved / gpu.gb_s * 1e-3, 2 * rows * weights / gpu.tflop_s * 1e-6)


@dataclass(frozen=True)
class Modelled:
    """Single-call times."""

    own: float  # of sm120, or of sm100
    kernel: str
    portable: float  # of sm80
    other: str
    gated: float  # of groups: with the activation, in as many launches as are planned
    gated_apart: float  # and in two
    unlimited: float  # of bf16 rows of groups, if an SM of a B200 loads at the rate of memory


def modelled(cases: list[tuple[int, ...]]) -> list[Modelled]:
    """For (GPU, M, N, K), or of groups (GPU, M, N, K, groups, parts), with a third number for those: 1: A is bf16."""
    sources = [HERE / "sm120_model.c", CSRC / "common/error.c", CSRC / "plan/reject.c"]
    folders = ("sm100", "sm120", "sm80", "units")
    sources += sorted(path for name in folders for path in (CSRC / "kernels" / name).glob("*.c"))
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "model")
        subprocess.run(["gcc", "-std=gnu11", "-O1", f"-I{CSRC}", "-o", made, *sources, "-lm"], check=True)
        asked = "".join(" ".join(map(str, (*case, *(0, 1, 0)[len(case) - 4 :]))) + "\n" for case in cases)
        done = subprocess.run([made], input=asked, capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    return [Modelled(float(a), kernel, float(b), other, *map(float, rest)) for a, kernel, b, other, *rest in lines]


def experts(tokens: tuple[int, ...] = ROWS) -> list[list[tuple[float, float]]]:
    """For each GPU and number of tokens the back-to-back times of sm120 and sm80 for both products of a layer."""
    products = ((INNER, HIDDEN, EXPERTS, 2), (HIDDEN, INNER, EXPERTS, 1))
    cases = [(i, t * CHOICES, *product) for i in range(len(GPUS)) for t in tokens for product in products]
    found = modelled(list(cases))
    less = 2 * BACK_TO_BACK_US
    pairs = [(x.own + y.own - less, x.portable + y.portable - less) for x, y in zip(found[::2], found[1::2])]
    return [pairs[i * len(tokens) : (i + 1) * len(tokens)] for i in range(len(GPUS))]


def gated(tokens: tuple[int, ...] = ROWS) -> list[list[tuple[float, float]]]:
    """The same of sm120 for gate, up and the activation: in as many launches as are planned, and in two."""
    cases = [(i, t * CHOICES, INNER, HIDDEN, EXPERTS, 2) for i in range(len(GPUS)) for t in tokens]
    pairs = [(x.gated - BACK_TO_BACK_US, x.gated_apart - BACK_TO_BACK_US) for x in modelled(list(cases))]
    return [pairs[i * len(tokens) : (i + 1) * len(tokens)] for i in range(len(GPUS))]


def experts_tables() -> list[str]:
    lines = ["| experts of Qwen3-30B-A3B | kernels | " + " | ".join(f"T = {t}" for t in ROWS) + " |"]
    lines += ["|:--|:--|" + "--:|" * len(ROWS)]
    times = experts()
    for gpu, pairs in zip(GPUS, times):
        floors = (experts_floor_us(gpu, t) for t in ROWS)
        own = " | ".join(f"{own:.1f} ({floor:.1f})" for (own, _), floor in zip(pairs, floors))
        lines += [f"| {gpu.name} | sm120 | {own} |"]
        lines += [f"| {gpu.name} | sm80 | " + " | ".join(f"{portable:.1f}" for _, portable in pairs) + " |"]
    lines += ["", "| their gate, up and activation | launches | " + " | ".join(f"T = {t}" for t in ROWS) + " |"]
    lines += ["|:--|:--|" + "--:|" * len(ROWS)]
    for gpu, pairs in zip(GPUS, gated()):
        for i, launches in enumerate(("one", "two")):
            lines += [f"| {gpu.name} | {launches} | " + " | ".join(f"{pair[i]:.1f}" for pair in pairs) + " |"]
    lines += ["", "| Qwen3-30B-A3B, one sequence | published tokens/s | us a layer | its experts, modelled | floor |"]
    lines += ["|:--|:--|--:|--:|--:|"]
    for i, rate, by in DECODED:
        layer, floor = 1e6 / rate / LAYERS, experts_floor_us(GPUS[i], 1)
        lines += [f"| {GPUS[i].name} | {rate:.0f} ({by}) | {layer:.1f} | {times[i][0][0]:.1f} | {floor:.1f} |"]
    return lines


def tables() -> str:
    cases = [(i, m, n, k) for n, k in SHAPES for i in range(len(GPUS)) for m in ROWS]
    found = iter(modelled(cases))
    lines = ["| N x K | GPU | " + " | ".join(f"M = {m}" for m in ROWS) + " |", "|:--|:--|" + "--:|" * len(ROWS)]
    for n, k in SHAPES:
        for gpu in GPUS:
            cells = [f"{next(found).own:.1f} ({floor_us(gpu, m, n, k):.1f})" for m in ROWS]
            lines.append(f"| {n} x {k} | {gpu.name} | {' | '.join(cells)} |")
    lines += ["", "| M x N x K | GPU | published | sm120, modelled | sm80, modelled | floor |"]
    lines += ["|:--|:--|:--|--:|--:|--:|"]
    for row, times in zip(PUBLISHED, modelled([row[:4] for row in PUBLISHED])):
        i, m, n, k, us, kernel = row
        floor = floor_us(GPUS[i], m, n, k)
        of_both = f"{times.own:.1f} | {times.portable:.1f}"
        lines.append(f"| {m}x{n}x{k} | {GPUS[i].name} | {us:.1f} ({kernel}) | {of_both} | {floor:.1f} |")
    return "\n".join([*lines, "", *experts_tables()]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END, 1)[1]
    made = before + BEGIN + tables() + END + after
    if check and made != text:
        print(f"{PAGE}: the tables are not what the model says: python benchmarks/sm120_model.py", file=sys.stderr)
        return 1
    if not check:
        PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
