"""The host's side of a GPU call, on a libcuda that runs nothing (tests/fake_driver): what is refused, in which words,
and what is launched. Each case is a process of its own, since the driver is opened once a process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import call_cost
import pytest
import ragged
import sanitize
from family_table import LISTED, ON_GPU, OWN, ROWS, runs_on
from harness.headers import family
from interpreter import python
from paths import CSRC, TESTS
from test_c_core import CORE, WARNINGS, WRAPPED

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")

CALL = """
import numpy as np, nvfp4
def call(m, n, k, l=None, backend="sm80", layout="128x4"):
    batch = () if l is None else (l,)
    scale = lambda rows: np.zeros(batch + (-(-rows // 128) * 128, -(-k // 64) * 4), np.uint8)
    a, b = (np.zeros(batch + (rows, k // 2), np.uint8) for rows in (m, n))
    out = np.full(batch + (m, n), 7, np.float16)
    nvfp4.gemm(a, b, scale(m), scale(n), out=out, backend=backend, scale_layout=layout)
    return out
def force(kernel, m, n, k):
    # The first plan on this kernel of sm90 with swap_ab is the one that is taken from now on.
    for i in range(400):
        nvfp4._C.set_candidate(i)
        plan = nvfp4.info(m, n, k, device=0, backend="sm90")["plan"]
        if plan["kernel"] == kernel and plan["swap_ab"]: return plan
    raise KeyError(kernel)
"""


def run(code: str, library: Path | str, **variables: str) -> str:
    """Returns what the process prints: its output, or the message of the nvfp4.Error that ended it."""
    program = f"{CALL}\ntry:\n    {code}\nexcept nvfp4.Error as error:\n    print(error)\n"
    environment = {**os.environ, "NVFP4_LIBCUDA": str(library), **variables}
    done = python("-c", program, library="numpy", env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def launches(code: str, library: Path, log: Path, **variables: str) -> list[list[str]]:
    assert run(code, library, FAKE_LOG=str(log), **variables) == ""
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def called(code: str, library: Path, log: Path, **variables: str) -> tuple[str, list[str]]:
    """Returns what the process prints, and the entry points that were called."""
    said = run(code, library, FAKE_CALLS=str(log), **variables)
    return said, log.read_text().split()


def test_one_launch_a_call(fake_driver: Path, tmp_path: Path) -> None:
    (name, grid, threads, shared, stream, *attributes), *rest = launches(
        "call(128, 7168, 2048)", fake_driver, tmp_path / "log"
    )
    assert name.startswith("nvfp4_sm80_gemm_") and int(grid) > 0 and int(threads) % 32 == 0
    assert attributes == ["0", "1"]  # no cluster, programmatic dependent launch
    assert all(row[0] == "nvfp4_sm80_split_reduce" for row in rest) and len(rest) <= 1


def test_batch_is_one_launch(fake_driver: Path, tmp_path: Path) -> None:
    rows = launches("call(128, 7168, 2048, l=3)", fake_driver, tmp_path / "log")
    assert sum("gemm" in row[0] for row in rows) == 1


def test_split_along_k_for_a_small_grid(fake_driver: Path, tmp_path: Path) -> None:
    names = [row[0] for row in launches("call(1, 64, 65536)", fake_driver, tmp_path / "log")]
    assert len(names) == 2 and names[1] == "nvfp4_sm80_split_reduce"


CAPABILITIES = [ROWS[name]["least_capability"] for name in ON_GPU]
GPUS_OF = [(name, str(capability)) for name in ON_GPU for capability in CAPABILITIES if runs_on(name, capability)]


@pytest.mark.parametrize(("backend", "capability"), GPUS_OF)
def test_launches_that_call_cost_has_rows_for(backend: str, capability: str, fake_driver: Path, tmp_path: Path) -> None:
    def kernels(shape: tuple[int, int, int]) -> list[str]:
        code = f"call(*{shape}, backend={backend!r})"
        log = tmp_path / str(shape)
        return [row[0] for row in launches(code, fake_driver, log, FAKE_CC=capability) if row[0] != "map"]

    def workspace(shape: tuple[int, int, int]) -> int:
        code = f"print(nvfp4.info(*{shape}, device=0, backend={backend!r})['plan']['workspace'])"
        return int(run(code, fake_driver, FAKE_CC=capability))

    assert len(kernels(call_cost.ONE_LAUNCH)) == 1 and workspace(call_cost.ONE_LAUNCH) == 0
    if backend in call_cost.TWO_LAUNCHES:
        first, second = kernels(call_cost.TWO_LAUNCHES[backend])
        added = {"sm80": second == "nvfp4_sm80_split_reduce", "sm90": first.startswith("nvfp4_sm90_dequant")}
        assert added[backend] and workspace(call_cost.TWO_LAUNCHES[backend]) > 0


@pytest.mark.parametrize("backend", ON_GPU)
def test_call_cost(backend: str, fake_driver: Path) -> None:
    """Runs the part of the program that measures; the next test checks how the program starts it."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "NVFP4_LIBCUDA": str(fake_driver)}
    environment["FAKE_CC"] = str(ROWS[backend]["least_capability"])
    arguments = ("--measure", "--calls", "20", "--backend", backend)
    done = python(call_cost.__file__, *arguments, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == 5 and all(0 < row["best_ns"] <= row["median_ns"] for row in rows.values())


def test_call_cost_finds_the_fake_driver() -> None:
    command = [sys.executable, call_cost.__file__, "--json", "--calls", "20", "--backend", "sm100"]
    done = subprocess.run(command, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    assert len(json.loads(done.stdout)) == 5


QUANTIZERS = {
    "quantize": "nvfp4.quantize(x)",
    "four_over_six": "nvfp4.quantize(x, block_scale='four_over_six')",
    "silu_mul_quantize": "nvfp4.silu_mul_quantize(np.zeros((1, 128 * across), np.float16))",
    "dequantize": "nvfp4.dequantize(np.zeros((1, 32 * across), np.uint8), np.zeros((128, 4 * across), np.uint8))",
}


@pytest.mark.parametrize("call", QUANTIZERS.values(), ids=QUANTIZERS)
def test_grids_of_large_tensors(call: str, fake_driver: Path, tmp_path: Path) -> None:
    """A CTA of dequantize has a tile of 64 rows and 4 scales; one of quantize up to 16, if 1024 CTAs are left."""
    for across, of_quantize in ((512, 1024), (1024, 1024), (2048, 1024), (8192, 1024), (16384, 2048)):
        code = f"across = {across}; x = np.zeros((1, 64 * across), np.float16); {call}"
        ((_, grid, *_),) = launches(code, fake_driver, tmp_path / str(across), NVFP4_BACKEND="sm80")
        assert int(grid) == (2 * across if "dequantize" in call else of_quantize)


@pytest.mark.parametrize("call", ["swizzle(x)", "unswizzle(x, 12800, 4 * across)"])
def test_grids_of_scales(call: str, fake_driver: Path, tmp_path: Path) -> None:
    """A CTA has 128 rows and 32 scales of each."""
    for across in (1, 8, 9, 64):
        code = f"across = {across}; x = np.zeros((3, 12800, 4 * across), np.uint8); nvfp4.{call}"
        ((_, grid, *_),) = launches(code, fake_driver, tmp_path / str(across), NVFP4_BACKEND="sm80")
        assert int(grid) == -(-across // 8) * 100 * 3


def test_the_argument_is_ahead_of_the_environment(fake_driver: Path, tmp_path: Path) -> None:
    assert launches("call(4, 4, 64, backend='cpu')", fake_driver, tmp_path / "log", NVFP4_BACKEND="sm80") == []
    assert launches("call(4, 4, 64, backend=None)", fake_driver, tmp_path / "log", NVFP4_BACKEND="sm80") != []


def test_the_environment_is_read_at_import_alone(fake_driver: Path, tmp_path: Path) -> None:
    """Another thread may be changing it while a call runs, with the lock of Python that the call has released."""
    late = "import os; os.environ |= {'NVFP4_BACKEND': 'sm99', 'NVFP4_LIBCUDA': '/nowhere', 'NVFP4_CPU': 'none'}; "
    call = "call(4, 4, 64, backend=None); nvfp4._C.set_default_backend('cpu'); call(4, 4, 64, backend=None)"
    first, *others = launches(late + call, fake_driver, tmp_path / "log", NVFP4_BACKEND="sm80")
    assert first[0].startswith("nvfp4_sm80_gemm") and not others


def test_the_default_backend(fake_driver: Path) -> None:
    """It takes the place of a variable that names none, which is an error of the calls that would use it."""
    lines = ["for name in (None, 'auto', 'sm80', 'sm99', 3):"]
    lines += ["    try: nvfp4._C.set_default_backend(name); call(4, 4, 64, backend=None); print('done')"]
    lines += ["    except Exception as error: print(error)"]
    code = "\n    ".join(["try: call(4, 4, 64, backend=None)", "except nvfp4.Error as error: print(error)", *lines])
    said = run(code, fake_driver, NVFP4_BACKEND="sm99" + "x" * 100).splitlines()
    assert said[0].startswith("NVFP4_BACKEND: is 'sm99xxx") and said[0].endswith(f"; must be {LISTED}")
    assert said[1:4] == ["done"] * 3 and "sm99" in said[4] and len(said) == 6


def test_a_traced_conversion_opens_no_driver(fake_driver: Path, tmp_path: Path) -> None:
    described = "('float32', 0, (2, 16), (16, 1)), None, 1.0, 'linear', 'amax6', ('uint8', 0, (2, 8), (8, 1)), "
    described += "('float8_e4m3fn', 0, (2, 1), (1, 1))"
    log = tmp_path / "calls"
    log.write_text("")
    assert called(f"nvfp4._C.check('quantize', {described})", fake_driver, log) == ("", [])


def test_empty_result_launches_nothing(fake_driver: Path, tmp_path: Path) -> None:
    assert launches("call(0, 64, 64); call(64, 0, 64); call(4, 4, 64, l=0)", fake_driver, tmp_path / "log") == []


def test_no_library() -> None:
    said = run("call(16, 16, 64)", "/nonexistent/libcuda.so")
    assert "/nonexistent/libcuda.so" in said and "580" in said


def test_library_named_in_another_encoding() -> None:
    assert "/nonexistent/?" in run("call(16, 16, 64)", os.fsdecode(b"/nonexistent/\xff"))
    assert "/nonexistent/?" in run("print(nvfp4.info()['driver_reason'])", os.fsdecode(b"/nonexistent/\xff"))


PRODUCTS = {
    "NVFP4": ("None", 0, ""),
    "fp16": ("'float16'", 0, " with a of float16"),
    "A . B": ("'bfloat16'", 4, " with a of bfloat16, b not transposed,"),
}


@pytest.mark.parametrize("product", PRODUCTS)
def test_settings_of_no_plan(fake_driver: Path, product: str) -> None:
    """The message counts the plans of the operation and the type of A, which are not as many as those of others."""
    counts = [f"nvfp4._C.plan(0, 'sm80', {a}, 64, 512, 2048, 1, {flags})" for a, flags, _ in PRODUCTS.values()]
    code = f"print(*(plan['candidates'] for plan in ({', '.join(counts)})))"
    found = dict(zip(PRODUCTS, run(code, fake_driver).split()))
    a, flags, words = PRODUCTS[product]
    assert int(found[product]) > 0 and len(set(found.values())) == len(PRODUCTS)
    settings = "'nvfp4_sm80_gemm_64x64', True, 3, 4, 2"
    assert run(f"nvfp4._C.override_plan(0, None, {a}, 64, 512, 2048, 1, {flags}, {settings})", fake_driver) == (
        "plan: is nvfp4_sm80_gemm_64x64, swap_ab = 1, split_k = 3, prefetch_stages = 4, ctas_per_sm = 2, which is none "
        f"of the {found[product]} plans for a product of M = 64, N = 512, K = 2048, L = 1{words} on cuda:0"
    )


def test_an_override_holds_for_its_operation_and_type(fake_driver: Path) -> None:
    """All products are of the same M, N and K as the kernels count them."""
    names = ["kernel", "swap_ab", "split_k", "prefetch_stages", "ctas_per_sm"]
    lines = ["products = [(0, 'sm80', a, 64, 512, 512, 1, flags) for a, flags in"]
    lines[0] += " ((None, 0), ('float16', 0), ('bfloat16', 0), ('float16', 4), ('bfloat16', 4))]"
    lines += ["plans = lambda: [nvfp4._C.plan(*product) for product in products]"]
    lines += ["model = plans(); nvfp4._C.set_candidate(1); second = plans(); nvfp4._C.set_candidate(0)"]
    lines += ["for i, product in enumerate(products):"]
    lines += [f"    nvfp4._C.override_plan(*product, *(second[i][name] for name in {names}))"]
    lines += ["    print(plans() == second[: i + 1] + model[i + 1 :], second[i] != model[i])"]
    lines += ["nvfp4._C.clear_overrides(); print(plans() == model)"]
    assert run("\n    ".join(lines), fake_driver).split() == ["True"] * 11


def test_an_override_for_another_backend(fake_driver: Path) -> None:
    """A plan of sm80 is none of sm90's."""
    plan = "'nvfp4_sm80_gemm_8x32', False, 1, 0, 0"
    said = run(f"nvfp4._C.override_plan(0, 'sm90', None, 8, 4096, 7168, 1, 0, {plan})", fake_driver)
    assert said.startswith("plan: is nvfp4_sm80_gemm_8x32, swap_ab = 0") and "which is none of the" in said
    assert run(f"nvfp4._C.override_plan(0, 'sm80', None, 8, 4096, 7168, 1, 0, {plan})", fake_driver) == ""


def test_no_batch_invariant_plan(fake_driver: Path) -> None:
    """sm90 has none for rows of 24 bytes."""
    assert run("nvfp4._C.plan(0, 'sm90', None, 4, 64, 48, 3, 1)", fake_driver) == (
        "batch_invariant: no kernel of this backend is batch invariant for M = 4, N = 64, K = 48, L = 3 and "
        "operands that lie so; M * L must be smaller, or the backend auto or sm80"
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "nvfp4.info(16, 64, 64, device=0, backend='sm100', a_dtype='float16')",
            "a: dtype is float16, which the sm100 kernels do not take; must be uint8 or float4_e2m1fn_x2, or the "
            "backend sm80",
        ),
        (
            "nvfp4.info(16, 64, 64, device=0, backend='sm100', a_dtype='bfloat16', transpose_b=False)",
            "transpose_b: is False, which the sm100 kernels do not take; must be True, or the backend must be sm80",
        ),
        (
            "nvfp4._C.plan(0, 'sm100', None, 2**31 - 1, 64, 64, 1024, 1)",
            "batch_invariant: no kernel of this backend is batch invariant for M = 2147483647, N = 64, K = 64, "
            "L = 1024 and operands that lie so; M * L must be smaller",
        ),
        (  # each family says why
            "nvfp4.info(2**31 - 1, 2**29, 64, device=0)",
            "the product of M = 2147483647, N = 536870912, L = 1 needs more CTAs or more shared memory than the GPU "
            "has (232448 bytes a CTA); the product of M = 2147483647, N = 536870912, L = 1 has more tiles than the "
            "sm100 kernels count, which is 2147483647",
        ),
    ],
)
def test_families_that_do_not_take_a_call(fake_driver: Path, call: str, message: str) -> None:
    """The message names those of this GPU that do."""
    assert run(call, fake_driver, FAKE_CC="100") == message


def test_every_gpu_has_plans_of_its_own(fake_driver: Path) -> None:
    """Settings for a product on one GPU say nothing about another one, and a GPU has to be there."""
    lines = ["before = [nvfp4.info(64, 4096, 7168, device=i)['plan'] for i in range(2)]"]
    lines += ["nvfp4._C.set_candidate(1); other = nvfp4.info(64, 4096, 7168, device=1)['plan']"]
    lines += ["nvfp4._C.set_candidate(0)"]
    names = ["kernel", "swap_ab", "split_k", "prefetch_stages", "ctas_per_sm"]
    lines += [f"nvfp4._C.override_plan(1, None, None, 64, 4096, 7168, 1, 0, *(other[name] for name in {names}))"]
    lines += ["after = [nvfp4.info(64, 4096, 7168, device=i)['plan'] for i in range(2)]"]
    lines += ["print(before[1] != other, after[0] == before[0], after[1] == other)"]
    lines += ["nvfp4.info(64, 4096, 7168, device=2)"]
    assert run("\n    ".join(lines), fake_driver, FAKE_DEVICES="2").splitlines() == [
        "True True True",
        "device: is cuda:2; the driver has 2 device(s)",
    ]


def test_shape_of_no_tensor(fake_driver: Path) -> None:
    said = run("nvfp4.info(2**30, 2**30, 64, 2**30, backend='sm80')", fake_driver)
    assert said == "shape: M, N, L are 1073741824, 1073741824, 1073741824; their product must be at most 2^60"
    with pytest.raises(nvfp4.Error, match="^shape: M, N, L are 1073741824, 1073741824, 1; their product must be"):
        nvfp4.info(2**30, 2**30, 16)
    with pytest.raises(nvfp4.Error, match="^shape: M, K, L are 1073741824, 1073741824, 1; their product must be"):
        nvfp4.info(2**30, 16, 2**30, a_dtype="float16", transpose_b=False)


def test_failure_to_open_is_said_again() -> None:
    code = "\n    ".join(["for _ in range(2):", "    try: call(16, 16, 64)", "    except nvfp4.Error as e: print(e)"])
    first, second = run(code, "/nonexistent/libcuda.so").splitlines()
    assert first == second


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"FAKE_VERSION": "12080"}, ["CUDA 12.8", "13.0", "580"]),
        ({"FAKE_DEVICES": "0"}, ["no CUDA device"]),
        ({"FAKE_CC": "75"}, ["Fake GPU 0", "7.5", "8.0"]),
        ({"FAKE_MISSING": "cuLaunchKernelEx"}, ["cuLaunchKernelEx"]),
        ({"FAKE_FAIL": "cuInit"}, ["cuInit", "fake error"]),
        ({"FAKE_FAIL": "cuDevicePrimaryCtxRetain"}, ["context", "fake error"]),
        ({"FAKE_FAIL": "cuLibraryLoadData"}, ["load the GPU code", "fake error"]),
        ({"FAKE_FAIL": "cuKernelGetFunction"}, ["nvfp4_quantize", "fake error"]),
        (  # of which cuKernelSetAttribute is called too, and succeeds
            {"FAKE_FAIL": "cuKernelGetFunction", "FAKE_KERNEL": "nvfp4_sm80_gemm_8x32"},
            ["nvfp4_sm80_gemm_8x32", "fake error"],
        ),
        ({"FAKE_FAIL": "cuLaunchKernelEx"}, ["nvfp4_sm80_gemm", "fake error"]),
        ({"FAKE_PAGEABLE": "0"}, ["backend: is sm80", "on the CPU"]),
        ({"FAKE_MISSING": "cuTensorMapEncodeTiled"}, ["cuTensorMapEncodeTiled"]),
    ],
    ids=lambda value: next(iter(value.items())).__str__() if isinstance(value, dict) else "",
)
def test_errors_are_messages(fake_driver: Path, variables: dict[str, str], words: list[str]) -> None:
    said = run("call(16, 16, 64)", fake_driver, **variables)
    assert said and all(word in said for word in words), said


def test_a_driver_that_does_not_open_is_named_in_every_thread(fake_driver: Path) -> None:
    """The error is kept, and messages are a thread's own."""
    lines = ["import threading", "threading.excepthook = lambda error: None"]
    lines += ["first = threading.Thread(target=call, args=(16, 16, 64))"]
    lines += ["first.start(); first.join(); call(16, 16, 64)"]
    assert "fake error" in run("\n    ".join(lines), fake_driver, FAKE_FAIL="cuInit")


@pytest.fixture(scope="session")
def core_with_driver(empty_fatbins: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that links a C program with a core that opens the driver."""
    library, folder = tmp_path_factory.mktemp("core") / "core.o", f"-I{empty_fatbins}"
    flags = ["gcc", *WARNINGS, "-DNVFP4_CUDA", f"-I{CSRC}"]
    subprocess.run([*flags, folder, *CORE, "-r", "-o", library], check=True)
    return [*map(str, flags), str(library), "-lm", "-ldl", "-lpthread"]


@pytest.mark.parametrize(
    ("program", "arguments", "lines"),
    [("workspace", [], 16), ("workspace", ["1"], 16), ("test_allocations", [], 1), ("test_new_operation", [], 1)],
    ids=["workspace", "workspace of the second GPU", "test_allocations", "test_new_operation"],
)
def test_c_callers(
    program: str, arguments: list[str], lines: int, core_with_driver: list[str], fake_driver: Path, tmp_path: Path
) -> None:
    """The rules of a caller's workspace, also on a second GPU, what an allocation that fails leaves, and the launch of
    an operation that is added by a row."""
    binary, wrapped = tmp_path / program, WRAPPED.get(program, [])
    subprocess.run([*core_with_driver, TESTS / f"c/{program}.c", *wrapped, "-o", binary], check=True)
    environment = os.environ | {"NVFP4_LIBCUDA": str(fake_driver), "FAKE_CC": "90"}
    environment |= {"FAKE_DEVICES": "2", "FAKE_DEVICE": arguments[0]} if arguments else {}
    done = subprocess.run([binary, *arguments], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == lines, done.stdout


def test_plans_are_steered_while_others_plan(tmp_path: Path, empty_fatbins: Path, fake_driver: Path) -> None:
    """Without a race, as ThreadSanitizer sees it."""
    plain = ["gcc", *WARNINGS, "-DNVFP4_CUDA", f"-I{CSRC}", f"-I{empty_fatbins}"]
    sanitized = [*plain, "-fsanitize=thread", "-g"]
    empty, binary, cpu = tmp_path / "empty.c", tmp_path / "plan_threads", tmp_path / "cpu.o"
    empty.write_text("int main(void) { return 0; }\n")
    built = subprocess.run([*sanitized, empty, "-o", tmp_path / "empty"], capture_output=True)
    if built.returncode or subprocess.run([tmp_path / "empty"], capture_output=True).returncode:
        pytest.skip("no ThreadSanitizer that runs here")
    # Functions of the CPU that are chosen as the program is loaded (target_clones) run before the sanitizer does.
    subprocess.run([*plain, *(path for path in CORE if path.parent.name == "cpu"), "-r", "-o", cpu], check=True)
    sources = [cpu, *(path for path in CORE if path.parent.name != "cpu"), TESTS / "c/plan_threads.c"]
    subprocess.run([*sanitized, *sources, "-lm", "-ldl", "-lpthread", "-o", binary], check=True)
    environment = os.environ | {"NVFP4_LIBCUDA": str(fake_driver), "FAKE_CC": "90"}
    done = subprocess.run([binary], env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize("slow", ["cuInit", "cuDevicePrimaryCtxRetain"])
def test_a_context_opens_the_driver_once_and_lets_it_go(
    slow: str, core_with_driver: list[str], fake_driver: Path, tmp_path: Path
) -> None:
    """The program starts two of three devices, the first in four threads at once."""
    binary, log = tmp_path / "open_driver", tmp_path / "calls"
    subprocess.run([*core_with_driver, TESTS / "c/open_driver.c", "-o", binary], check=True)
    variables = {"NVFP4_LIBCUDA": fake_driver, "FAKE_CALLS": log, "FAKE_SLOW": slow, "FAKE_DEVICES": "3"}
    h200 = {"FAKE_CC": "90", "FAKE_CLOCK_KHZ": "1980000", "FAKE_MEMORY_KHZ": "3201000", "FAKE_BUS_BITS": "6144"}
    environment = os.environ | {key: str(value) for key, value in (variables | h200).items()}
    done = subprocess.run([binary], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    rejected = [f"3: device: is cuda:{device}; the driver has 3 device(s)" for device in (3, -7, -(2**31), -7)]
    props = f"90 132 232448 233472 1980 4916 {50 << 20} 0 0 0 0 0 0"  # sm90 does not ask for clusters
    assert done.stdout.splitlines() == ["0: ", "0: ", *rejected, props]
    entries = log.read_text().split()
    assert entries.count("cuInit") == 1
    assert entries.count("cuDevicePrimaryCtxRetain") == entries.count("cuDevicePrimaryCtxRelease") == 2
    assert entries.count("cuLibraryLoadData") == entries.count("cuLibraryUnload") > 0


@pytest.mark.parametrize("backend", ["sm80", "sm90"])  # sm90 makes tensor maps too
@pytest.mark.parametrize("current", [0, 1, 2, 77])
def test_a_call_runs_in_the_context_of_its_device(current: int, backend: str, fake_driver: Path) -> None:
    """Whatever context the thread has, none, another GPU's or one of its own, and it has the same one afterwards."""
    lines = ["import ctypes, os", f"for _ in range(2): call(40, 4096, 512, backend={backend!r})"]
    lines += ["print(ctypes.CDLL(os.environ['NVFP4_LIBCUDA']).fake_context())"]
    assert run("\n    ".join(lines), fake_driver, FAKE_CURRENT=str(current)) == str(current)


def test_a_device_is_loaded_once(fake_driver: Path, tmp_path: Path) -> None:
    """However many calls follow."""
    code = "for _ in range({}): call(128, 7168, 2048)"
    (_, once), (_, often) = (called(code.format(n), fake_driver, tmp_path / str(n)) for n in (1, 3))
    for name in ("cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetFunction", "cuKernelSetAttribute"):
        assert often.count(name) == once.count(name) > 0, name
    assert often.count("cuInit") == often.count("cuDevicePrimaryCtxRetain") == 1
    assert often.count("cuLaunchKernelEx") == 3 * once.count("cuLaunchKernelEx")


@pytest.mark.parametrize("backend", ["sm80", "sm90"])
@pytest.mark.parametrize(("entry", "current"), [("cuCtxGetCurrent", "1"), ("cuCtxPushCurrent", "0")])
def test_nothing_is_launched_outside_the_context(
    entry: str, current: str, backend: str, fake_driver: Path, tmp_path: Path
) -> None:
    code = f"import os; nvfp4.init(0); os.environ['FAKE_FAIL'] = {entry!r}; call(16, 16, 64, backend={backend!r})"
    said, entries = called(code, fake_driver, tmp_path / "calls", FAKE_CURRENT=current)
    assert said.startswith("the CUDA driver refused ") and "fake error" in said and "cuStreamSynchronize" not in said
    assert entries[-1] == entry and not {"cuTensorMapEncodeTiled", "cuLaunchKernelEx"} & set(entries)


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


@pytest.mark.parametrize("cc", ["80", "86", "89", "90", "100", "120"])
def test_every_gpu_gets_a_kernel_that_fits(fake_driver: Path, tmp_path: Path, cc: str) -> None:
    limit = {"80": 166912, "90": 232448, "100": 232448}.get(cc, 101376)
    for m, n, k in [(1, 4096, 7168), (16, 4096, 7168), (64, 512, 256), (128, 7168, 2048), (2304, 4608, 7168)]:
        log = tmp_path / f"{m}-{n}-{k}"
        rows = launches(f"call({m}, {n}, {k})", fake_driver, log, FAKE_CC=cc)
        assert rows and all(int(row[3]) <= limit for row in rows)


A_DTYPES = {"uint8": None, "float4_e2m1fn_x2": None, "float16": "float16", "bfloat16": "bfloat16"}


@pytest.mark.parametrize("name", ON_GPU)
def test_a_family_takes_what_the_table_says(name: str, fake_driver: Path) -> None:
    """Types of A by operation, dense with 128x4 scales."""
    cases = [(operation, dtype) for operation in ("gemm", "gemm_nn") for dtype in A_DTYPES]
    calls = [
        f"nvfp4.info(64, 512, 512, device=0, backend={name!r}, a_dtype={A_DTYPES[dtype]!r}, "
        f"transpose_b={operation == 'gemm'})['plan']['backend']"
        for operation, dtype in cases
    ]
    lines = [line for call in calls for line in (f"try: print({call})", "except nvfp4.Error: print('-')")]
    said = run("\n    ".join(lines), fake_driver, FAKE_CC=str(ROWS[name]["least_capability"])).split()
    taken = [dtype in ROWS[name]["operations"].get(operation, []) for operation, dtype in cases]
    assert said == [name if takes else "-" for takes in taken]


def test_the_table_of_families() -> None:
    assert [row["number"] for row in ROWS.values()] == list(range(1, 1 + len(ROWS)))
    assert ROWS["cpu"]["least_capability"] is ROWS["cpu"]["roundings"] is None and not ROWS["cpu"]["architectures"]
    for name, row in ROWS.items():
        everywhere, operations = row["linear_scales"], row["operations"]
        assert everywhere.keys() == operations.keys() and "uint8" in operations["gemm"]
        assert all(set(everywhere[operation]) <= set(operations[operation]) for operation in operations)
        assert name == "cpu" or any(arch.startswith("compute_") for arch in row["architectures"])
    sm90 = ROWS["sm90"]
    assert (sm90["least_capability"], sm90["most_capability"]) == (90, 90) and "H200" in sm90["runs_on"]
    assert sm90["linear_scales"] == {"gemm": ["uint8", "float4_e2m1fn_x2"], "gemm_nn": [], "grouped_gemm": []}
    assert ROWS["sm80"]["roundings"] == {"per_block": 72, "block_k": 16, "constant": 64}


@pytest.mark.parametrize("cc", [80, 86, 89, 90, 100, 103, 110, 120, 121])
def test_the_family_of_the_gpu_is_chosen(cc: int, fake_driver: Path) -> None:
    """Its own kernels, where there are some, before those for every GPU."""
    names = [name for name in reversed(ON_GPU) if runs_on(name, cc)]
    lines = [f"for backend in (None, *{names}):"]
    lines += ["    print(nvfp4.info(128, 4096, 7168, device=0, backend=backend)['plan']['backend'])"]
    assert run("\n    ".join(lines), fake_driver, FAKE_CC=str(cc)).split() == [names[0], *names]
    assert len(names) == 1 + (90 <= cc < 91 or cc >= 100)


THOR = {"FAKE_CC": "110", "FAKE_CLOCK_KHZ": "1575000"}  # 20 SMs


@pytest.mark.parametrize("memory", ["0", "4266000"])
def test_plans_of_a_thor(memory: str, fake_driver: Path) -> None:
    """No persistent launch has more CTAs than a Thor has SMs, and no call is modelled to read faster than its memory,
    273 GB/s, whether the driver says so or not. From 128 rows on its own kernels are taken."""
    shapes = [(1, 4096, 4096), (128, 4096, 7168), (128, 7168, 16384), (4096, 4096, 4096)]
    code = f"import json; print(json.dumps([nvfp4.info(*s, device=0, backend=b)['plan'] for s in {shapes} for b in B]))"
    said = {"FAKE_BUS_BITS": "256", "FAKE_MEMORY_KHZ": memory}
    plans = json.loads(run(f"B = (None, 'sm100'); {code}", fake_driver, **THOR, **said))
    for (m, n, k), chosen, own in zip(shapes, plans[::2], plans[1::2], strict=True):
        assert own["split_k"] > 1 or own["grid"] <= 20, own
        assert own["modelled_us"] > (m + n) * k * 9 / 16 / 273e3, own
        assert m < 128 or chosen["backend"] == "sm100", chosen


@pytest.mark.parametrize("own", OWN)
def test_without_code_for_the_device_another_family_runs(fake_driver: Path, tmp_path: Path, own: str) -> None:
    cc = str(ROWS[own]["least_capability"])
    absent = {"FAKE_CC": cc, "FAKE_ABSENT": f"nvfp4_{own}_"}
    rows = launches(
        "call(128, 4096, 7168, backend=None)", fake_driver, tmp_path / "log", NVFP4_BACKEND="sm80", **absent
    )
    assert rows[0][0].startswith("nvfp4_sm80")
    assert run("print(nvfp4.info(1, 1, 64, device=0)['plan']['backend'])", fake_driver, **absent) == "sm80"
    said = run(f"call(1, 1, 64, backend='{own}')", fake_driver, **absent)
    assert said.startswith(f"backend: is {own}, whose code")
    # A family that lacks one of its kernels is left out as a whole: its plans may want any of them.
    kernel = list(family(own).configs().values())[-1].kernel
    one = {"FAKE_CC": cc, "FAKE_ABSENT": kernel}
    assert run("print(nvfp4.info(128, 4096, 7168, device=0)['plan']['backend'])", fake_driver, **one) == "sm80"
    # The other families' code has to be there.
    said = run("call(1, 1, 64)", fake_driver, FAKE_ABSENT="nvfp4_sm80")
    assert "load the GPU code" in said


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
    kernels = len(family("sm100").configs())
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
    code = "nvfp4.info(16, 64, 64, device=0, backend='sm120', a_dtype='float16')"
    assert run(code, fake_driver, FAKE_CC="120") == (
        "a: dtype is float16, which the sm120 kernels do not take; must be uint8 or float4_e2m1fn_x2, or the backend "
        "sm80"
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


RAGGED = {
    "exact": [(case.m, case.n, case.k, case.l or 1) for case in ragged.cases() if not case.a],
    "sanitized": sanitize.SHAPES,
}


@pytest.mark.parametrize("shapes", RAGGED.values(), ids=RAGGED)
def test_ragged_sets_reach_every_instantiation(fake_driver: Path, shapes: list[tuple[int, ...]]) -> None:
    """With and without split-K, with the device properties of an H200: a kernel outside these sets has no test."""
    plans = f"[nvfp4.info(*shape, device=0, backend='sm80')['plan'] for shape in {shapes}]"
    planned = json.loads(run(f"import json; print(json.dumps({plans}))", fake_driver))
    names = [config.kernel for config in family("sm80").configs("gemm").values()]
    assert len(names) > 1
    assert {(plan["kernel"], plan["split_k"] > 1) for plan in planned} == {(n, cut) for n in names for cut in (0, 1)}


def test_host_memory_stays_on_the_cpu_unless_asked(fake_driver: Path, tmp_path: Path) -> None:
    assert launches("call(16, 16, 64, backend=None)", fake_driver, tmp_path / "log") == []
