"""The cache of plan_choose (csrc/plan/choose.c) answers the query that was asked: the plan of a product is the same
whatever the thread has planned before, products of the same sizes with an operand for all batches included. That every
field of a query counts is tested by tests/plan/test_plan_cache.c."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

from paths import CSRC, TESTS

SOURCES = (
    TESTS / "plan/h200_planner.c",
    *sorted([*CSRC.glob("kernels/sm*/*.c"), *CSRC.glob("kernels/units/*.c")]),
    CSRC / "plan/choose.c",
    CSRC / "plan/reject.c",
    CSRC / "common/error.c",
)


def test_plan_does_not_depend_on_what_was_planned_before(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    binary = tmp_path / "planner"
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}"]
    subprocess.run(["gcc", *flags, *SOURCES, "-lm", "-o", binary], check=True)

    def plans(questions: list[str]) -> list[str]:
        result = subprocess.run([binary], input="\n".join(questions), capture_output=True, text=True, check=True)
        return result.stdout.splitlines()

    def shape() -> str:
        m, n = int(2 ** draw.uniform(0, 12)), int(2 ** draw.uniform(5, 12))
        return f"{m} {n} {64 * draw.randint(1, 100)} {draw.choice((2, 4, 8))}"

    shapes = [shape() for _ in range(100)]
    variants = [f"{shape} {shared}" for shape in shapes for shared in range(3)]
    forwards, backwards = plans(variants), plans(variants[::-1])[::-1]
    assert len(forwards) == len(backwards) == len(variants)
    different = [v for v, x, y in zip(variants, forwards, backwards) if x != y]
    assert not different, f"seed {seed}: {different[:5]}"
    assert any(len(set(forwards[i : i + 3])) > 1 for i in range(0, len(variants), 3))
