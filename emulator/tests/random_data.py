"""Random numbers that differ from session to session and from test to test."""

from __future__ import annotations

import os
import zlib

import numpy


def random_of(name: str) -> numpy.random.Generator:
    """EMULATE_TEST_SEED, which pytest prints in its header, repeats the data."""
    return numpy.random.default_rng([int(os.environ["EMULATE_TEST_SEED"]), zlib.crc32(name.encode())])
