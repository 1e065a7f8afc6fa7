"""Backends, fresh seeds, an emulated GPU on request, and a count of what a machine without a GPU could not run."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# torch's threads must not spin while those of nvfp4 work: tests run both in turn, on machines of two cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# NumPy's threads do spin: beside another test, small products take three times their time on one thread.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

sys.path.insert(1, str(Path(__file__).with_name("support")))

from paths import BENCHMARKS, CSRC, EMULATOR, KERNELS, ROOT, SUPPORT, TESTS, TOOLS, gpu_backends, module_at  # noqa: E402

sys.path[1:1] = map(str, (KERNELS, EMULATOR, BENCHMARKS, TOOLS))

import emulate  # noqa: E402  (the project in emulator/)
import python_server  # noqa: E402
import small_product  # noqa: E402
from call_workers import TARGETS, Workers  # noqa: E402

pytest_plugins = ["skips"]

NO_GPU = "needs an NVIDIA GPU that PyTorch can use"
FULL = bool(os.environ.get("CI_FULL"))  # of .ci/full: what an ordinary run has no time for
in_full = pytest.mark.skipif(not FULL, reason="CI_FULL=1 runs it")


def is_emulated() -> bool:
    """Whether --emulate is given, whose calls take a thousand times as long; for decorators, which have no fixtures."""
    return "EMULATE_DEVICE" in os.environ


def one_in(count: int, cases: Sequence[Any]) -> list[Any]:
    """Every count-th case, beginning at one that the session's seed draws; all of them with CI_FULL=1."""
    first = random.Random(os.environ["NVFP4_TEST_SEED"]).randrange(count)
    return list(cases) if FULL else list(cases)[first::count]


@dataclass(frozen=True)
class Backend:
    name: str
    device: str  # where its tensors are
    emulated: bool = False  # a call takes about a thousand times as long


def gpu() -> bool:
    return torch.cuda.is_available()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--emulate",
        metavar="DEVICE",
        choices=emulate.DEVICES,
        help="run what needs a GPU on an emulated one (emulator/): " + ", ".join(emulate.DEVICES),
    )
    parser.addoption(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="with --emulate: run each test N times, with asynchronous operations completing at other moments",
    )


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("NVFP4_TEST_SEED", str(random.SystemRandom().randrange(2**31)))
    device = config.getoption("--emulate")
    if device:
        # Before nvfp4 is imported, which reads this once: not at the head of this file. The emulated GPU's memory is
        # the host's, so tensors on the CPU are the device's too.
        os.environ["NVFP4_LIBCUDA"] = str(emulate.build())
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # of torch: tensors of a real GPU would not do
        os.environ["EMULATE_DEVICE"] = device


# Longest first, so that `pytest -n 2` ends with short ones: 10 to 60 s each on one core. The first two are split by
# test and by build; of every other file the tests stay together, since module fixtures do work for all of them.
LONGEST = [
    "kernels/test_emulated.py",
    "core/test_c_core.py",
    "kernels/test_proof.py",
    "tools/test_submission.py",
    "ops/test_generated_calls.py",
    "kernels/sm100/test_sm100_gemm.py",
    "bindings/test_torch_ops.py",
    "bindings/test_python_module.py",
    "ops/test_guarded_calls.py",
    "ops/test_grouped_gemm.py",
    "core/test_driver.py",
    "kernels/sm100/test_sm100_stages.py",
    "kernels/sm90/test_sm90_gemm.py",
    "ops/test_gemm_exact.py",
]


