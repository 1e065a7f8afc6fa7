"""The seed of the tests' random data: fresh in every session, and in pytest's header."""

from __future__ import annotations

import os
import random


def pytest_configure() -> None:
    os.environ.setdefault("EMULATE_TEST_SEED", str(random.SystemRandom().randrange(2**31)))


def pytest_report_header() -> str:
    return f"EMULATE_TEST_SEED={os.environ['EMULATE_TEST_SEED']} (set it to draw the same data again)"
