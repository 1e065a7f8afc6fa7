"""The definition itself: against exact rational arithmetic, torch's own types, and plain YAML."""

from __future__ import annotations

import json
import math
import random
import runpy
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from paths import ROOT, TESTS

from nvfp4 import reference

VECTORS = TESTS / "vectors"


def test_tables() -> None:
    e4m3 = reference.e4m3_table()
    as_torch = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    assert torch.equal(e4m3[:127], as_torch[:127]) and e4m3[127].isnan()
    assert torch.equal(e4m3[128:255], e4m3[:127]) and e4m3[255].isnan()
    assert reference.e2m1_table()[:8].tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert reference.e2m1_table()[8:].tolist() == [-x for x in reference.e2m1_table()[:8].tolist()]


def exact(values: torch.Tensor) -> list[Fraction]:
    return [Fraction(x) for x in values.tolist()]


def test_gemm_is_the_rounded_exact_sum() -> None:
    data = reference.generate_input(3, 4, 80, 1, seed=random.randrange(2**31), scales="finite", device="cpu")
    a, b, sfa, sfb = (x[0] for x in reference.batch_first(data))
    got = reference.gemm(a, b, sfa, sfb, scale_layout="linear", out_dtype=torch.float32)
    for i, row in enumerate(reference.operand(a, sfa, "linear")[0]):
        for j, column in enumerate(reference.operand(b, sfb, "linear")[0]):
            total = sum((x * y for x, y in zip(exact(row), exact(column), strict=True)), Fraction(0))
            nearest = torch.tensor(float(total), dtype=torch.float64).float()  # no more than 53 bits: exact in fp64
            assert Fraction(float(total)) == total
            assert got[i, j] == nearest


def test_fma_rounds_once() -> None:
    rng = random.Random()
    count = 20000

    def numbers(bits: int) -> torch.Tensor:
        """Few exponents and mantissas of extremes, so that ties and cancellations are frequent."""
        values = [
            (-1) ** rng.randrange(2)
            * math.ldexp(
                rng.choice([1 << 23, (1 << 24) - 1, (1 << 23) + 1, rng.getrandbits(24) | 1]), rng.randrange(-bits, 1)
            )
            for _ in range(count)
        ]
        return torch.tensor(values, dtype=torch.float32)

    x, y, z = numbers(24), numbers(24), numbers(60)
    z[::4] = -(x[::4] * y[::4])
    got = reference.fma(x, y, z)
    up, down = (torch.nextafter(got, torch.tensor(limit)) for limit in (math.inf, -math.inf))
    for i in range(count):
        total = Fraction(x[i].item()) * Fraction(y[i].item()) + Fraction(z[i].item())
        here = Fraction(got[i].item())
        error = abs(total - here)
        for other in (up[i], down[i]):
            gap = abs(total - Fraction(other.item()))
            assert error < gap or (error == gap and got[i : i + 1].view(torch.int32).item() % 2 == 0)


def test_fma_of_what_is_not_finite() -> None:
    inf, nan = math.inf, math.nan
    x, y, z = torch.tensor([[inf, inf, 0.0, 1.0, 1.0], [2.0, 0.0, inf, 1.0, -1.0], [1.0, 1.0, 1.0, -inf, 1.0]])
    expected = torch.tensor([inf, nan, nan, -inf, 0.0])
    assert reference.compare(reference.fma(x, y, z), expected, exact=True)[0]


@pytest.mark.parametrize("task", reference.TASKS)
def test_task_is_yaml(task: str) -> None:
    yaml = pytest.importorskip("yaml")
    text = Path(reference.__file__).with_name(reference.TASKS[task]).read_text()
    by_yaml, mine = yaml.safe_load(text), reference.load_task(task)
    assert mine["name"] == task
    assert mine["rtol"] == mine["atol"] == reference.RTOL == reference.ATOL
    assert {**by_yaml, "rtol": float(by_yaml["rtol"]), "atol": float(by_yaml["atol"])} == mine


def test_task_yml_shapes() -> None:
    task = reference.load_task()
    shapes = {
        name: [(t["m"], t["n"], t["k"], t["l"], t["seed"]) for t in task[name]] for name in ("tests", "benchmarks")
    }
    assert len(shapes["tests"]) == 10 and shapes["tests"][5] == (2304, 4608, 7168, 1, 1111)
    assert [s[:3] for s in shapes["benchmarks"]] == [(128, 7168, 16384), (128, 4096, 7168), (128, 7168, 2048)]


