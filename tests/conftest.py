"""Backends, fresh seeds, and a count of what a machine without a GPU could not run."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

# torch's threads must not spin while those of nvfp4 work: tests run both in turn, on machines of two cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest  # noqa: E402
import torch  # noqa: E402

NO_GPU = "needs an NVIDIA GPU that PyTorch can use"


@dataclass(frozen=True)
class Backend:
    name: str
    device: str  # where its tensors are


def gpu() -> bool:
    return torch.cuda.is_available()


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("NVFP4_TEST_SEED", str(random.SystemRandom().randrange(2**31)))


def pytest_report_header(config: pytest.Config) -> str:
    return f"NVFP4_TEST_SEED={os.environ['NVFP4_TEST_SEED']} (set it to draw the same data again)"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(NO_GPU in str(report.longrepr) for report in skipped)
    if count:
        terminalreporter.write_line(f"{count} tests were skipped: each {NO_GPU}", yellow=True)


@pytest.fixture(params=["cpu", "sm80"])
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "cpu":
        return Backend("cpu", "cpu")
    if not gpu():
        pytest.skip(NO_GPU)
    return Backend(request.param, "cuda")


@pytest.fixture
def cuda() -> Backend:
    if not gpu():
        pytest.skip(NO_GPU)
    return Backend("sm80", "cuda")


@pytest.fixture
def generator(request: pytest.FixtureRequest) -> torch.Generator:
    """Random numbers that differ from session to session and from test to test."""
    salt = f"{os.environ['NVFP4_TEST_SEED']} {request.node.nodeid}"
    return torch.Generator().manual_seed(random.Random(salt).getrandbits(62))
