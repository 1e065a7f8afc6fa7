"""The names of tensors in checkpoints, as transformers renames them while it loads and saves a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch

from nvfp4 import _C
from nvfp4.checkpoints.checkpoint import Checkpoint
from nvfp4.checkpoints.experts.naming import DOWN, GATE, UP
from nvfp4.hosts.transformers.library import (
    WeightConverter,
    WeightRenaming,
    get_model_conversion_mapping,
    rename_source_key,
    revert_weight_conversion,
)
from nvfp4.layers.fp8 import Fp8Linear
from nvfp4.layers.fused import FusedPart
from nvfp4.layers.linear import Linear


def renamer(model: Any) -> Callable[[str], tuple[str, str | None]]:
    """Returns a function that renames a tensor of a checkpoint as transformers does. It returns the name in the model
    and, where transformers joins or splits the tensor, the pattern of the conversion.
    """
    conversions = get_model_conversion_mapping(model)
    renamings = [entry for entry in conversions if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in conversions if isinstance(entry, WeightConverter)]
    state = model.state_dict()

    def renamed(key: str) -> tuple[str, str | None]:
        new, source = rename_source_key(key, renamings, converters, model.base_model_prefix, state)
        return (key, None) if new not in state and key in state else (new, source)

    return renamed


def names_in(model: Any, checkpoint: Checkpoint) -> tuple[dict[str, str], set[str]]:
    """Maps each layer of the checkpoint to its name in the model, by the renamings with which transformers loads.
    Returns also the names of all weights that the model is given.
    """
    conversions = get_model_conversion_mapping(model)
    converters = [entry for entry in conversions if isinstance(entry, WeightConverter)]
    by_source = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    renamed = renamer(model)
    names, given = {}, set()
    for name in checkpoint.all_layers:
        key, source = renamed(f"{name}.weight")
        if source is not None:
            raise _C.Error(f"{name}: is joined with other layers by transformers, which quantized layers cannot be yet")
        names[name] = key.removesuffix(".weight")
        given.add(key)
    for name in checkpoint.tensors:
        key, source = renamed(name)
        targets = [] if source is None else by_source[source].target_patterns  # one name there, several here
        given |= {key, *(key.replace(targets[0], target) for target in targets)}
    return names, given


def rename(model: Any, checkpoint: Checkpoint) -> None:
    """Gives a checkpoint's layers and tensors their names in a model of transformers.

    Raises:
        nvfp4.Error: transformers joins or splits a tensor while it loads.
    """
    renamed, state = renamer(model), model.state_dict()

    def new(name: str) -> str:
        key, source = renamed(name)
        if source is not None and name not in state:
            raise _C.Error(f"{name}: is joined or split by transformers while it loads; use nvfp4.transformers.load")
        return name if source is not None else key

    names = {name: new(f"{name}.weight").removesuffix(".weight") for name in checkpoint.all_layers}
    tensors = {name: new(name) for name in checkpoint.tensors}
    checkpoint.layers = {names[name]: packed for name, packed in checkpoint.layers.items()}
    checkpoint.fp8 = {names[name]: packed for name, packed in checkpoint.fp8.items()}
    if checkpoint.kv_cache is not None:
        checkpoint.kv_cache = checkpoint.kv_cache.renamed(lambda name: renamed(name)[0])
    checkpoint.why |= {names[name]: checkpoint.why[name] for name in names if name in checkpoint.why}
    checkpoint.tensors = {tensors[name]: t for name, t in checkpoint.tensors.items()}
    checkpoint.kept = {tensors[name]: layer for name, layer in checkpoint.kept.items()}


def expert_names(model: Any, name: str, gated: bool) -> dict[str, str] | None:
    """The names of an expert's layers in the model's checkpoints, with {} for its number, as transformers joins them;
    None where it joins none."""
    found: dict[str, str] = {}
    for converter in get_model_conversion_mapping(model):
        if not isinstance(converter, WeightConverter):
            continue
        for i, source in enumerate(converter.source_patterns):
            local = re.fullmatch(r".*experts\\?\.(?:\*|\.\*)\\?\.(\w+)\\?\.weight", source)
            target = converter.target_patterns[0].rpartition(".")[2]
            roles = {"gate_up_proj": (GATE, UP), "up_proj": (UP,), "down_proj": (DOWN,)}.get(target, ())
            if local and i < len(roles):
                found.setdefault(roles[i], f"{{}}.{local[1]}")
    return found if found.keys() == ({GATE, UP, DOWN} if gated else {UP, DOWN}) else None


def saved_names(model: Any, name: str, module: Any) -> list[str]:
    """The names of a layer in a file that save_pretrained writes: several, if transformers splits its weight."""
    key, whole = f"{name}.weight", torch.empty(module.out_features, module.in_features, device="meta")
    saved = revert_weight_conversion(model, {key: whole})
    if isinstance(module, (Linear, FusedPart, Fp8Linear)) and [t is whole for t in saved.values()] != [True]:
        raise _C.Error(
            f"{name}: is changed by transformers when it is saved, which packed layers cannot be; use nvfp4.save"
        )
    return [key.removesuffix(".weight") for key in saved]


def check_saved_experts(model: Any, name: str, keys: Iterable[str]) -> None:
    """Rejects experts whose layers get other names, or other tensors, in a file that save_pretrained writes: a reader
    finds the layers of an expert by what follows the name of the module.

    Args:
        keys: the tensors of the module, by their names in the model.
    """
    for local in dict.fromkeys(re.sub(r"\d+", "0", key.removeprefix(f"{name}.")) for key in keys):
        whole = torch.empty(2, 2, device="meta")
        saved = revert_weight_conversion(model, {f"{name}.{local}": whole})
        if [(key.endswith(f".{local}"), t is whole) for key, t in saved.items()] != [(True, True)]:
            raise _C.Error(
                f"{name}: has {local}, which transformers changes when it is saved, as packed experts cannot be; "
                "use nvfp4.save"
            )


def saved_name(model: Any, name: str) -> str:
    """The name of a module in a file that save_pretrained writes."""
    (key,) = revert_weight_conversion(model, {f"{name}.weight": torch.empty(0, device="meta")})
    return str(key).removesuffix(".weight")