def test_gemv_task_shapes() -> None:
    task = reference.load_task("nvfp4_gemv")
    entries = task["tests"] + task["benchmarks"]
    assert {(entry["n"], entry["b_rows"], entry["seed"]) for entry in entries} == {(1, 128, 1111)}
    shapes = [(entry["m"], entry["k"], entry["l"]) for entry in entries]
    assert len(task["tests"]) == 10 and shapes[5] == (2432, 4608, 2)
    assert shapes[10:] == [(7168, 16384, 1), (4096, 7168, 8), (7168, 2048, 4)]


def test_load_task_finds_its_files(tmp_path: Path) -> None:
    """By a task's name or a path, beside the module in the package or, from the file above it, within."""
    assert reference.load_task() == reference.load_task("nvfp4_gemm")
    own = tmp_path / "task.yml"
    own.write_text("name: mine\ntests:\n  - {m: 1, n: 2, k: 16, l: 1, seed: 3}\n")
    for path in (own, str(own)):
        assert reference.load_task(path) == {"name": "mine", "tests": [{"m": 1, "n": 2, "k": 16, "l": 1, "seed": 3}]}
    above = ROOT / "reference.py"
    if (above.parent / "nvfp4" / "task_gemv.yml").exists():
        for task in reference.TASKS:
            assert runpy.run_path(str(above))["load_task"](task) == reference.load_task(task)
    with pytest.raises(FileNotFoundError, match="nvfp4_gemx"):
        reference.load_task("nvfp4_gemx")


