"""Where a command runs: torch, the device that a backend needs, what the machine is called, and its clocks."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from .. import info
from .show import Refusal

if TYPE_CHECKING:
    import torch


def need_torch() -> ModuleType:
    """torch, or a refusal that says how to get it."""
    try:
        import torch
    except ImportError as error:
        raise Refusal(f"torch is needed and could not be imported ({error}); pip install torch==2.13.0") from None
    return torch


@dataclass(frozen=True)
class Place:
    """Where products are computed, where their tensors are, and the backend to ask for (None: the tensors decide)."""

    device: torch.device
    tensors: torch.device
    backend: str | None


def pick_place(backend: str | None) -> Place:
    """The device that `backend` computes on; without one, the first GPU that can be used, else the CPU.

    A GPU that reads host memory can be used without a torch that knows it."""
    torch = need_torch()
    # The smallest product will do: a backend that is unknown or cannot run here is refused by name.
    facts = info(1, 1, 16, backend=backend)
    device, cpu = torch.device(facts["plan"]["device"]), torch.device("cpu")
    if device.type == "cpu" or torch.cuda.is_available():
        return Place(device, device, backend)
    if device.index == 0 and facts["devices"][0]["reads_host_memory"]:
        return Place(device, cpu, facts["plan"]["backend"])
    if backend is None:
        return Place(cpu, cpu, None)
    raise Refusal(f"--backend {backend}: there is a GPU, but torch {torch.__version__} cannot use it")


def kernel(m: int, n: int, k: int, device: torch.device, backend: str | None, l: int = 1) -> str:
    """The kernel that a product of this shape runs on there."""
    return info(m, n, k, l, device=device, backend=backend)["plan"]["kernel"]


def describe(device: torch.device) -> str:
    """The hardware in words."""
    facts = info()
    if device.type == "cuda":
        gpu = facts["devices"][device.index]
        return f"{gpu['name']}, {gpu['sm_count']} SMs, CUDA driver {facts['driver']}"
    threads = facts["cpu_threads"]
    return f"{cpu_name()} ({cpu_features()}), {threads} thread{'s' * (threads != 1)}, kernel {facts['cpu_kernel']}"


def cpu_field(name: str) -> str:
    """A field of the first CPU in /proc/cpuinfo, or ""."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")


def cpu_name() -> str:
    return cpu_field("model name") or platform.processor() or platform.machine()


def cpu_features() -> str:
    """Those of the CPU's instructions that decide how fast small-integer and bf16 products are."""
    flags = set(cpu_field("flags").split()) | set(cpu_field("Features").split())
    known = ("avx2", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimddp", "i8mm", "bf16")
    return " ".join(feature for feature in known if feature in flags) or "no vector extension known to us"


def clocks(device: torch.device) -> str:
    """The GPU's clocks, power state and temperature now, and its limits, as nvidia-smi tells them."""
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
    """Bytes of the CPU's largest cache, as Linux tells them."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        factor = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
        digits = text.rstrip("KMG")
        if digits.isdigit():
            sizes.append(int(digits) * factor)
    return max(sizes, default=None)


def available_memory() -> int:
    """Bytes of host memory that can be had without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
