"""The target of a command: torch, the device that a backend needs, the hardware's name and its clocks."""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nvfp4 import _C, info
from nvfp4.cli.show import CommandError

if TYPE_CHECKING:
    import torch


def import_torch() -> ModuleType:
    """torch, without its warning about a missing NumPy, which nothing here needs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Failed to initialize NumPy", category=UserWarning)
        import torch
    return torch


def need_torch() -> ModuleType:
    """torch, or an error message that says how to install it."""
    try:
        return import_torch()
    except ImportError as error:
        raise CommandError(f"torch is needed and could not be imported ({error}); pip install torch==2.13.0") from None


def need_baseline(kind: str, name: str, module: str, needs: str, device: torch.device) -> None:
    """Raises an error message where the library of `--against KIND` is missing, or has no GPU."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise CommandError(f"--against {kind}: needs {needs} cannot be imported: {error}") from None
    if device.type != "cuda":
        raise CommandError(f"--against {kind}: the device is {device}; {name} runs on a GPU alone")


def backends() -> str:
    """All names of backends, for help texts."""
    return ", ".join(row["name"] for row in _C.backends())


def own_backends() -> list[dict[str, Any]]:
    """The backends with kernels for one architecture."""
    return [row for row in _C.backends() if row["max_capability"] is not None]


def own_backend(capability: int) -> dict[str, Any] | None:
    """That of a GPU, by its compute capability, 10*major + minor."""
    own = (row for row in own_backends() if row["min_capability"] <= capability <= row["max_capability"])
    return next(own, None)


@dataclass(frozen=True)
class Target:
    """The device that computes, the device of the tensors, and the backend to pass (None: the tensors decide)."""

    device: torch.device
    tensors: torch.device
    backend: str | None


def pick_target(backend: str | None) -> Target:
    """The target of `backend`; without a backend the first usable GPU, else the CPU.

    A GPU that reads host memory is usable even if torch has no CUDA support."""
    torch = need_torch()
    # Plans the smallest product: nvfp4 rejects a backend that is unknown or that cannot run here.
    properties = info(1, 1, 16, backend=backend)
    device, cpu = torch.device(properties["plan"]["device"]), torch.device("cpu")
    if device.type == "cpu" or torch.cuda.is_available():
        return Target(device, device, backend)
    if device.index == 0 and properties["devices"][0]["reads_host_memory"]:
        return Target(device, cpu, properties["plan"]["backend"])
    if backend is None:
        return Target(cpu, cpu, None)
    raise CommandError(f"--backend {backend}: there is a GPU, but torch {torch.__version__} cannot use it")


def kernel(
    m: int, n: int, k: int, device: torch.device, backend: str | None, l: int = 1, a_dtype: str | None = None
) -> str:
    """The kernel that computes a product of this shape, with NVFP4 or 16-bit A, on the device."""
    return info(m, n, k, l, device=device, backend=backend, a_dtype=a_dtype)["plan"]["kernel"]


def describe(device: torch.device) -> str:
    """The hardware in words."""
    properties = info()
    if device.type == "cuda":
        gpu = properties["devices"][device.index]
        return f"{gpu['name']}, {gpu['sm_count']} SMs, CUDA driver {properties['driver']}"
    threads = properties["cpu_threads"]
    return f"{cpu_name()} ({cpu_features()}), {threads} thread{'s' * (threads != 1)}, kernel {properties['cpu_kernel']}"


def cpu_field(name: str) -> str:
    """A field of the first CPU in /proc/cpuinfo, or ""."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")


def cpu_name() -> str:
    return cpu_field("model name") or platform.processor() or platform.machine()


def cpu_flags() -> set[str]:
    return set(cpu_field("flags").split()) | set(cpu_field("Features").split())


def cpu_features() -> str:
    """The CPU's instruction sets that matter for small-integer and bf16 products."""
    known = ("avx2", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimddp", "i8mm", "bf16")
    flags = cpu_flags()
    return " ".join(feature for feature in known if feature in flags) or "no vector extension known to us"


def has_bf16() -> bool:
    """Whether the CPU has instructions for bf16 products. Without them torch's take a hundred times as long as fp32's:
    on an EPYC with AVX2 alone 3.2 GFLOP/s instead of 129."""
    return not cpu_flags().isdisjoint(("avx512_bf16", "amx_bf16", "bf16"))


def clocks(device: torch.device) -> str:
    """The GPU's current clocks, power state and temperature, and its limits, from nvidia-smi."""
    fields = "driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,pstate,temperature.gpu"
    uuid = f"GPU-{need_torch().cuda.get_device_properties(device).uuid}"
    command = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        driver, sm, highest, memory, draw, limit, power_state, heat = (field.strip() for field in answer.split(","))
    except (OSError, subprocess.SubprocessError, ValueError):
        return "clocks unknown (nvidia-smi did not answer)"
    state = f"SM {sm} of {highest} MHz, memory {memory} MHz, {draw} of {limit} W, {power_state}, {heat} C"
    return f"{state}; not locked (nvidia-smi, driver {driver})"


def last_level_cache() -> int | None:
    """Bytes of the CPU's largest cache, from sysfs; None if unknown."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        factor = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
        digits = text.rstrip("KMG")
        if digits.isdigit():
            sizes.append(int(digits) * factor)
    return max(sizes, default=None)


def available_memory() -> int:
    """Bytes of host memory that are available without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def free_memory(device: torch.device) -> int:
    """Bytes of a GPU's or of the host's memory that are available."""
    return int(need_torch().cuda.mem_get_info(device)[0]) if device.type == "cuda" else available_memory()