@pytest.mark.parametrize("scales", reference.SCALE_SETS)
def test_generate_input(scales: str) -> None:
    m, n, k, batch = 130, 5, 144, 3
    data = reference.generate_input(m, n, k, batch, seed=7, scales=scales, device="cpu")
    a, b, sfa, sfb, sfa_permuted, sfb_permuted, c = data
    assert a.shape == (m, k // 2, batch) and a.stride() == (k // 2, 1, m * k // 2) and b.shape == (n, k // 2, batch)
    assert a.dtype == b.dtype == torch.float4_e2m1fn_x2
    assert sfa.shape == (m, k // 16, batch) and sfa.stride() == (k // 16, 1, m * k // 16) and sfb.shape[0] == n
    assert sfa_permuted.shape == (32, 4, 2, 4, 3, batch) and sfb_permuted.shape == (32, 4, 1, 4, 3, batch)
    assert sfa_permuted.permute(5, 2, 4, 0, 1, 3).is_contiguous()
    assert {x.dtype for x in (sfa, sfb, sfa_permuted, sfb_permuted)} == {torch.float8_e4m3fn}
    assert c.shape == (m, n, batch) and c.stride() == (n, 1, m * n) and c.dtype == torch.float16 and c.isnan().all()
    drawn = set(sfa.view(torch.uint8).flatten().tolist()) | set(sfb.view(torch.uint8).flatten().tolist())
    assert drawn == set(reference.SCALE_SETS[scales])
    if scales == "contest":
        assert {float(x) for x in reference.decode_e4m3(sfa).flatten()} == {0, 1, 2, 3}
    again = reference.generate_input(m, n, k, batch, seed=7, scales=scales, device="cpu")
    other = reference.generate_input(m, n, k, batch, seed=8, scales=scales, device="cpu")
    assert all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(data[:6], again[:6], strict=True))
    assert not any(
        torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(data[:2], other[:2], strict=True)
    )


def test_rows_of_b_that_do_not_count() -> None:
    """They hold random values under NaN, change no result, and reach every result of a kernel that reads them."""
    m, n, k, batch = 9, 2, 80, 3
    data = reference.generate_input(m, n, k, batch, seed=5, b_rows=130, device="cpu")
    a, b, _, sfb, _, sfb_permuted, c = data
    assert b.shape == (130, k // 2, batch) and sfb.shape == (130, k // 16, batch) and c.shape == (m, n, batch)
    assert sfb_permuted.shape == (32, 4, 2, 4, 2, batch)
    linear = reference.unswizzle(sfb_permuted.permute(5, 2, 4, 0, 1, 3), 130, k // 16)
    assert torch.equal(linear.view(torch.uint8), sfb.permute(2, 0, 1).contiguous().view(torch.uint8))
    assert reference.decode_e4m3(sfb[n:]).isnan().all() and not reference.decode_e4m3(sfb[:n]).isnan().any()
    assert len(set(b[n:].contiguous().view(torch.uint8).flatten().tolist())) == 256
    result = reference.ref_kernel(data)
    assert result.shape == c.shape and not result.isnan().any()
    assert reference.check_implementation(data, result, exact=True) == (True, "every bit is equal")
    b.view(torch.uint8)[n:] ^= 0xFF
    assert torch.equal(reference.ref_kernel(data), result)
    every_row = (*data[:6], torch.empty(m, 130, batch, dtype=torch.float16))
    assert reference.ref_kernel(every_row)[:, n:].isnan().all()
    with pytest.raises(ValueError, match="b cannot have 1 rows if 2 of them count"):
        reference.generate_input(m, n, k, batch, seed=5, b_rows=1, device="cpu")


def test_all_bytes_are_drawn() -> None:
    data = reference.generate_input(64, 64, 512, 1, seed=1, device="cpu")
    assert all(len(set(x.view(torch.uint8).flatten().tolist())) == 256 for x in data[:2])


def test_check_implementation() -> None:
    data = reference.generate_input(65, 33, 96, 2, seed=3, device="cpu")
    right = reference.ref_kernel(data)
    assert right.shape == data[6].shape and right.stride() == data[6].stride()
    for exact_too in (False, True):
        assert reference.check_implementation(data, right, exact=exact_too)[0]
    near = right.clone()
    near[4, 5, 1] *= 1 - 2**-11  # to the next fp16 number: off by at most 2^-10 of it
    assert near[4, 5, 1] != right[4, 5, 1] and reference.check_implementation(data, near)[0]
    ok, message = reference.check_implementation(data, near, exact=True)
    assert not ok and message.startswith("1 of 4290 values are wrong, the first at [4, 5, 1]")
    assert not reference.check_implementation(data, data[6])[0]  # NaN
    assert "expected torch.float16 of shape" in reference.check_implementation(data, right.float())[1]
    far = right.clone()
    far[0, 0, 0] += 1 + abs(far[0, 0, 0]) / 100
    assert not reference.check_implementation(data, far)[0]


def test_exact_mode_rejects_inexact_data() -> None:
    data = reference.generate_input(9, 9, 96, 1, seed=3, scales="finite", device="cpu")
    with pytest.raises(ValueError, match="depend on their order"):
        reference.check_implementation(data, reference.ref_kernel(data), exact=True)


def test_sums_are_exact() -> None:
    six, half = torch.full((1, 1, 16384), 18.0), torch.full((1, 1, 16384), 0.5)
    assert reference.sums_are_exact(six[..., :12944], six[..., :12944])
    assert not reference.sums_are_exact(six[..., :12960], six[..., :12960])
    assert reference.sums_are_exact(six, half)
    assert not reference.sums_are_exact(half, half / 2)


# --- tests/vectors, data for other implementations ----------------------------------------------------------------


def load(name: str) -> dict:
    return json.loads((VECTORS / name).read_text())


def test_vectors_products() -> None:
    table = load("products.json")["value_times_scale"]
    values = reference.e2m1_table()[None, :] * reference.e4m3_table()[:, None]
    expected = [[None if math.isnan(x) else x for x in row] for row in values.tolist()]
    assert table == expected


def test_vectors_layout() -> None:
    for case in load("layout.json")["cases"]:
        rows, columns = case["rows"], case["columns"]
        marks = torch.zeros(rows, columns, dtype=torch.uint8)
        for row, column, offset in case["row_column_offset"]:
            marks[row, column] = 1
            swizzled = reference.swizzle(marks).flatten()
            assert swizzled.numel() == case["bytes"] and swizzled.nonzero().tolist() == [[offset]]
            marks[row, column] = 0


def test_vectors_quantize() -> None:
    for case in load("quantize.json")["cases"]:
        x = torch.tensor([float(v) for v in case["x"]]).view(1, 16)
        data, scale = reference.quantize(x, global_scale=case["global_scale"], scale_layout="linear")
        assert data.flatten().tolist() == case["data"] and scale.item() == case["scale"], case["name"]


def test_vectors_are_what_the_script_makes(tmp_path: Path) -> None:
    runpy.run_path(str(VECTORS / "make.py"))["write"](tmp_path)
    for made in tmp_path.iterdir():
        assert made.read_text() == (VECTORS / made.name).read_text()
    assert {p.name for p in tmp_path.iterdir()} == {p.name for p in VECTORS.glob("*.json")}
