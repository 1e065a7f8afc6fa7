"""Tells what this machine can run, and why."""

from __future__ import annotations

import os
from sys import modules

from nvfp4 import _C
from nvfp4._products import reject_switch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvfp4._types import DType

_OPERATIONS = (None, "quantize_gemm", "gated_grouped_gemm")  # by nvfp4_shape_operation


def _ordinal(device: Any) -> int:
    """The ordinal of a device, or -1 for the CPU. `device` is an int, "cpu", "cuda", "cuda:1" or a torch.device."""
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    kind, _, index = str(device).partition(":")
    if kind == "cpu":
        return -1
    if kind == "cuda" and index.isdecimal():
        return int(index)
    if kind == "cuda" and not index:
        torch = modules.get("torch")
        return torch.cuda.current_device() if torch is not None and torch.cuda.is_initialized() else 0
    raise _C.Error(f"device: is {device!r}; must be an ordinal, 'cpu', 'cuda' or 'cuda:<ordinal>'")


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _name(dtype: Any) -> str:
    """The C library's name of a dtype, which is a torch dtype, a NumPy type or a name."""
    return str(getattr(dtype, "__name__", dtype)).removeprefix("torch.")


def info(
    m: int | None = None,
    n: int | None = None,
    k: int | None = None,
    l: int = 1,  # noqa: E741  (the batch is L throughout)
    *,
    device: Any = None,
    backend: str | None = None,
    a_dtype: DType | None = None,
    transpose_b: bool = True,
    groups: int = 0,
    operation: str | None = None,
) -> dict[str, Any]:
    """Describes this version of nvfp4, what this machine can run, and the launch plan of a product.

    Args:
        m (int, optional): the rows of A and of the result. Default: None.
            Give m, n and k together, or none of them for a description without a plan.
        n (int, optional): the rows of B. Default: None.
        k (int, optional): the columns of B. Default: None.
        l (int, optional): the number of products in the call. Default: 1.
        device (int, str or torch.device, optional): the device of the product: an ordinal, "cpu", "cuda", "cuda:1" or a
            torch.device. Default: the first usable GPU, else the CPU.
        backend (str, optional): the backend that runs, as in gemm. Default: None.
        a_dtype (dtype, optional): the dtype of gemm's a: torch.float16, torch.bfloat16, NumPy's types and names, or
            None for NVFP4. Default: None.
        transpose_b (bool, optional): whether B is transposed, as in gemm. Default: True.
            With False, a is M x N and the result M x K.
        groups (int, optional): the number of matrices of a grouped_gemm without parts. Default: 0.
            0 is a product by gemm. With groups l must be 1, and m is the number of all rows.
        operation (str, optional): the operation that the product is a step of. Default: None.
            "quantize_gemm": a_dtype is required: that of its a, torch.float32 too. The plan is that of block_scale
                "amax6".
            "gated_grouped_gemm": of `groups` matrices of gate and as many of up. The result is m x n.
            None is gemm or grouped_gemm by themselves.

    Returns:
        A dict of plain values:
            version: the version of nvfp4.
            archs: the GPU architectures that this build has code for.
            cpu_kernel, cpu_threads: the CPU kernel and the number of its threads.
            driver: the version of CUDA that the driver supports, or None.
            driver_needed: the oldest one that this build's GPU code runs on, or None without a driver. 12.0 came with
                NVIDIA's driver release 525, 13.0 with 580.
            driver_reason: why there is no driver; "" if there is one.
            devices: a dict for each GPU, with name, compute_capability, sm_count, clock_mhz, memory_gb_s (peak
                of its bus), l2_bytes, memory_bytes, shared_per_block, shared_per_sm, reads_host_memory
                (whether CPU tensors are accepted if backend is given), usable and, if it is not, the reason.
            plan: the launch plan of the shape, if one is given: device, backend, kernel, reason, tile_m, tile_n,
                tile_k, swap_ab, split_k, workspace, modelled_us, the time of a back-to-back call, and single_us, that
                of a single call with a cold L2, which are 0.0 on a CPU. `fused` says whether a kernel of the plan does
                the other step of `operation` too. If not, another kernel does, and these times are without it. `model`
                says what the constants behind the modelled times come from: the GPU that was measured, or that none
                was; None on a CPU.

    Raises:
        nvfp4.Error: the shape or device cannot be used.

    Examples:
        >>> import nvfp4
        >>> nvfp4.info(16, 4096, 4096, device="cpu")["plan"]["backend"]
        'cpu'
    """
    if operation not in _OPERATIONS:
        raise _C.Error(f"operation: is {operation!r}; must be 'quantize_gemm', 'gated_grouped_gemm' or None")
    driver = _C.driver()
    has_driver = not isinstance(driver, str)
    devices = [_C.device(i) for i in range(driver["devices"])] if has_driver else []
    torch = modules.get("torch")
    result: dict[str, Any] = {
        "version": _C.version,
        "archs": _C.archs.split(),
        "cpu_kernel": _C.cpu_kernel(),
        "cpu_threads": torch.get_num_threads() if torch is not None else len(os.sched_getaffinity(0)),
        "driver": _cuda_version(driver["version"]) if has_driver else None,
        "driver_needed": _cuda_version(driver["needed"]) if has_driver else None,
        "driver_reason": "" if has_driver else driver,
        "devices": devices,
    }
    if m is None and n is None and k is None:
        return result
    if type(transpose_b) is not bool:
        reject_switch(transpose_b=transpose_b)
    if m is None or n is None or k is None:
        raise _C.Error("m, n, k: only some are given; a shape needs all three")
    if device is None:
        usable = (i for i, d in enumerate(devices) if d["usable"])
        ordinal = -1 if backend == "cpu" else next(usable, -1)
    else:
        ordinal = _ordinal(device)
    flags = 0 if transpose_b else _C.NO_TRANSPOSE_B
    result["plan"] = {"device": "cpu" if ordinal < 0 else f"cuda:{ordinal}"} | _C.plan(
        ordinal,
        backend,
        None if a_dtype is None else _name(a_dtype),
        m,
        n,
        k,
        l,
        flags,
        groups,
        _OPERATIONS.index(operation),
    )
    return result


def init(device: Any = "cuda") -> None:
    """Loads the GPU code for a device now instead of at the first call.

    Args:
        device (int, str or torch.device, optional): an ordinal, "cuda" (torch's current device), "cuda:1", a
            torch.device, or "cpu", which needs no loading. Default: "cuda".

    Raises:
        nvfp4.Error: there is no driver or no such device, or this build has no code for it.

    Examples:
        >>> import nvfp4
        >>> nvfp4.init("cpu")
    """
    ordinal = _ordinal(device)
    if ordinal >= 0:
        _C.load(ordinal)
