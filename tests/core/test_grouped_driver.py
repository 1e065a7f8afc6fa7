"""grouped_gemm on a libcuda that runs nothing (support/fake_libcuda.c): what it launches, and that the host reads
neither `ends` nor what else the kernel reads."""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path

import pytest
from fake_driver_calls import launches, run
from python_server import python

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

HIDDEN = """
    import ctypes, mmap
    import numpy as np
    def hidden(count, dtype):
        # An array in memory that the process may not access.
        memory = mmap.mmap(-1, (count // 1024 + 1) * 4096)
        array = np.frombuffer(memory, dtype, count)
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(len(memory)), 0) == 0
        return array
"""

CALL = (
    HIDDEN
    + """
    def call(t, n, k, e, parts=1, ends=None, nvfp4_a=False, activation=None):
        a, b = np.zeros((3, k), np.float16), np.zeros((e, parts, n, k // 2), np.uint8)
        extra = {"scale_a": None, "rows": hidden(t, np.int32)}
        if nvfp4_a:
            a, scale_a = np.zeros((t, k // 2), np.uint8), np.zeros((t // 128 + e) * -(-k // 64) * 512, np.uint8)
            extra = {"scale_a": scale_a, "scale_rows": hidden(e, np.int32)}
        scale = np.zeros(e * parts * -(-n // 128) * -(-k // 64) * 512, np.uint8)
        ends = hidden(e, np.int32) if ends is None else np.int32(ends)
        extra |= {"row_scale": hidden(t, np.float32), "backend": "sm80"}
        if activation:
            return nvfp4.gated_grouped_gemm(a, b, scale_b=scale, ends=ends, activation=activation, **extra)
        return nvfp4.grouped_gemm(a, b, scale_b=scale, ends=ends, **extra)
"""
)


def launched(code: str, fake_driver: Path, log: Path, **variables: str) -> list[tuple[str, int]]:
    """Kernels and their grids. From sm_90 on they may start before the grid before them has ended: they wait for it
    first (tests/kernels/test_dependent_sass.py)."""
    rows = launches(f"{CALL.strip()}\n    {code}", fake_driver, log, **variables)
    programmatic = str(int(min(int(variables.get(name, "90")) for name in ("FAKE_CC", "FAKE_PTX")) >= 90))
    assert all(row[5:] == ["0", programmatic] for row in rows)  # cluster, programmatic dependent launch
    return [(row[0], int(row[1])) for row in rows]


@pytest.mark.parametrize(("nvfp4_a", "kind"), [(False, "fp16"), (True, "w4a4")])
@pytest.mark.parametrize("capability", ["80", "90", "100", "120"])
def test_one_launch(nvfp4_a: bool, kind: str, capability: str, fake_driver: Path, tmp_path: Path) -> None:
    """There is one for any number of groups. Ends, rows, where scales begin and the rows' factors are in memory that is
    not accessible."""
    calls = f"[call(t, 200, 96, e, p, nvfp4_a={nvfp4_a}) for t in (1, 37, 2000) for p in (1, 2)]"
    rows = launched(f"for e in (1, 8, 1024): {calls}", fake_driver, tmp_path / "log", FAKE_CC=capability)
    assert len(rows) == 18 and all(name.startswith(f"nvfp4_sm80_grouped_{kind}_") for name, _ in rows)


@pytest.mark.parametrize("capability", ["80", "90", "100", "120"])
def test_an_activation_follows_the_product(capability: str, fake_driver: Path, tmp_path: Path) -> None:
    """No kernel of sm80 computes both. The host reads none of the numbers, and the second grid may start early."""
    forms = ((1, "silu", False), (2, "silu", True), (1, "relu2", True), (2, "swiglu", False), (2, "gelu_tanh", False))
    calls = [f"call(37, 200, 96, 8, {p}, nvfp4_a={a}, activation='{name}')" for p, name, a in forms]
    rows = launched("; ".join(calls), fake_driver, tmp_path / "log", FAKE_CC=capability)
    products = [f"nvfp4_sm80_grouped_{'w4a4' if a else 'fp16'}_" for _, _, a in forms]
    assert all(name.startswith(product) for (name, _), product in zip(rows[::2], products, strict=True))
    assert [name for name, _ in rows[1::2]] == [f"nvfp4_gated_{name}" for _, name, _ in forms]


