"""The host's side of a GPU call, on a libcuda that runs nothing (support/fake_libcuda.c): what is refused, in which
words, and what is launched. test_driver_backends.py has what is particular to sm90, sm100 and sm120."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import call_cost
import exact_products
import pytest
import sanitize
from backend_table import LISTED, ON_GPU, OWN, ROWS, max_rows, runs_on
from fake_driver_calls import called, launches, run
from harness.headers import headers_of
from paths import CSRC, TESTS
from python_server import python
from test_c_core import CORE, WARNINGS, WRAPPED

import nvfp4

pytestmark = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")


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


CAPABILITIES = [ROWS[name]["min_capability"] for name in ON_GPU]
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
    environment["FAKE_CC"] = str(ROWS[backend]["min_capability"])
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
    "search": "nvfp4.quantize(x, block_scale='search', importance=np.ones(x.shape[1], np.float32))",
    "silu_mul_quantize": "nvfp4.silu_mul_quantize(np.zeros((rows, 128 * across), np.float16))",
    "dequantize": "nvfp4.dequantize(np.zeros((rows, 32 * across), np.uint8), np.zeros((128, 4 * across), np.uint8))",
}


@pytest.mark.parametrize("call", QUANTIZERS.values(), ids=QUANTIZERS)
def test_grids_of_large_tensors(call: str, fake_driver: Path, tmp_path: Path) -> None:
    """A CTA of dequantize has a tile of 64 rows and 4 scales. One of quantize takes up to 16 such tiles, or tiles of 32
    rows and 8 scales, if 1024 CTAs are left."""
    cases = ((512, 1024, 256), (1024, 1024, 512), (2048, 1024, 1024), (8192, 1024, 1024), (16384, 2048, 1024))
    for (across, *of_quantize), (place, rows) in itertools.product(cases, enumerate((33, 32))):
        code = f"rows, across = {rows}, {across}; x = np.zeros((rows, 64 * across), np.float16); {call}"
        ((_, grid, *_),) = launches(code, fake_driver, tmp_path / f"{across} {rows}", NVFP4_BACKEND="sm80")
        assert int(grid) == (2 * across if "dequantize" in call else of_quantize[place])


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
    assert "/nonexistent/libcuda.so" in said and "525" in said


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
    """The message counts the plans of the kind of product and the type of A: others have more or fewer."""
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
        "batch_invariant: no kernel of this backend is batch invariant for an a of NVFP4, K = 48 and operands that "
        "lie so; the backend must be auto or sm80"
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "nvfp4.info(17, 64, 64, device=0, backend='sm100', a_dtype='float16')",
            "a: dtype is float16 and M is 17, where the sm100 kernels multiply up to 16 rows of that type; must be "
            "uint8 or float4_e2m1fn_x2, or the backend sm80",
        ),
        (
            "nvfp4.info(16, 64, 0, device=0, backend='sm100', a_dtype='bfloat16')",
            "a: dtype is bfloat16, which the sm100 kernels multiply by b with 128x4 scales and rows and batches on 16 "
            "bytes alone, and with K above 0; must be uint8 or float4_e2m1fn_x2, or the backend sm80",
        ),
        (
            "nvfp4.info(16, 64, 64, device=0, backend='sm100', a_dtype='bfloat16', transpose_b=False)",
            "transpose_b: is False, which the sm100 kernels do not take; must be True, or the backend must be sm80",
        ),
        (
            "nvfp4._C.plan(0, 'sm100', 'float16', 1, 64, 4096, 1, 1)",
            "batch_invariant: no kernel of this backend is batch invariant for an a of float16, K = 4096 and operands "
            "that lie so; the backend must be auto or sm80",
        ),
        (
            "nvfp4._C.plan(0, 'sm100', None, 2**31 - 1, 64, 64, 1024, 1)",
            "batch_invariant: no kernel of this backend is batch invariant for M = 2147483647, N = 64, K = 64, "
            "L = 1024 and operands that lie so; M * L must be smaller",
        ),
        (  # each backend says why
            "nvfp4.info(2**31 - 1, 2**29, 64, device=0)",
            "the product of M = 2147483647, N = 536870912, L = 1 needs more CTAs or more shared memory than the GPU "
            "has (232448 bytes a CTA); the product of M = 2147483647, N = 536870912, L = 1 has more tiles than the "
            "sm100 kernels count, which is 2147483647",
        ),
    ],
)
def test_backends_that_do_not_take_a_call(fake_driver: Path, call: str, message: str) -> None:
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


def test_the_oldest_driver(fake_driver: Path, tmp_path: Path) -> None:
    """cudaTypedefs.h of CUDA 12.0 has all entry points, each of that version or an older one."""
    said = launches("call(16, 16, 64)", fake_driver, tmp_path / "log", FAKE_VERSION="12000")
    assert said and said == launches("call(16, 16, 64)", fake_driver, tmp_path / "other_log")
    text = run("print(nvfp4.info()['driver'], nvfp4.info()['driver_needed'])", fake_driver, FAKE_VERSION="12000")
    assert text == "12.0 12.0"


def test_failure_to_open_is_said_again() -> None:
    code = "\n    ".join(["for _ in range(2):", "    try: call(16, 16, 64)", "    except nvfp4.Error as e: print(e)"])
    first, second = run(code, "/nonexistent/libcuda.so").splitlines()
    assert first == second


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"FAKE_VERSION": "11080"}, ["CUDA 11.8", "12.0", "525", "cuda-compat-12-0"]),
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


COMPILE = ["gcc", *WARNINGS, "-DNVFP4_CUDA", f"-I{CSRC}"]
KERNELS_OF_THE_CPU = [path for path in CORE if path.parent.name == "cpu"]
ALL_BUT_THESE = [path for path in CORE if path.parent.name != "cpu"]


@pytest.fixture(scope="session")
def cpu_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An object file of csrc/cpu."""
    library = tmp_path_factory.mktemp("core") / "cpu.o"
    subprocess.run([*COMPILE, *KERNELS_OF_THE_CPU, "-r", "-o", library], check=True)
    return library