def unit(nodeid: str) -> str:
    """The tests that one process of `pytest -n` runs together."""
    file, _, name = nodeid.partition("::")
    if file.endswith(LONGEST[0]):
        return nodeid
    build = re.search(r"\[(\w+)", name)
    if file.endswith(LONGEST[1]) and build:
        return f"{file}[{build[1]}"  # all its programs link the same objects
    return file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByUnit(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    config.option.loadscopereorder = False  # by the number of tests, which says little about their time
    return ByUnit(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {str(TESTS / name): place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(str(item.path), len(places)))


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()  # thousands of items and torch, which each full collection would go through: a tenth of a session


def pytest_sessionfinish() -> None:
    python_server.close()


def pytest_report_header(config: pytest.Config) -> list[str]:
    device = config.getoption("--emulate")
    lines = [f"NVFP4_TEST_SEED={os.environ['NVFP4_TEST_SEED']} (set it to draw the same data again)"]
    return lines + ([f"emulated GPU: {device}, {config.getoption('--seeds')} seed(s) a test"] if device else [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(NO_GPU in str(report.longrepr) for report in skipped)
    if count:
        terminalreporter.write_line(f"{count} tests were skipped: each {NO_GPU}", yellow=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.config.getoption("--emulate") and "timing" in metafunc.fixturenames:
        metafunc.parametrize("timing", range(metafunc.config.getoption("--seeds")), indirect=True, ids="time{}".format)


@pytest.fixture
def timing(request: pytest.FixtureRequest) -> None:
    """The emulated GPU's seed. Its lowest two bits choose the kind of timing: of a test's first seed any, and four in a
    row have them all. The third one has lanes of a warp run together or apart, if EMULATE_LANES does not."""
    if not request.config.getoption("--emulate"):
        return
    test = request.node.nodeid.replace(f"-time{request.param}]", "]").replace(f"[time{request.param}]", "")
    seed = random.Random(f"{os.environ['NVFP4_TEST_SEED']} {test}").getrandbits(32) + request.param
    lanes = os.environ.get("EMULATE_LANES", ("together", "apart")[seed // 4 % 2])
    print(f"EMULATE_SEED={seed} EMULATE_LANES={lanes}")  # shown with a failure
    driver = ctypes.CDLL(os.environ["NVFP4_LIBCUDA"])
    driver.emulator_reset()  # a fault of an earlier test must not stick
    assert driver.emulator_configure(b"seed", str(seed).encode()) == 0
    assert driver.emulator_configure(b"lanes", lanes.encode()) == 0


def compute_capability() -> int:
    """Ten times that of the GPU that tests use, emulated or not; 0 for none."""
    if not gpu() and "NVFP4_LIBCUDA" not in os.environ:
        return 0  # a libcuda.so.1 that is there was loaded into this process by tests that use the emulator directly
    import nvfp4

    devices = nvfp4.info()["devices"]
    return devices[0]["compute_capability"] if devices else 0


def runs(backend: str) -> bool:
    """Whether that GPU runs the backend's kernels; without a GPU, whether they are for every one."""
    from backend_table import ROWS, runs_on

    capability = compute_capability()
    return runs_on(backend, capability) if capability else ROWS[backend]["max_capability"] is None


def skip_other_backends(name: str) -> None:
    if name != "cpu" and not runs(name):
        pytest.skip(f"needs a GPU that runs the {name} kernels")


@pytest.fixture(params=["cpu", *gpu_backends()])
def backend(request: pytest.FixtureRequest, timing: None) -> Iterator[Backend]:
    if request.config.getoption("--emulate"):
        if request.param == "cpu":
            pytest.skip("is not what --emulate asks for")
        skip_other_backends(request.param)
        from nvfp4 import _C

        _C.set_default_backend(request.param)  # of what takes no backend: custom_kernel, quantize
        yield Backend(request.param, "cpu", emulated=True)
        _C.set_default_backend(None)
    elif request.param == "cpu":
        yield Backend("cpu", "cpu")
    else:
        if not gpu():
            pytest.skip(NO_GPU)
        skip_other_backends(request.param)
        yield Backend(request.param, "cuda")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell without job control starts what runs in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    workers = Workers()
    yield workers
    workers.close()


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest, workers: Workers) -> str:
    """The target on which generated calls run in a process of their own: a CPU kernel, an emulated GPU, or the GPU."""
    target, emulate = request.param, request.config.getoption("--emulate")
    if emulate and emulate != target:
        pytest.skip("is not what --emulate asks for")
    import nvfp4

    if target.startswith("sm_") and not nvfp4.info()["archs"]:
        pytest.skip("this build has no GPU code")
    if target == "cuda" and not gpu():
        pytest.skip(NO_GPU)
    if workers.ask(target, "usable") is not True:
        pytest.skip(f"this CPU has not the instructions of {target}")
    return target


@pytest.fixture
def cuda() -> Backend:
    if not gpu():
        pytest.skip(NO_GPU)
    return Backend("sm80", "cuda")


@pytest.fixture
def candidate() -> Iterator[None]:
    """For tests that choose plans: afterwards the first one counts again."""
    from nvfp4 import _C

    yield
    _C.set_candidate(0)


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """Where a layer lies, which chooses its backends itself."""
    if request.param == "cuda" and not gpu():
        pytest.skip(NO_GPU)
    if request.param == "cpu" and request.config.getoption("--emulate"):
        pytest.skip("is not what --emulate asks for")
    return request.param


@pytest.fixture
def generator(request: pytest.FixtureRequest) -> torch.Generator:
    """Random numbers that differ from session to session and from test to test."""
    salt = f"{os.environ['NVFP4_TEST_SEED']} {request.node.nodeid}"
    return torch.Generator().manual_seed(random.Random(salt).getrandbits(62))


@pytest.fixture
def operands(generator: torch.Generator) -> list[torch.Tensor]:
    return small_product.operands(generator)


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A libcuda that launches nothing."""
    library = tmp_path_factory.mktemp("fake") / "libcuda_fake.so"
    source = SUPPORT / "fake_libcuda.c"
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library


@pytest.fixture(scope="session")
def empty_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an images.inc, for C builds with -DNVFP4_CUDA: an image of one byte in place of each."""
    folder = tmp_path_factory.mktemp("images")
    cuda = module_at(ROOT / "build_backend/nvfp4_cuda.py")
    (folder / "empty").write_bytes(cuda.packed(b"\0"))
    names = [cuda.name_of(path) for path in CSRC.glob("kernels/*/*.cu")]
    (folder / "images.inc").write_text(cuda.table((name, "compute_80", folder / "empty", 1) for name in names))
    return folder


@pytest.fixture(name="random")
def numpy_generator(request: pytest.FixtureRequest) -> numpy.random.Generator:
    """The same, of NumPy."""
    return numpy.random.default_rng([int(os.environ["NVFP4_TEST_SEED"]), *request.node.nodeid.encode()])