def test_info_shows_an_activation(fake_driver: Path) -> None:
    """The workspace has the products of both parts, where another kernel computes the activation."""
    code = """
        for a_dtype in ("float16", None):
            forms = [{}, {"operation": "gated_grouped_gemm"}]
            shape = {"groups": 8, "a_dtype": a_dtype, "device": 0, "backend": "sm80"}
            plans = [nvfp4.info(37, 200, 96, **shape, **form)["plan"] for form in forms]
            print(*(plan["fused"] for plan in plans), plans[1]["workspace"] - plans[0]["workspace"])
    """
    assert run(code, fake_driver, FAKE_CC="90").splitlines() == [f"False False {37 * 2 * 200 * 2}"] * 2


def test_one_launch_on_hopper(fake_driver: Path) -> None:
    """For groups of rows of 16 bits, in products long enough that no other launch hides the activation's."""
    code = """
        for t, a_dtype in ((32, "bfloat16"), (512, "float16"), (8, "bfloat16"), (32768, "bfloat16"), (32, None)):
            form = {"groups": 128, "a_dtype": a_dtype, "device": 0, "operation": "gated_grouped_gemm"}
            plan = nvfp4.info(t, 768, 2048, **form)["plan"]
            print(plan["fused"], plan["kernel"] if plan["fused"] else "")
    """
    one = [f"True nvfp4_sm90_grouped_{kernel}" for kernel in ("units_bf16_8", "few_fp16_256x16")]
    assert [line.strip() for line in run(code, fake_driver, FAKE_CC="90").splitlines()] == [
        *one,
        "False",
        "True nvfp4_sm90_grouped_bf16_256x152",
        "False",
    ]


def test_code_that_does_not_wait_starts_after_the_grid_before(fake_driver: Path, tmp_path: Path) -> None:
    """A build with PTX of sm_80 alone, on a GPU that could start it early."""
    launched("call(37, 200, 96, 4)", fake_driver, tmp_path / "log", FAKE_PTX="80")


def test_the_guard() -> None:
    """The host may not read that memory."""
    code = textwrap.dedent(CALL) + "\nhidden(3, np.int32)[0]"
    assert python("-c", code, library="numpy").returncode == -signal.SIGSEGV


def test_the_grid_does_not_depend_on_the_ends(fake_driver: Path, tmp_path: Path) -> None:
    code = "[call(37, 200, 96, 4, ends=ends) for ends in ([37] * 4, [0] * 4, [1, 2, 3, 37], [9, -1, 50, 2])]"
    rows = launched(code, fake_driver, tmp_path / "log")
    assert len(rows) == 4 and len(set(rows)) == 1


@pytest.mark.parametrize("nvfp4_a", [False, True])
def test_the_grid_has_a_tile_for_every_row(nvfp4_a: bool, fake_driver: Path, tmp_path: Path) -> None:
    """A group with rows adds less than a tile to T / tile_m, and a part as many CTAs as another."""
    routings = ((5, 8), (1000, 8), (64, 1), (3000, 1024))
    code = f"[call(t, 130, 96, e, 2, nvfp4_a={nvfp4_a}) for t, e in {routings}]"
    rows = launched(code, fake_driver, tmp_path / "log")
    assert len({name for name, _ in rows}) > 1  # tiles of another height for more rows
    for (name, grid), (t, e) in zip(rows, routings, strict=True):
        tile_m = int(name.rpartition("_")[2].partition("x")[0])
        assert grid == (t + min(t, e) * (tile_m - 1)) // tile_m * 3 * 2  # two tiles for 128 columns, one for two more


def test_no_rows_are_no_launch(fake_driver: Path, tmp_path: Path) -> None:
    code = "call(0, 130, 96, 3); call(5, 0, 96, 3); call(5, 130, 96, 0)"
    assert launched(code, fake_driver, tmp_path / "log") == []


