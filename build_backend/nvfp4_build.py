"""The build backend: setuptools' own, asking for NVIDIA's compiler wheels where no CUDA compiler is installed."""

from __future__ import annotations

from typing import Any

import nvfp4_cuda
from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  (every other hook is setuptools')

Settings = dict[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return build_meta.get_requires_for_build_wheel(config_settings) + nvfp4_cuda.required_wheels()


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return build_meta.get_requires_for_build_editable(config_settings) + nvfp4_cuda.required_wheels()
