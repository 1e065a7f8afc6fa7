"""Plans that were measured to be faster than the estimate's choice, from a file of `python -m nvfp4 bench --tune`."""

from __future__ import annotations

import os

from nvfp4 import _C

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FORMAT = "nvfp4-tune 1"
DEVICE = ("name", "compute_capability", "sm_count")  # what must be as it was when the file was written
SETTINGS = ("kernel", "swap_ab", "split_k", "prefetch_stages")  # what sets a plan apart from the others for a shape

_preferred: list[tuple[Any, ...]] = []  # arguments of _C.override_plan, as they are in force


def use_tuning(path: str | os.PathLike[str] | None) -> list[dict[str, Any]]:
    """Takes, for the shapes in a file of `python -m nvfp4 bench --tune`, the plans that were measured to be best.

    By itself nvfp4 reads no such file: plans are chosen by an estimate, on every machine alike. The plans of a file
    are used for products of exactly its M, N and K with L = 1, on every GPU of its name, until another file or None
    replaces them. Products captured in a CUDA graph keep the plans that they were captured with. Not while other
    threads multiply.

    Args:
        path: the file; None goes back to the estimate.

    Returns:
        For each shape a dict: m, n, k, and the plan by its kernel, swap_ab, split_k and prefetch_stages.

    Raises:
        nvfp4.Error: the file is none of these, was written by another version of nvfp4 or for a GPU that is not here,
            or names a plan that there is not. What was used before stays.
    """
    wanted = [] if path is None else _read(os.fspath(path))
    try:
        _prefer([call for _, calls in wanted for call in calls])
    except (_C.Error, TypeError) as reason:
        _prefer(_preferred)
        raise _C.Error(f"path: {path!s} does not fit this nvfp4: {reason}") from None
    _preferred[:] = [call for _, calls in wanted for call in calls]
    return [used for used, _ in wanted]


def _prefer(calls: list[tuple[Any, ...]]) -> None:
    _C.clear_overrides()
    for call in calls:
        _C.override_plan(*call)


def _read(path: str) -> list[tuple[dict[str, Any], list[tuple[Any, ...]]]]:
    """What to use, with the calls of _C.override_plan for each device."""
    import json  # not before: it would double the time that importing nvfp4 takes

    try:
        with open(path, encoding="utf-8") as file:
            tuning = json.load(file)
    except OSError as error:
        raise _C.Error(f"path: {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise _C.Error(f"path: {path} is not JSON: {error}") from None
    if not isinstance(tuning, dict) or tuning.get("format") != FORMAT:
        raise _C.Error(f"path: {path} is not a file of this nvfp4's `bench --tune`, whose format is {FORMAT!r}")
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
    there = tuple(tuning["device"][fact] for fact in DEVICE)
    driver = _C.driver()
    devices = [] if isinstance(driver, str) else [_C.device(i) for i in range(driver["devices"])]
    ordinals = [i for i, device in enumerate(devices) if tuple(device[fact] for fact in DEVICE) == there]
    if not ordinals:
        here = ", ".join(device["name"] for device in devices) or "no GPU"
        raise _C.Error(f"path: {path} was measured on {there[0]} with {there[2]} SMs; here is {here}")
    choices = []
    for result in tuning["results"]:
        if result["preferred"] is None:
            continue
        sizes = tuple(result["shape"][size] for size in "mnk")
        plan = result["candidates"][result["preferred"]]
        settings = {name: plan[name] for name in SETTINGS}
        calls = [(ordinal, *sizes, 1, *settings.values()) for ordinal in ordinals]
        choices.append((dict(zip("mnk", sizes)) | settings, calls))
    return choices
