"""The host's side of calls of the backends with kernels of their own, sm90, sm100 and sm120, on a libcuda that runs
nothing: messages, launches and their attributes, tensor maps."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from backend_table import LISTED
from fake_driver_calls import called, launches, run
from harness.headers import headers_of

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")


def test_errors_of_sm100(fake_driver: Path) -> None:
    code = "call(16, 16, 64, backend='sm100')"
    said = run(code, fake_driver, FAKE_CC="90")
    assert all(word in said for word in ["backend: is sm100", "10.0", "B200", "Fake GPU 0", "9.0", "sm80"]), said
    said = run(code, fake_driver, FAKE_CC="100", FAKE_FAIL="cuTensorMapEncodeTiled")
    assert all(word in said for word in ["tensor map of", "cuTensorMapEncodeTiled", "fake error"]), said
    said = run(code, fake_driver, FAKE_CC="100", FAKE_FAIL="cuLaunchKernelEx")
    assert "nvfp4_sm100_gemm" in said and "fake error" in said
    assert f"NVFP4_BACKEND: is 'sm99'; must be {LISTED}" in run(
        "call(16, 16, 64, backend=None)", fake_driver, NVFP4_BACKEND="sm99"
    )


def maps_and_launch(code: str, library: Path, log: Path, cc: str = "100") -> tuple[list[list[str]], list[str]]:
    *maps, launch = launches(code, library, log, FAKE_CC=cc)
    assert all(row[0] == "map" for row in maps) and launch[0].startswith(f"nvfp4_sm{cc}_gemm_")
    return maps, launch


def test_sm100_launches_clusters_that_may_start_early(fake_driver: Path, tmp_path: Path) -> None:
    """One launch, whose attributes are the plan's: CTAs of the pairs that share weights times parts of K, and
    programmatic serialization."""
    for shape in [(128, 7168, 16384), (128, 4096, 7168), (128, 7168, 2048), (1, 4096, 7168), (4096, 4096, 256)]:
        text = ", ".join(map(str, shape))
        log = tmp_path / text
        _, (name, grid, threads, shared, _, cluster, programmatic) = maps_and_launch(
            f"call({text}, backend='sm100')", fake_driver, log
        )
        plan = json.loads(
            run(f"import json; print(json.dumps(nvfp4.info({text}, device=0)['plan']))", fake_driver, FAKE_CC="100")
        )
        group = (2 if "256x" in name else 1) * (2 if name.endswith("multicast") else 1)
        assert name == plan["kernel"] and int(grid) == plan["grid"] and plan["workspace"] == 0
        assert int(cluster) == group * plan["split_k"] and int(grid) % int(cluster) == 0
        assert programmatic == "1" and threads == "192" and 0 < int(shared) <= 232448


def persistent_grid(library: Path, **variables: str) -> int:
    """CTAs of the first plan in clusters of 4 for 1024 tiles, which have no split of K."""
    lines = ["plans = []", "for i in range(96):", "    nvfp4._C.set_candidate(i)"]
    lines += ["    plans.append(nvfp4.info(8192, 8192, 8192, device=0, backend='sm100')['plan'])"]
    lines += ["names = ('nvfp4_sm100_gemm_256x256_multicast', 1)"]
    lines += ["print([p['grid'] for p in plans if (p['kernel'], p['split_k']) == names][0])"]
    return int(run("\n    ".join(lines), library, FAKE_CC="100", **variables))


@pytest.mark.parametrize(
    ("variables", "clusters"),
    [
        ({}, 32),  # of 33, 512 pairs of tiles in 16 rounds
        ({"FAKE_CLUSTERS": "70,20,9"}, 20),
        ({"FAKE_CLUSTERS": "74,37,18"}, 37),
        ({"FAKE_CLUSTERS": "74,0,0"}, None),
        ({"FAKE_FAIL": "cuOccupancyMaxActiveClusters"}, 32),
        ({"FAKE_FAIL": "cuOccupancyMaxActiveClusters", "FAKE_CLUSTERS": "70,20,9"}, 32),
    ],
)
def test_no_more_persistent_clusters_than_the_device_says(
    variables: dict[str, str], clusters: int | None, fake_driver: Path
) -> None:
    if clusters is None:
        with pytest.raises(AssertionError, match="IndexError"):
            persistent_grid(fake_driver, **variables)
    else:
        assert persistent_grid(fake_driver, **variables) == 4 * clusters


def test_the_device_is_asked_once(fake_driver: Path, tmp_path: Path) -> None:
    """For each kernel in clusters, of 2, 4 and 8, with one CTA an SM, and with two where there is room."""
    code = "call(128, 256, 256, backend='sm100'); call(128, 512, 256, backend='sm100')"
    _, entries = called(code, fake_driver, tmp_path / "log", FAKE_CC="100")
    asked = [i for i, entry in enumerate(entries) if entry == "cuOccupancyMaxActiveClusters"]
    kernels = len(headers_of("sm100").configs("gemm"))  # the others take what the driver says of these
    assert 3 * kernels < len(asked) < 6 * kernels and asked[-1] < entries.index("cuTensorMapEncodeTiled")
    _, entries = called("call(128, 256, 256, backend='sm90')", fake_driver, tmp_path / "90", FAKE_CC="90")
    assert "cuOccupancyMaxActiveClusters" not in entries


def test_tensor_maps_of_sm100(fake_driver: Path, tmp_path: Path) -> None:
    """A pair's four: values in the 128-byte swizzle, and scales by atoms of 256 two-byte elements."""
    maps, launch = maps_and_launch("call(128, 7168, 16384, backend='sm100')", fake_driver, tmp_path / "log")
    assert launch[0].startswith("nvfp4_sm100_gemm_256x128")
    assert maps == [
        ["map", "8", "3", "8192,7168,1", "8192,16", "128,128,1", "128"],  # the weights, 128 rows a CTA
        ["map", "8", "3", "8192,128,1", "8192,16", "128,64,1", "128"],  # half of the other side
        ["map", "16", "4", "256,256,56,1", "512,131072,16", "256,4,1,1", "0"],
        ["map", "16", "4", "256,256,1,1", "512,16,16", "256,4,1,1", "0"],
    ]
    # One CTA takes scales by plain copies. Batches: where the one before ends, the next begins.
    maps, launch = maps_and_launch("call(1, 4096, 7168, l=3, backend='sm100')", fake_driver, tmp_path / "batch")
    tile = launch[0].removeprefix("nvfp4_sm100_gemm_128x")
    assert int(tile) <= 16
    assert maps == [
        ["map", "8", "3", "3584,4096,3", "3584,14680064", "128,128,1", "128"],
        ["map", "8", "3", "3584,1,3", "16,3584", f"128,{tile},1", "128"],
    ]


