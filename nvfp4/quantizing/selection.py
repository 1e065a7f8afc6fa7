"""Which layers of a model become NVFP4: `ignore` and what cannot be quantized."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import torch

from nvfp4 import _C
from nvfp4.layers.checks import check_type
from nvfp4.layers.experts.mixture import Description, describe, is_mixture
from nvfp4.layers.fused import FusedPart
from nvfp4.layers.hosts import is_model_of, is_pretrained
from nvfp4.layers.linear import Linear
from nvfp4.layers.packed import BLOCK
from nvfp4.layers.readers import emptied, reader_of
from nvfp4.layers.traversal import as_linear, is_plain

# Presets of `ignore`, by ModelOpt's names: patterns of what is quantized, for names between dots. All else stays dense.
EXPERTS = ("*block_sparse_moe*", "*.experts.*")
PRESETS = {"mlp_only": ("*mlp*", "*.mixer.up_proj.*", "*.mixer.down_proj.*", *EXPERTS), "experts_only": EXPERTS}
# Parts of names of modules for images, which producers leave dense.
TOWERS = ("embed_vision", "vision_tower", "visual", "vision_model", "multi_modal_projector")
# ModelOpt leaves these dense in any preset: routers, heads, towers for images.
PRESETS_IGNORE = (
    *("*block_sparse_moe.gate*", "*.mlp.gate.*", "*.mlp.shared_expert_gate.*", "*router*", "*lm_head*"),
    *("*output_layer*", "*proj_out.*", "mtp.*", "output.*"),
    *(f"*{tower}*" for tower in TOWERS),
)


def reason_of(name: str, ignore: Sequence[str]) -> str | None:
    """Why a module of this name stays dense by quantize_model's `ignore`, or None."""
    if not isinstance(ignore, str):
        pattern = next((pattern for pattern in ignore if matches(name, pattern)), None)
        return None if pattern is None else f"ignore has {pattern!r}"

    def has(patterns: Sequence[str]) -> bool:
        return any(fnmatch.fnmatchcase(text, p) for text in (f"{name}.", f".{name}.") for p in patterns)

    return None if has(PRESETS[ignore]) and not has(PRESETS_IGNORE) else f"ignore is {ignore!r}"


def find_mixtures(model: torch.nn.Module, ignore: Sequence[str], skipped: dict[str, str]) -> dict[str, Description]:
    """The modules of experts to quantize. Adds why others are skipped."""
    found = {}
    for name, module in model.named_modules():
        if not is_mixture(module):
            continue
        about = describe(module)
        reason = reason_of(name, ignore)
        if not name:
            raise _C.Error(f"model: is a {type(module).__name__} itself; must be a module that has it as a child")
        if reason is not None:
            skipped[name] = reason
        elif isinstance(about, str):
            skipped[name] = about
        else:
            found[name] = about
    return found


def towers_of(names: Iterable[str]) -> dict[str, int]:
    """The modules for images that these layers are in, each with the number of its layers."""
    found: Counter[str] = Counter()
    for name in names:
        parts = name.split(".")
        inside = [i for i, part in enumerate(parts, start=1) if any(tower in part for tower in TOWERS)]
        if inside:
            found[".".join(parts[: inside[0]])] += 1
    return dict(found)


def check_ignore(ignore: Sequence[str]) -> None:
    if isinstance(ignore, str):
        if ignore in PRESETS:
            return
        presets = " or ".join(map(repr, PRESETS))
        raise _C.Error(f"ignore: is the string {ignore!r}; must be a sequence of patterns, or {presets}")
    check_type("ignore", ignore, Collection, "a sequence of patterns")
    for pattern in ignore:
        if not isinstance(pattern, str):
            raise _C.Error(f"ignore: has {pattern!r}; must have strings alone")
        if pattern.startswith("re:"):
            try:
                re.compile(pattern.removeprefix("re:"))
            except re.error as error:
                raise _C.Error(f"ignore: {pattern!r} is no regular expression: {error}") from None


def find_linears(model: torch.nn.Module, ignore: Sequence[str]) -> tuple[dict[str, torch.nn.Module], dict[str, str]]:
    """The linear layers to quantize by name, and why others are skipped."""
    linears: dict[str, torch.nn.Module] = {}
    skipped: dict[str, str] = {}
    unused = set() if isinstance(ignore, str) else {pattern for pattern in ignore if pattern != "lm_head"}
    own: dict[str, str] = {}  # modules that read their layers' weights, with their type
    modules = dict(model.named_modules(remove_duplicate=False))
    found: set[int] = set()
    ignored = {id(m) for name, m in modules.items() if reason_of(name, ignore) is not None}
    for name, module in modules.items():
        if is_model_of("peft", module):
            raise _C.Error(
                f"model: {name} has an adapter; must have none: quantize before adapters are added, or merge or unload "
                "them first"
            )
        unused -= {pattern for pattern in unused if matches(name, pattern)}
        if isinstance(module, torch.nn.TransformerEncoderLayer):
            own[f"{name}." if name else ""] = type(module).__name__
        linear = as_linear(module)
        if linear is None and not isinstance(module, FusedPart):
            continue
        above = name.rpartition(".")[0]
        if isinstance(modules.get(above), FusedPart):  # the joined layer, which its parts stand for
            continue
        reader = next((kind for prefix, kind in own.items() if name.startswith(prefix)), reader_of(name, modules))
        if id(module) in ignored:
            skipped[name] = reason_of(name, ignore) or "is the same layer as an ignored one"
        elif linear is None or isinstance(linear, Linear):
            skipped[name] = "is NVFP4 already"
        elif not is_plain(module):
            skipped[name] = f"is a {type(module).__name__}, which may have a forward of its own"
        elif reader is not None:
            skipped[name] = f"{reader} reads its weight itself"
        elif linear.in_features == 0 or linear.in_features % BLOCK:
            skipped[name] = f"in_features is {linear.in_features}, no positive multiple of {BLOCK}"
        elif id(module) not in found:
            linears[name] = module
            found.add(id(module))
    leave_tied(model, modules, linears, skipped)
    for name, kind in emptied(modules, linears).items():
        del linears[name]
        skipped[name] = f"{kind} asks for a parameter of the module that holds it"
    if unused:
        raise _C.Error(f"ignore: {sorted(unused)[0]!r} matches no module of the model")
    return linears, skipped


def leave_tied(
    model: torch.nn.Module,
    modules: Mapping[str, torch.nn.Module],
    linears: dict[str, torch.nn.Module],
    skipped: dict[str, str],
) -> None:
    """Leaves out layers from which transformers takes a parameter for a module that stays dense, such as the `bias`
    beside the decoder of LUKE's head: packed layers have no parameters."""
    keys = getattr(model, "all_tied_weights_keys", {}) if is_pretrained(model) else {}
    for target, source in keys.items():
        name, other = (key.rpartition(".")[0] for key in (source, target))
        if name in linears and other not in linears and modules.get(other) is not modules[name]:
            del linears[name]
            skipped[name] = f"{target} is tied to its weight or bias"


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern of quantize_model's `ignore` matches a module of this name."""
    if not name:
        return False
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), name) is not None
    parts = name.split(".")
    names = [".".join(parts[: i + 1]) for i in range(len(parts))] + parts
    return any(fnmatch.fnmatchcase(candidate, pattern) for candidate in names)