def test_lists_of_matrices_run_on_the_cpu_alone(fake_driver: Path, tmp_path: Path) -> None:
    """Also where the GPU reads host memory, as GH200 does."""
    code = """
    a, b, scale = np.zeros((4, 64), np.float16), np.zeros((7, 32), np.uint8), np.zeros((7, 4), np.uint8)
    nvfp4.grouped_gemm(a, [b, b], None, [scale, scale], np.int32([1, 4]), scale_layout="linear", backend="sm80")
    """
    said = run(code.strip(), fake_driver, FAKE_LOG=str(tmp_path / "log"))
    assert said == "b: is a list but the backend runs on a GPU; must be one tensor there"
    assert not (tmp_path / "log").exists()


def test_a_backend_without_such_a_kernel(fake_driver: Path) -> None:
    code = CALL.strip().replace('"sm80"', '"sm100"') + "\n    call(5, 7, 0, 3)"
    said = run(code, fake_driver, FAKE_CC="100")
    assert said == (
        "a: dtype is float16, which the sm100 kernels multiply by b with 128x4 scales and rows and batches on 16 bytes "
        "alone, and with K above 0; must be uint8 or float4_e2m1fn_x2, or the backend sm80"
    )


@pytest.mark.parametrize(("nvfp4_a", "a_dtype"), [(False, "float16"), (True, None)])
def test_info_shows_what_is_launched(nvfp4_a: bool, a_dtype: str | None, fake_driver: Path, tmp_path: Path) -> None:
    """A GPU whose own backend does not take the groups runs sm80's kernels, and info says so."""
    code = f"call(37, 200, 96, 4, nvfp4_a={nvfp4_a})"
    (name, grid), *more = launched(code, fake_driver, tmp_path / "log", FAKE_CC="100")
    assert not more
    plan = f"nvfp4.info(37, 200, 96, groups=4, a_dtype={a_dtype!r}, device=0)['plan']"
    code = f"p = {plan}; print(p['backend'], p['kernel'], p['grid'])"
    assert run(code, fake_driver, FAKE_CC="100").split() == ["sm80", name, str(grid)]


REORDER = "nvfp4_sm90_reorder"


# ---- sm90: a CTA an SM, behind a pre-pass over A where groups have many rows ----


def launched_by_sm90(code: str, fake_driver: Path, log: Path) -> list[tuple[str, int]]:
    """Products, each dependent on the launch before: sm90/grouped.cu on its pre-pass."""
    call = CALL.strip().replace('"sm80"', '"sm90"')
    rows = [row for row in launches(f"{call}\n    {code}", fake_driver, log, FAKE_CC="90") if row[0] != "map"]
    assert all(row[5:] == ["0", "1"] for row in rows)
    names = [row[0] for row in rows]
    for before, name in zip(["", *names], names):
        has_pre_pass = "_units_" not in name and "_few_" not in name
        assert name == REORDER or has_pre_pass == (before == REORDER)
    return [(row[0], int(row[1])) for row in rows if row[0] != REORDER]


def test_sm90_has_one_launch_or_two(fake_driver: Path, tmp_path: Path) -> None:
    """The number of groups does not matter. Ends, rows and their factors are in memory that is not accessible."""
    code = "for e in (1, 8, 1024): [call(t, 200, 96, e, parts) for t in (1, 37, 20000) for parts in (1, 2)]"
    rows = launched_by_sm90(code, fake_driver, tmp_path / "log")
    kinds = {name.removeprefix("nvfp4_sm90_grouped_").partition("fp16_")[0] for name, _ in rows}
    assert len(rows) == 18 and kinds == {"units_", "few_", ""}


def test_sm90_grid_does_not_depend_on_the_ends(fake_driver: Path, tmp_path: Path) -> None:
    code = "[call(37, 200, 96, 4, ends=ends) for ends in ([37] * 4, [0] * 4, [1, 2, 3, 37], [9, -1, 50, 2])]"
    rows = launched_by_sm90(code, fake_driver, tmp_path / "log")
    assert len(rows) == 4 and len(set(rows)) == 1