def test_cp_async_kernels_of_sm100_need_no_tensor_map(fake_driver: Path, tmp_path: Path) -> None:
    for name, code, count in [
        ("tail", "call(5, 300, 80, backend='sm100')", 0),  # rows of 40 bytes
        ("scale tail", "call(5, 300, 96, backend='sm100')", 2),  # rows of 48
        ("no K", "call(5, 300, 0, backend='sm100')", 0),
    ]:
        maps, launch = maps_and_launch(code, fake_driver, tmp_path / name)
        assert len(maps) == count and ("cp_async" in launch[0]) == (name != "no K"), name


def test_tensor_maps_of_sm120(fake_driver: Path, tmp_path: Path) -> None:
    """Values of both operands, in the swizzle as wide as a row of a stage; none where threads load them."""
    for m, kernel in ((16, "128x16"), (2304, "256x128")):
        code = f"call({m}, 7168, 16384, backend='sm120')"
        maps, (name, _, _, _, _, cluster, programmatic) = maps_and_launch(code, fake_driver, tmp_path / kernel, "120")
        asked = f"nvfp4.info({m}, 7168, 16384, device=0, backend='sm120')['plan']"
        plan = json.loads(run(f"import json; print(json.dumps({asked}))", fake_driver, FAKE_CC="120"))
        assert name == plan["kernel"] == f"nvfp4_sm120_gemm_{kernel}"
        assert (int(cluster), programmatic) == (plan["split_k"], "1")
        of_tiles, box = kernel.split("x"), str(plan["tile_k"] // 2)
        sizes = (7168, m) if plan["swap_ab"] else (m, 7168)
        assert maps == [
            ["map", "8", "3", f"8192,{size},1", "8192,16", f"{box},{of_tile},1", box]
            for size, of_tile in zip(sizes, of_tiles)
        ]
    for name, k, count in (("tail", 80, 0), ("scale tail", 96, 2), ("no K", 0, 0)):
        code = f"call(5, 300, {k}, backend='sm120')"
        assert len(maps_and_launch(code, fake_driver, tmp_path / name, "120")[0]) == count, name


def test_errors_of_sm120(fake_driver: Path) -> None:
    said = run("call(16, 16, 64, backend='sm120')", fake_driver, FAKE_CC="100")
    assert all(word in said for word in ["backend: is sm120", "12.0", "RTX 50", "Fake GPU 0", "10.0", "sm80"]), said
    code = "nvfp4.info(33, 64, 64, device=0, backend='sm120', a_dtype='float16')"
    assert run(code, fake_driver, FAKE_CC="120") == (
        "a: dtype is float16 and M is 33, where the sm120 kernels multiply up to 16 rows of that type; must be uint8 "
        "or float4_e2m1fn_x2, or the backend sm80"
    )


def test_errors_of_sm90(fake_driver: Path) -> None:
    code = "call(16, 16, 64, backend='sm90')"
    for cc, name in {"80": "8.0", "89": "8.9", "100": "10.0", "120": "12.0"}.items():
        said = run(code, fake_driver, FAKE_CC=cc)
        assert all(word in said for word in ["backend: is sm90", "9.0", "H100", "Fake GPU 0", name, "sm80"]), said
    said = run(code, fake_driver, FAKE_FAIL="cuTensorMapEncodeTiled")
    assert all(word in said for word in ["tensor map of", "cuTensorMapEncodeTiled", "fake error"]), said
    said = run(code, fake_driver, FAKE_FAIL="cuLaunchKernelEx")
    assert "nvfp4_sm90_units" in said and "fake error" in said
    said = run("call(96, 7168, 2048, backend='sm90')", fake_driver, FAKE_FAIL="cuLaunchKernelEx")
    assert "nvfp4_sm90_dequant" in said and "fake error" in said


def test_sm90_launches_clusters_that_may_start_early(fake_driver: Path, tmp_path: Path) -> None:
    """After the dequantize pre-pass of an operand with more than 16 rows, which _raw kernels do not have, a launch with
    the attributes of the plan: a cluster of split_k CTAs, and programmatic dependent launch."""
    for shape in [(128, 7168, 16384), (128, 4096, 7168), (96, 7168, 2048), (16, 7296, 2112), (512, 512, 256)]:
        text = ", ".join(map(str, shape))
        *_, first, second = launches(f"call({text}, backend='sm90')", fake_driver, tmp_path / text)
        name, grid, threads, shared, _, cluster, programmatic = second
        plan = json.loads(
            run(f"import json; print(json.dumps(nvfp4.info({text}, device=0, backend='sm90')['plan']))", fake_driver)
        )
        if shape[0] <= 16 or "_raw" in name:
            assert first[0] == "map" and plan["workspace"] == 0
        else:
            assert first[0] == "nvfp4_sm90_dequant" and first[5:] == ["0", "1"]
        assert name == plan["kernel"] and name.startswith("nvfp4_sm90_gemm_") and int(grid) == plan["grid"]
        assert int(cluster) == plan["split_k"] and int(grid) % int(cluster) == 0
        assert programmatic == "1" and int(threads) % 128 == 0 and 0 < int(shared) <= 232448


def test_tensor_maps_of_sm90(fake_driver: Path, tmp_path: Path) -> None:
    """The larger operand as e2m1, the other one dequantized to fp16, unless it has so few rows that it needs no map."""
    shapes = {"weights": (96, 7168, 4096, 1), "batch": (19, 4096, 4160, 3), "few rows": (9, 4096, 1088, 3)}
    for name, (m, n, k, batch) in shapes.items():
        code = f"call({m}, {n}, {k}, l={batch}, backend='sm90')"
        rows = launches(code, fake_driver, tmp_path / name)
        (mma_a, launch), mma_b, dequant = (rows[0], rows[-1]), rows[1], rows[-2]
        mma_tile_m, mma_tile_n = re.fullmatch(r"nvfp4_sm90_gemm_(\d+)x(\d+)\w*", launch[0]).groups()
        far = 16 if batch == 1 else n * k // 2
        wide = -(-k // 128) * 128  # what the pre-pass writes
        pitch = 2 * wide * m  # also of a single batch
        assert mma_a == ["map", "8", "3", f"{k // 2},{n},{batch}", f"{k // 2},{far}", f"64,{mma_tile_m},1", "0"]
        assert len(rows) == (2 if m <= 16 else 4)
        if m <= 16:
            continue
        whole = -(-m // int(mma_tile_n)) * int(mma_tile_n)  # rows of the workspace's tensor map: no box is cut off
        assert mma_b == [
            "map",
            "16",
            "3",
            f"{wide},{whole},{batch}",
            f"{2 * wide},{pitch}",
            f"64,{mma_tile_n},1",
            "128",
        ]
        assert dequant[:2] == ["nvfp4_sm90_dequant", str(batch * -(-k // 256) * -(-m // 32))]


def test_few_rows_on_sm90_are_one_launch_without_clusters(fake_driver: Path, tmp_path: Path) -> None:
    ((name, grid, threads, shared, _, cluster, programmatic),) = launches(
        "call(1, 4096, 7168, backend='sm90')", fake_driver, tmp_path / "log"
    )
    plan = json.loads(run("import json; print(json.dumps(nvfp4.info(1, 4096, 7168, device=0)['plan']))", fake_driver))
    assert name == plan["kernel"] == "nvfp4_sm90_gemv_1" and int(grid) == plan["grid"]
    assert int(threads) % 32 == 0 and 0 < int(shared) <= 232448
    assert (cluster, programmatic) == ("0", "1")


@pytest.mark.parametrize("kernel", ["mixed", "fp16"])
def test_prefill_products_of_sm90(fake_driver: Path, tmp_path: Path, kernel: str) -> None:
    """The pre-pass dequantizes operands in a launch before the product, which reads them; B is mma_a."""
    m, n, k, wide = 600, 520, 1088, 1152
    name = f"nvfp4_sm90_prefill_{kernel}"
    code = f"force('{name}', {m}, {n}, {k}); call({m}, {n}, {k}, backend='sm90')"
    rows = launches(code, fake_driver, tmp_path / "log")
    raw = {size: ["map", "8", "3", f"{k // 2},{size},1", f"{k // 2},16", "32,128,1", "0"] for size in (m, n)}
    dequantized = {
        size: ["map", "16", "3", f"{wide},768,1", f"{2 * wide},{2 * wide * size}", "64,128,1", "128"]  # whole clusters
        for size in (m, n)
    }
    assert rows[:2] == [dequantized[m], (dequantized if kernel == "fp16" else raw)[n]]
    ctas = 5 * (19 + 17 if kernel == "fp16" else 19)  # 32 rows by 256 along K each
    assert rows[2:-1] == [["nvfp4_sm90_dequant", str(ctas), "512", "0", rows[-1][4], "0", "1"]]
    assert rows[-1][0] == name and rows[-1][5:] == ["2", "1"]


def test_unaligned_operands_of_sm90_are_dequantized(fake_driver: Path, tmp_path: Path) -> None:
    for name, code in {
        "rows of 40 bytes": "call(5, 300, 80, backend='sm90')",
        "rows of 24 bytes": "call(20, 20, 48, l=2, backend='sm90')",
    }.items():
        *maps, dequant, launch = launches(code, fake_driver, tmp_path / name)
        assert [row[1] for row in maps] == ["16", "16"] and dequant[0] == "nvfp4_sm90_dequant", name
        assert launch[0] == "nvfp4_sm90_prefill_fp16", name


def test_few_unaligned_rows_go_to_sm80(fake_driver: Path) -> None:
    """Unless sm90 is forced; a pre-pass pays off for many rows. Rows of K = 1040 have 520 bytes."""
    for options, backend in {
        "16, 7168, 1040": "sm80",
        "16, 7168, 1040, backend='sm90'": "sm90",
        "4096, 1200, 1040": "sm90",
        "16, 7168, 1024": "sm90",
        "1, 7168, 1040": "sm90",
    }.items():
        assert run(f"print(nvfp4.info({options}, device=0)['plan']['backend'])", fake_driver) == backend, options


def test_no_k_on_sm90_dequants_nothing(fake_driver: Path, tmp_path: Path) -> None:
    (launch,) = launches("call(5, 300, 0, backend='sm90')", fake_driver, tmp_path / "log")
    assert launch[0].startswith("nvfp4_sm90_")