@pytest.fixture(scope="session")
def core_with_driver(empty_images: Path, cpu_kernels: Path) -> list[str]:
    """The command that links a C program with a core that opens the driver."""
    library = cpu_kernels.with_name("core.o")
    subprocess.run([*COMPILE, f"-I{empty_images}", cpu_kernels, *ALL_BUT_THESE, "-r", "-o", library], check=True)
    return [*COMPILE, str(library), "-lm", "-ldl", "-lpthread"]


@pytest.mark.parametrize(
    ("program", "arguments", "lines"),
    [("workspace", [], 16), ("workspace", ["1"], 16), ("test_allocations", [], 1), ("test_new_operation", [], 1)],
    ids=["workspace", "workspace of the second GPU", "test_allocations", "test_new_operation"],
)
def test_c_callers(
    program: str, arguments: list[str], lines: int, core_with_driver: list[str], fake_driver: Path, tmp_path: Path
) -> None:
    """The rules of a caller's workspace, also on a second GPU, what an allocation that fails leaves, and the launch of
    a kind that is added by a row."""
    binary, wrapped = tmp_path / program, WRAPPED.get(program, [])
    subprocess.run([*core_with_driver, TESTS / f"core/{program}.c", *wrapped, "-o", binary], check=True)
    environment = os.environ | {"NVFP4_LIBCUDA": str(fake_driver), "FAKE_CC": "90"}
    environment |= {"FAKE_DEVICES": "2", "FAKE_DEVICE": arguments[0]} if arguments else {}
    done = subprocess.run([binary, *arguments], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == lines, done.stdout


def test_plans_are_steered_while_others_plan(
    tmp_path: Path, empty_images: Path, cpu_kernels: Path, fake_driver: Path
) -> None:
    """Without a race, as ThreadSanitizer sees it. Functions of the CPU that are chosen as the program is loaded
    (target_clones) run before the sanitizer does, so they are not built with it."""
    sanitized = [*COMPILE, f"-I{empty_images}", "-fsanitize=thread", "-g"]
    empty, binary = tmp_path / "empty.c", tmp_path / "plan_threads"
    empty.write_text("int main(void) { return 0; }\n")
    built = subprocess.run([*sanitized, empty, "-o", tmp_path / "empty"], capture_output=True)
    if built.returncode or subprocess.run([tmp_path / "empty"], capture_output=True).returncode:
        pytest.skip("no ThreadSanitizer that runs here")
    sources = [cpu_kernels, *ALL_BUT_THESE, TESTS / "plan/plan_threads.c"]
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
    subprocess.run([*core_with_driver, TESTS / "core/open_driver.c", "-o", binary], check=True)
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


@pytest.mark.parametrize("cc", ["80", "86", "89", "90", "100", "120"])
def test_every_gpu_gets_a_kernel_that_fits(fake_driver: Path, tmp_path: Path, cc: str) -> None:
    limit = {"80": 166912, "90": 232448, "100": 232448}.get(cc, 101376)
    for m, n, k in [(1, 4096, 7168), (16, 4096, 7168), (64, 512, 256), (128, 7168, 2048), (2304, 4608, 7168)]:
        log = tmp_path / f"{m}-{n}-{k}"
        rows = launches(f"call({m}, {n}, {k})", fake_driver, log, FAKE_CC=cc)
        assert rows and all(int(row[3]) <= limit for row in rows)


A_DTYPES = {"uint8": None, "float4_e2m1fn_x2": None, "float16": "float16", "bfloat16": "bfloat16"}


@pytest.mark.parametrize("name", ON_GPU)
def test_a_backend_takes_what_the_table_says(name: str, fake_driver: Path) -> None:
    """Types of A by kind of product, dense with 128x4 scales."""
    cases = [(kind, dtype) for kind in ("gemm", "gemm_nn") for dtype in A_DTYPES]
    calls = [
        f"nvfp4.info({max_rows(name, dtype) or 64}, 512, 512, device=0, backend={name!r}, a_dtype={A_DTYPES[dtype]!r}, "
        f"transpose_b={kind == 'gemm'})['plan']['backend']"
        for kind, dtype in cases
    ]
    lines = [line for call in calls for line in (f"try: print({call})", "except nvfp4.Error: print('-')")]
    said = run("\n    ".join(lines), fake_driver, FAKE_CC=str(ROWS[name]["min_capability"])).split()
    taken = [dtype in ROWS[name]["product_kinds"].get(kind, []) for kind, dtype in cases]
    assert said == [name if takes else "-" for takes in taken]


def test_the_table_of_backends() -> None:
    assert [row["number"] for row in ROWS.values()] == list(range(1, 1 + len(ROWS)))
    assert ROWS["cpu"]["min_capability"] is ROWS["cpu"]["roundings"] is None and not ROWS["cpu"]["architectures"]
    for name, row in ROWS.items():
        everywhere, dense = row["linear_scales"], row["product_kinds"]
        assert everywhere.keys() == dense.keys() and "uint8" in dense["gemm"]
        assert all(set(everywhere[kind]) <= set(dense[kind]) for kind in dense)
        assert name == "cpu" or any(arch.startswith("compute_") for arch in row["architectures"])
    sm90 = ROWS["sm90"]
    assert (sm90["min_capability"], sm90["max_capability"]) == (90, 90) and "H200" in sm90["runs_on"]
    assert sm90["linear_scales"] == {"gemm": ["uint8", "float4_e2m1fn_x2"], "gemm_nn": [], "grouped_gemm": []}
    assert ROWS["sm80"]["roundings"] == {"per_block": 72, "block_k": 16, "constant": 64}


@pytest.mark.parametrize("cc", [80, 86, 89, 90, 100, 103, 110, 120, 121])
def test_the_backend_of_the_gpu_is_chosen(cc: int, fake_driver: Path) -> None:
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
def test_without_code_for_the_device_another_backend_runs(fake_driver: Path, tmp_path: Path, own: str) -> None:
    cc = str(ROWS[own]["min_capability"])
    absent = {"FAKE_CC": cc, "FAKE_ABSENT": f"nvfp4_{own}_"}
    rows = launches(
        "call(128, 4096, 7168, backend=None)", fake_driver, tmp_path / "log", NVFP4_BACKEND="sm80", **absent
    )
    assert rows[0][0].startswith("nvfp4_sm80")
    assert run("print(nvfp4.info(1, 1, 64, device=0)['plan']['backend'])", fake_driver, **absent) == "sm80"
    said = run(f"call(1, 1, 64, backend='{own}')", fake_driver, **absent)
    assert said.startswith(f"backend: is {own}, whose code")
    # A backend that lacks one of its kernels is left out as a whole: its plans may want any of them.
    kernel = list(headers_of(own).configs().values())[-1].kernel
    one = {"FAKE_CC": cc, "FAKE_ABSENT": kernel}
    assert run("print(nvfp4.info(128, 4096, 7168, device=0)['plan']['backend'])", fake_driver, **one) == "sm80"
    # The other backends' code has to be there.
    said = run("call(1, 1, 64)", fake_driver, FAKE_ABSENT="nvfp4_sm80")
    assert "load the GPU code" in said


RAGGED = {
    "exact": [(case.m, case.n, case.k, case.l or 1) for case in exact_products.cases() if not case.a],
    "sanitized": sanitize.SHAPES,
}


@pytest.mark.parametrize("shapes", RAGGED.values(), ids=RAGGED)
def test_ragged_sets_reach_every_instantiation(fake_driver: Path, shapes: list[tuple[int, ...]]) -> None:
    """With and without split-K, with the device properties of an H200: a kernel outside these sets has no test."""
    plans = f"[nvfp4.info(*shape, device=0, backend='sm80')['plan'] for shape in {shapes}]"
    planned = json.loads(run(f"import json; print(json.dumps({plans}))", fake_driver))
    names = [config.kernel for config in headers_of("sm80").configs("gemm").values()]
    assert len(names) > 1
    assert {(plan["kernel"], plan["split_k"] > 1) for plan in planned} == {(n, cut) for n in names for cut in (0, 1)}


def test_host_memory_stays_on_the_cpu_unless_asked(fake_driver: Path, tmp_path: Path) -> None:
    assert launches("call(16, 16, 64, backend=None)", fake_driver, tmp_path / "log") == []