def test_sm90_grid_is_at_most_a_cta_an_sm(fake_driver: Path, tmp_path: Path) -> None:
    code = "call(1, 100, 96, 8); call(5, 100, 96, 8); call(30000, 300, 96, 8)"
    rows = launched_by_sm90(code, fake_driver, tmp_path / "log")
    sms = int(run("print(nvfp4.info()['devices'][0]['sm_count'])", fake_driver, FAKE_CC="90"))
    grids = [grid for _, grid in rows]
    assert grids == sorted(grids) and grids[0] < sms == grids[-1]


def test_sm90_dequantizes_an_nvfp4_a(fake_driver: Path, tmp_path: Path) -> None:
    """By a grid of its own, which depends on T, E and K alone. Where scales begin is not accessible either."""
    call = CALL.strip().replace('"sm80"', '"sm90"')
    sizes = [(t, k, e) for t in (1, 37, 2000) for k in (96, 1056) for e in (1, 8, 1024)]
    code = f"[call(t, 200, k, e, 2, nvfp4_a=True) for t, k, e in {sizes}]"
    rows = launches(f"{call}\n    {code}", fake_driver, tmp_path / "log", FAKE_CC="90")
    rows = [row for row in rows if row[0] != "map"]
    assert all(row[5:] == ["0", "1"] for row in rows)
    before, after = rows[::2], rows[1::2]
    assert {row[0] for row in before} == {f"{REORDER}_e2m1"}
    assert [int(row[1]) for row in before] == [(t + min(t, e) * 31) // 32 * (1 + k // 1024) for t, k, e in sizes]
    assert len(after) == 18 and all(row[0].startswith("nvfp4_sm90_grouped_fp16_") for row in after)


@pytest.mark.parametrize(("t", "backend"), [(8, "sm80"), (512, "sm80"), (4096, "sm90"), (65536, "sm90")])
def test_sm90_plans_of_an_nvfp4_a(t: int, backend: str, fake_driver: Path) -> None:
    """Few rows a group stay with sm80's kernel."""
    plan = f"nvfp4.info({t}, 4096, 7168, groups=256, device=0)['plan']"
    assert run(f"print({plan}['backend'])", fake_driver, FAKE_CC="90") == backend


def test_sm90_rejects_what_tensor_maps_do_not_reach(fake_driver: Path) -> None:
    code = CALL.strip().replace('"sm80"', '"sm90"') + "\n    call(5, 7, 48, 3)"
    said = run(code, fake_driver, FAKE_CC="90")
    assert said.startswith("b: has linear scales, or rows of a or b lie otherwise than on 16 bytes")


@pytest.mark.parametrize(
    ("t", "n", "kernel"),
    [
        (64, 512, "units_bf16_8"),
        (512, 512, "few_bf16_256x16"),
        (8192, 512, "few_bf16_256x48"),
        (65536, 2048, "bf16_256x152"),
    ],
)
def test_a_plan_for_few_and_for_many_rows(t: int, n: int, kernel: str, fake_driver: Path) -> None:
    plan = f"nvfp4.info({t}, {n}, 2048, groups=256, a_dtype='bfloat16', device=0)['plan']"
    assert run(f"print({plan}['kernel'])", fake_driver, FAKE_CC="90") == f"nvfp4_sm90_grouped_{kernel}"


# ---- sm100 and sm120: a CTA an SM, NVFP4 a ----

OF_NVFP4_A = pytest.mark.parametrize("backend", ["sm100", "sm120"])


def launched_by(backend: str, code: str, fake_driver: Path, log: Path) -> tuple[list[list[str]], list[tuple[str, int]]]:
    """Tensor maps, and launches that may start early."""
    call = CALL.strip().replace('"sm80"', f'"{backend}"')
    rows = launches(f"{call}\n    {code}", fake_driver, log, FAKE_CC=backend.removeprefix("sm"))
    own = [row for row in rows if row[0] != "map"]
    assert all(row[5:] == ["0", "1"] for row in own)  # cluster, programmatic dependent launch
    return [row for row in rows if row[0] == "map"], [(row[0], int(row[1])) for row in own]


@OF_NVFP4_A
def test_one_launch_for_all_groups(backend: str, fake_driver: Path, tmp_path: Path) -> None:
    """Ends and where scales begin are in memory that is not accessible. There is a tensor map of all matrices, and one
    of A."""
    calls = "[call(t, 200, 192, e, p, nvfp4_a=True) for t in (1, 37, 2000) for p in (1, 2)]"
    maps, rows = launched_by(backend, f"for e in (1, 8, 1024): {calls}", fake_driver, tmp_path / "log")
    assert len(rows) == 18 and all(name.startswith(f"nvfp4_{backend}_grouped_") for name, _ in rows)
    sizes = [(e * p, t) for e in (1, 8, 1024) for t in (1, 37, 2000) for p in (1, 2)]
    wanted = [dims for l, t in sizes for dims in (f"96,200,{l}", f"96,{t},1")]
    assert [row[3] for row in maps] == wanted and all(row[6] in ("64", "128") for row in maps)


@OF_NVFP4_A
def test_a_grid_is_at_most_a_cta_an_sm(backend: str, fake_driver: Path, tmp_path: Path) -> None:
    """It does not depend on the ends."""
    routings = "([37] * 4, [0] * 4, [1, 2, 3, 37], [9, -1, 50, 2])"
    code = f"[call(37, 200, 192, 4, ends=ends, nvfp4_a=True) for ends in {routings}]"
    _, rows = launched_by(backend, code, fake_driver, tmp_path / "ends")
    assert len(rows) == 4 and len(set(rows)) == 1
    code = "call(1, 100, 192, 8, nvfp4_a=True); call(30000, 300, 192, 8, nvfp4_a=True)"
    _, rows = launched_by(backend, code, fake_driver, tmp_path / "sizes")
    capability = backend.removeprefix("sm")
    sms = int(run("print(nvfp4.info()['devices'][0]['sm_count'])", fake_driver, FAKE_CC=capability))
    assert [grid for _, grid in rows] == [1, sms]


@pytest.mark.parametrize("capability", ["80", "90", "100", "120"])
def test_launches_of_a_quantized_activation(capability: str, fake_driver: Path, tmp_path: Path) -> None:
    """One on a B200; elsewhere the product, with the pre-pass of sm90, and gated_quantize."""
    call = """
    t, n, k, e = 37, 64, 128, 4
    a, scale_a = np.zeros((t, k // 2), np.uint8), np.zeros((t // 128 + e) * 1024, np.uint8)
    b, scale_b = np.zeros((e, 2, n, k // 2), np.uint8), np.zeros(e * 2 * 1024, np.uint8)
    form = {"ends": hidden(e, np.int32), "scale_rows": hidden(e, np.int32), "global_scale": np.ones(e, np.float32)}
    nvfp4.gated_grouped_quantize(a, b, scale_a, scale_b, backend="BACKEND", **form)
    """
    backend = f"sm{capability}"
    code = f"{CALL.strip()}\n    {call.strip().replace('BACKEND', backend)}"
    rows = launches(code, fake_driver, tmp_path / "log", FAKE_CC=capability)
    names = [row[0] for row in rows if row[0] != "map"]
    if backend == "sm100":
        assert names == ["nvfp4_sm100_grouped_gated_128x64"]
    else:
        *products, last = names
        assert last == "nvfp4_gated_quantize_silu" and f"nvfp4_{backend}_grouped" in products[-1]


@pytest.mark.parametrize(("n", "kernel"), [(1280, "gated_128x256"), (1264, "gated_128x128")])
def test_pairs_on_sm100(n: int, kernel: str, fake_driver: Path, tmp_path: Path) -> None:
    """Many rows a group are a pair's, a cluster of two CTAs that loads by four tensor maps, where rows of gate and up
    can be interleaved. a may be without scales."""
    for rows in (0, 9 * 2048):
        code = f"""{CALL.strip()}
    t, n, k, e = 16384, {n}, 2048, 8
    a, scale_a = np.zeros((t, k // 2), np.uint8), np.zeros({rows} // 128 * k * 8, np.uint8)
    b, scale_b = np.zeros((e, 2, n, k // 2), np.uint8), np.zeros(e * 2 * 10 * k * 8, np.uint8)
    form = {{"ends": hidden(e, np.int32), "scale_rows": hidden(e, np.int32), "global_scale": np.ones(e, np.float32)}}
    nvfp4.gated_grouped_quantize(a, b, scale_a, scale_b, backend="sm100", **form)
    """
        found = launches(code, fake_driver, tmp_path / f"log{rows}", FAKE_CC="100")
        (*maps, (name, *_, cluster, _)), pair = found, kernel == "gated_128x256"
        assert name == f"nvfp4_sm100_grouped_{kernel}" and cluster == ("2" if pair else "0")
        assert [row[1:3] for row in maps] == (
            [["8", "4"], ["8", "3"], ["16", "4"], ["16", "4"]] if pair else [["8", "3"]] * 2
        )


@pytest.mark.parametrize(("k", "layout"), [(96, "128x4"), (128, "linear")])
def test_errors_of_groups_on_sm100(k: int, layout: str, fake_driver: Path) -> None:
    """The layout of scales and K that the kernels need."""
    code = f"""
    a, b = np.zeros((5, {k // 2}), np.uint8), np.zeros((3, 8, {k // 2}), np.uint8)
    if {layout!r} == "linear":
        scales = {{"scale_a": np.zeros((5, {k // 16}), np.uint8), "scale_b": np.zeros((3, 8, {k // 16}), np.uint8)}}
    else:
        scales = {{name: np.zeros(3 * {-(-k // 64)} * 512, np.uint8) for name in ("scale_a", "scale_b")}}
        scales["scale_rows"] = hidden(3, np.int32)
    form = {{"scale_layout": {layout!r}, "ends": hidden(3, np.int32), "backend": "sm100"}}
    nvfp4.grouped_gemm(a, b, **scales, **form)
    """
    said = run(f"{CALL.strip()}\n    {code.strip()}", fake_driver, FAKE_CC="100")
    assert said == (
        "scale_layout: is linear, which the sm100 kernels of groups do not take; must be 128x4, or the backend sm80"
        if layout == "linear"
        else "b: K is 96, which the sm100 kernels of groups do not take; must be a multiple of 64, or the backend sm80"
    )


@pytest.mark.parametrize(("k", "maps"), [(64, 2), (48, 0)])
def test_sm120_gathers_rows(k: int, maps: int, fake_driver: Path, tmp_path: Path) -> None:
    """They have linear scales. Rows of 24 bytes have no tensor map."""
    call = f"""
    e, n, k, t = 3, 8, {k}, 5
    a, b = np.zeros((t, k // 2), np.uint8), np.zeros((e, n, k // 2), np.uint8)
    scales = {{"scale_a": np.zeros((t, k // 16), np.uint8), "scale_b": np.zeros((e, n, k // 16), np.uint8)}}
    form = {{"scale_layout": "linear", "ends": hidden(e, np.int32), "rows": hidden(t, np.int32), "backend": "sm120"}}
    nvfp4.grouped_gemm(a, b, **scales, **form)
    """
    found, rows = launched_by("sm120", call.strip(), fake_driver, tmp_path / "log")
    assert len(found) == maps and [grid for _, grid in rows] == [3]  # a tile for each group


@OF_NVFP4_A
@pytest.mark.parametrize("a_dtype", [None, "float16", "bfloat16"])
def test_plans_of_groups_on_blackwell(a_dtype: str | None, backend: str, fake_driver: Path) -> None:
    """A 16-bit A of many rows stays with sm80."""
    for t in (128, 8192):
        plan = f"nvfp4.info({t}, 768, 2048, groups=128, a_dtype={a_dtype!r}, device=0)['plan']"
        chosen = run(f"print({plan}['backend'])", fake_driver, FAKE_CC=backend.removeprefix("sm"))
        assert chosen == ("sm80" if a_dtype and t > 128 else backend)
