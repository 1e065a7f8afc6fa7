"""Plan overrides from a file of `python -m nvfp4 bench --tune`: launch plans that were measured to be the fastest."""

from __future__ import annotations

import os

from nvfp4 import _C

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FORMAT = "nvfp4-tune 4"
FLAGS = {"gemm": 0, "gemm_nn": _C.NO_TRANSPOSE_B}  # nvfp4_flags of each operation
DEVICE = ("name", "compute_capability", "sm_count")  # device properties that must equal those in the file
SETTINGS = ("kernel", "swap_ab", "split_k", "prefetch_stages", "ctas_per_sm")  # distinguish the plans of a shape

_overrides: list[tuple[Any, ...]] = []  # arguments of _C.override_plan, in force now


def use_tuning(path: str | os.PathLike[str] | None) -> list[dict[str, Any]]:
    """Overrides launch plans with the fastest ones in a file of `python -m nvfp4 bench --tune`.

    nvfp4 never reads such a file on its own: by default a model chooses plans. A plan of the file applies to products
    with exactly its operation, dtype of A, M, N and K and L = 1, on every GPU of the same model. It applies until
    another file or None replaces it. Products captured in a CUDA graph keep their plans. Calls that other threads make
    meanwhile take the old plans, the model's or the new ones.

    Args:
        path (str, PathLike or None): the file; None removes all overrides.

    Returns:
        A list with a dict for each product: operation ("gemm", or "gemm_nn" for transpose_b=False), a_dtype (None for
        NVFP4), m, n, k, and the plan as kernel, swap_ab, split_k, prefetch_stages and ctas_per_sm.

    Raises:
        nvfp4.Error: the file has another format, was written by another version of nvfp4 or for another GPU, or has a
            plan that this version lacks. The overrides stay unchanged.

    Examples:
        >>> import nvfp4
        >>> nvfp4.use_tuning("tuned.json")  # doctest: +SKIP
        >>> nvfp4.use_tuning(None)
        []
    """
    wanted = [] if path is None else _read(os.fspath(path))
    try:
        _override([call for _, calls in wanted for call in calls])
    except (ValueError, TypeError, OverflowError) as reason:
        _override(_overrides)
        raise _C.Error(f"path: {path!s} does not fit this nvfp4: {reason}") from None
    _overrides[:] = [call for _, calls in wanted for call in calls]
    return [used for used, _ in wanted]


def _override(calls: list[tuple[Any, ...]]) -> None:
    """Replaces all overrides."""
    _C.clear_overrides()
    for call in calls:
        _C.override_plan(*call)


def _read(path: str) -> list[tuple[dict[str, Any], list[tuple[Any, ...]]]]:
    """Returns the plan of each product, with the arguments of _C.override_plan for each device."""
    import json  # deferred: it doubles the import time of nvfp4

    try:
        with open(path, encoding="utf-8") as file:
            tuning = json.load(file)
    except OSError as error:
        raise _C.Error(f"path: {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise _C.Error(f"path: {path} is not JSON: {error}") from None
    if not isinstance(tuning, dict) or tuning.get("format") != FORMAT:
        raise _C.Error(f"path: {path} is not a file of `bench --tune` in the format {FORMAT!r}")
    try:
        return _choices(path, tuning)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise _C.Error(f"path: {path} is damaged: {type(error).__name__}: {error}") from None


def _choices(path: str, tuning: dict[str, Any]) -> list[tuple[dict[str, Any], list[tuple[Any, ...]]]]:
    if tuning["nvfp4"] != _C.version:
        raise _C.Error(
            f"path: {path} was measured with nvfp4 {tuning['nvfp4']}, this is {_C.version}, whose kernels may differ; "
            "run `python -m nvfp4 bench --tune` again"
        )
    tuned = tuple(tuning["device"][name] for name in DEVICE)
    driver = _C.driver()
    devices = [] if isinstance(driver, str) else [_C.device(i) for i in range(driver["devices"])]
    ordinals = [i for i, device in enumerate(devices) if tuple(device[name] for name in DEVICE) == tuned]
    if not ordinals:
        here = ", ".join(device["name"] for device in devices) or "no GPU"
        raise _C.Error(f"path: {path} was measured on {tuned[0]} with {tuned[2]} SMs; this machine has {here}")
    choices = []
    for result in tuning["results"]:
        if result["selected"] is None:
            continue
        operation, a_dtype = result["operation"], result["a_dtype"]
        sizes = tuple(result["shape"][size] for size in "mnk")
        product = (None, a_dtype, *sizes, 1, FLAGS[operation])  # None: any backend
        plan = result["candidates"][result["selected"]]
        settings = {name: plan[name] for name in SETTINGS}
        calls = [(ordinal, *product, *settings.values()) for ordinal in ordinals]
        used = {"operation": operation, "a_dtype": a_dtype} | dict(zip("mnk", sizes))
        choices.append((used | settings, calls))
    return choices
