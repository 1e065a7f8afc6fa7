"""NVFP4 checkpoints in Hugging Face transformers: `import nvfp4.transformers`, then `from_pretrained` as usual.

Importing registers a quantizer for `quant_method = "modelopt"`. The quantizer replaces the torch.nn.Linear modules that
are NVFP4 in the checkpoint by modules that have the checkpoint's tensors, which transformers then loads like others
(renamed, sharded, on the devices of a device_map, mapped into memory on a CPU). Afterwards each of them becomes an
nvfp4.Linear, in place. An nvfp4.Experts stands for each module of experts, and is filled from the mapped files at the
end. transformers has a quantizer of its own for "compressed-tensors", which decompresses the weights to bf16; `load`
reads these checkpoints with a quantizer of ours, under another name.
"""

from __future__ import annotations

import copy
import os
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.checkpoints import compressed_tensors, modelopt
from nvfp4.checkpoints.common import (
    AUTO,
    W4A4,
    W4A4_DYNAMIC,
    W4A16,
    Checkpoint,
    Recipe,
    check_activations,
    check_scales,
    strings,
    table,
)
from nvfp4.checkpoints.experts import DOWN, GATE, UP, Container, Place
from nvfp4.checkpoints.files import check_file, read_json
from nvfp4.checkpoints.fit import is_head, left_out
from nvfp4.checkpoints.mixtures import described, gatherer, placeholder, warn_of_modes
from nvfp4.checkpoints.reader import FORMATS, KV_CACHE, check_layer, read_tensors, sort
from nvfp4.checkpoints.save import (
    SaveReport,
    expert_tensors,
    is_under,
    mode_of,
    packed_tensors,
    quantization_configs,
    routers,
)
from nvfp4.experts import Experts, left_out_of_state
from nvfp4.linear import Linear
from nvfp4.modules import FusedPart
from nvfp4.packed import PackedLinear, short

TESTED = "5.17.0 and 5.24.0"
try:
    import transformers
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    message = "nvfp4.transformers needs transformers: pip install transformers"
    raise ModuleNotFoundError(message, name="transformers") from None
try:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        rename_source_key,
        revert_weight_conversion,
    )
    from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
    from transformers.utils.hub import cached_file
    from transformers.utils.quantization_config import QuantizationConfigMixin
except ImportError as error:
    raise ImportError(
        f"transformers: is version {transformers.__version__}, which lacks what nvfp4.transformers needs "
        f"({error}); tested are {TESTED}"
    ) from None

__all__ = ["CompressedTensorsConfig", "CompressedTensorsQuantizer", "ModelOptConfig", "ModelOptQuantizer", "load"]

# The name in transformers' registry, in which "compressed-tensors" is taken.
COMPRESSED_TENSORS = "nvfp4-compressed-tensors"
HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
ACTIVATIONS = "nvfp4_activations"  # load's argument, beside what the checkpoint's configuration has


def load(
    path: str | os.PathLike[str],
    *,
    auto_class: Any = AutoModelForCausalLM,
    activations: str | None = AUTO,
    **kwargs: Any,
) -> Any:
    """Loads an NVFP4 checkpoint of either format, by `auto_class.from_pretrained(path, **kwargs)`.

    Args:
        path (str or PathLike): a folder or a name on the Hub.
            The configuration is `quantization_config` of config.json, with the quant_method "compressed-tensors" or
            "modelopt", or else hf_quant_config.json (ModelOpt).
        auto_class (class, optional): a class with from_pretrained, such as AutoModel or LlamaForCausalLM.
            Default: AutoModelForCausalLM.
        activations (str, optional): "auto", "nvfp4" or None, as in nvfp4.load. Default: "auto".
            If the mode differs from the checkpoint's, `save_pretrained` writes a configuration of the model's own
            layers.
        **kwargs: arguments of from_pretrained, such as dtype (float16, bfloat16 or float32) and device_map.

    Returns:
        The model, in eval mode. Its layers that are NVFP4 in the checkpoint are nvfp4.Linear. On a CPU their weights
        [N, K/2] uint8 are the bytes of the mapped files, except those that a file does not align to 8 bytes.
        `model.hf_quantizer.skipped` has the names of the KV cache's scales, which are skipped with a warning.
        `save_pretrained` writes the format that was read.

    Raises:
        nvfp4.Error: the checkpoint is damaged, is no NVFP4, or does not fit the model. The message names the tensor or
            the layer.

    Example:
        >>> import nvfp4.transformers
        >>> model = nvfp4.transformers.load("Llama-NVFP4", dtype="bfloat16")  # doctest: +SKIP
    """
    check_activations(activations)
    hub = {name: kwargs[name] for name in HUB if kwargs.get(name) is not None}
    config = kwargs.pop("config", None)
    if config is None:
        trust = {name: kwargs[name] for name in ("trust_remote_code", "code_revision") if name in kwargs}
        config = AutoConfig.from_pretrained(path, **hub, **trust)
        for name in [name for name in kwargs if hasattr(config, name) and name not in ("dtype", "torch_dtype")]:
            setattr(config, name, kwargs.pop(name))
    else:
        config = copy.deepcopy(config)
    quantization = _quantization(config, path, hub)
    method = quantization.get("quant_method")
    if method not in FORMATS:
        raise _C.Error(f"{path}: quant_method is {method!r}; must be {' or '.join(FORMATS)}")
    registered = modelopt.NAME if method == modelopt.NAME else COMPRESSED_TENSORS
    config.quantization_config = quantization | {"quant_method": registered, ACTIVATIONS: activations}
    return auto_class.from_pretrained(path, config=config, **kwargs)


def _quantization(config: Any, path: str | os.PathLike[str], hub: Mapping[str, Any]) -> dict[str, Any]:
    """The content of quantization_config, or of hf_quant_config.json in its form."""
    for own in (config, config.get_text_config(decoder=True)):
        given = getattr(own, "quantization_config", None)
        if given is not None:
            return dict(given if isinstance(given, Mapping) else given.to_dict())
    file = cached_file(path, "hf_quant_config.json", _raise_exceptions_for_missing_entries=False, **hub)
    if file is None:
        raise _C.Error(f"{path}: has no quantization_config in config.json and no hf_quant_config.json")
    content = read_json(Path(file))
    quantization = dict(table(content, "quantization"))
    ignore = strings(quantization, "exclude_modules")
    quantization.pop("exclude_modules", None)
    more = {"producer": content["producer"]} if "producer" in content else {}
    return quantization | more | {"ignore": ignore, "quant_method": modelopt.NAME}


# ---- configurations ----


class ModelOptConfig(QuantizationConfigMixin):
    """`quantization_config` of a ModelOpt checkpoint, kept as it is in config.json.

    Raises:
        nvfp4.Error: quant_algo is none that has NVFP4 layers, or group_size is not 16.
    """

    format: ModuleType = modelopt

    def __init__(self, **content: Any) -> None:
        self.quant_method = content.get("quant_method")
        self.activations: str | None = content.pop(ACTIVATIONS, AUTO)
        self.content = content
        self.recipe()

    def recipe(self) -> Recipe:
        try:
            return self.format.recipe(self.content)
        except _C.Error as error:
            raise _C.Error(f"quantization_config.{error}") from None

    def get(self, key: str, default: Any = None) -> Any:
        """Reads an entry as transformers reads it of a dict: a loaded model's configuration, used again, has this
        object.
        """
        return self.content.get(key, default)

    def to_dict(self) -> dict[str, Any]:
        return copy.deepcopy(self.content) | {"quant_method": self.format.NAME}

    def drop_kv_cache(self) -> None:
        """Removes the KV cache's schemes: other readers would miss the scales in a model that is saved."""
        for name in ("kv_cache_scheme", "kv_cache_quant_algo"):
            if self.content.get(name) is not None:
                self.content[name] = None


class CompressedTensorsConfig(ModelOptConfig):
    """`quantization_config` of a compressed-tensors checkpoint, kept as it is in config.json."""

    format = compressed_tensors


# ---- quantizers ----


class ModelOptQuantizer(HfQuantizer):
    """Loads ModelOpt's NVFP4 checkpoints, and saves them. Rejects other tensors of a quantized layer, and layers that
    are quantized in another way (FP8)."""

    requires_calibration = True  # transformers' mark of a quantizer that quantizes no model while it loads one

    def __init__(self, quantization_config: ModelOptConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self.skipped: dict[str, str] = {}
        self.attached = False  # whether it belongs to a model that was not loaded with it
        self.experts: dict[str, tuple[Container, bool]] = {}  # to load, and whether gate and up alternate
        self.modes: dict[str, str] = {}  # the mode of each layer that the configuration describes, by its name here

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        if dtype not in (torch.float16, torch.bfloat16, torch.float32):
            raise _C.Error(f"dtype: is {short(dtype)}; must be float16, bfloat16 or float32")
        return dtype

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        if getattr(model.config, "distributed_config", None) is not None:
            raise _C.Error("distributed_config: is given; NVFP4 layers cannot be distributed yet")
        renamed = renamer(model)
        unwanted, gather = left_out(model, lambda name: renamed(name)[0]), gatherer(model, renamed)
        checkpoint = self._read(kwargs.get("checkpoint_files"), unwanted, gather)
        check_scales(checkpoint)
        for name, reason in checkpoint.skipped.items():
            if name in checkpoint.kept.values():
                raise _C.Error(f"{name}: cannot be put into the model: {reason}")
        for name, experts in checkpoint.experts.items():
            raise _C.Error(f"{name}: cannot be put into the model: is a stack of {len(experts)} experts")
        self._await_experts(model, checkpoint)
        names, given = _names(model, checkpoint)
        modules = dict(model.named_modules(remove_duplicate=False))
        for name, packed in checkpoint.layers.items():
            check_layer(name, packed, {name: modules[names[name]]} if names[name] in modules else {})
        mode = self.quantization_config.recipe().mode
        for name, module in modules.items():  # transformers warns of missing tensors, and makes them up
            absent = f"{name}.weight" not in given and f"{name}.weight" not in model.all_tied_weights_keys
            if type(module) is torch.nn.Linear and absent and mode(name) in (W4A4, W4A4_DYNAMIC, W4A16):
                if not is_head(model, name, given):
                    raise _C.Error(f"{name}: is NVFP4 by the configuration but not in the checkpoint")
                warnings.warn(f"{name}: is not in the checkpoint and stays dense", stacklevel=2)

        activations = self.quantization_config.activations
        stored: dict[int, _Stored] = {}
        for name, packed in checkpoint.layers.items():
            old = modules[names[name]]
            if activations == AUTO:  # else the configuration describes other modes
                self.modes[names[name]] = mode_of(packed)
            stored[id(old)] = _Stored(packed, self.quantization_config.format, old)
            # The configuration ties this weight, but the checkpoint has one of its own, which can be no Parameter.
            if model.all_tied_weights_keys.pop(f"{names[name]}.weight", None) is not None:
                model.config.tie_word_embeddings = False
        for module in list(modules.values()):
            for key, child in module._modules.items():
                if id(child) in stored:
                    setattr(module, key, stored[id(child)])
        self.skipped = checkpoint.skipped
        cache = [name for name in self.skipped if name.rpartition(".")[2] in KV_CACHE]
        for name in self.skipped.keys() - {*cache}:
            warnings.warn(f"{name}: {self.skipped[name]}", stacklevel=2)
        if cache:
            warnings.warn(f"skips {len(cache)} scales of the KV cache ({cache[0]}, ...)", stacklevel=2)
            self.quantization_config.drop_kv_cache()
        if self.experts:
            unused_names = "|".join(map(re.escape, self.experts))
            model._keys_to_ignore_on_load_unexpected = {
                *(model._keys_to_ignore_on_load_unexpected or ()),
                rf"(^|\.)({unused_names})\.",
            }
        unused = rf"(^|\.)({'|'.join((*KV_CACHE, modelopt.INPUT_SCALE, compressed_tensors.INPUT_SCALE))})$"
        model._keys_to_ignore_on_load_unexpected = {*(model._keys_to_ignore_on_load_unexpected or ()), unused}

    def _await_experts(self, model: Any, checkpoint: Checkpoint) -> None:
        """Puts an nvfp4.Experts on the meta device in place of each module whose experts the checkpoint has. Its
        buffers are no state until they are filled, from the mapped files: transformers counts their bytes, and moves
        them to their device, but neither misses nor joins their tensors."""
        warn_of_modes(checkpoint.containers, self.quantization_config.activations, stacklevel=4)
        for name, container in checkpoint.containers.items():
            old = model.get_submodule(name)
            about = described(name, old)
            new = placeholder(about, old)
            container.check(about.gated, about.experts)
            for stack in (new.gate_up, new.down):
                stack._non_persistent_buffers_set.update(stack._buffers)
            model.set_submodule(name, new)
            self.experts[name] = container, about.interleaved
            if self.quantization_config.activations == AUTO:
                self.modes[name] = container.mode
        checkpoint.containers = {}

    def _read(
        self,
        files: list[str] | None,
        unwanted: Callable[[str], str | None],
        gather: Callable[[Place], str | None],
    ) -> Checkpoint:
        """The mapped tensors of all files, checked by name, shape and dtype; transformers reads them again."""
        if not files:
            raise _C.Error(
                f"checkpoint_files: transformers {transformers.__version__} names no files to load; an NVFP4 model is "
                "made from *.safetensors files alone"
            )
        for file in files:
            if not file.endswith(".safetensors"):
                raise _C.Error(f"{file}: is no *.safetensors file")
            check_file(Path(file))
        tensors, _ = read_tensors(map(Path, files))
        config = self.quantization_config
        return sort(tensors, config.recipe(), wanted=config.activations, unwanted=unwanted, gather=gather)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        for name, module in model.named_modules():
            if isinstance(module, _Stored):
                module.finish(name)
        for name, (container, interleaved) in self.experts.items():
            experts = model.get_submodule(name)
            container.fill(experts, interleaved)
            for stack in (experts.gate_up, experts.down):
                stack._non_persistent_buffers_set.clear()
        self.experts = {}
        return model

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
        """The state dict with the format's tensors of each NVFP4 layer, for save_pretrained. Where the layers are not
        those that the configuration describes, it becomes theirs."""
        layers, experts = _layers(model), _experts(model)
        with left_out_of_state(model):
            state = model.state_dict()
        state = {key: t for key, t in state.items() if not is_under(key, {**layers, **experts})}
        report, modes = SaveReport(self.quantization_config.format.NAME), {}
        for name, mixture in experts.items():
            modes[name] = mixture.mode
            state |= expert_tensors(name, mixture, report)
        for name, module in layers.items():
            packed = module.packed()
            modes[name] = mode_of(packed)
            state |= packed_tensors(name, packed, report)
        if modes != self.modes:
            self._describe(model, modes)
        if self.attached:
            model.config.quantization_config = self.quantization_config  # a submodel, if it was saved, left its own
        return state, {}

    def _describe(self, model: Any, modes: dict[str, str]) -> None:
        """A configuration of these layers, with the names that save_pretrained writes."""
        layers, ignore, mixtures = {}, [], list[str]()
        for name, module in model.named_modules(remove_duplicate=False):
            if isinstance(module, Experts):
                mixtures.append(_saved_name(model, name))
                layers[mixtures[-1]] = modes[name]
            elif name in modes:
                (stored,) = _saved_names(model, name, module)
                layers[stored] = modes[name]
            elif isinstance(module, torch.nn.Linear):
                ignore += _saved_names(model, name, module)
        ignore += [_saved_name(model, name) for name in routers(model)]
        content, _ = quantization_configs(self.quantization_config.format.NAME, layers, ignore, mixtures)
        self.quantization_config.content = content
        model.config.quantization_config = self.quantization_config
        self.modes = modes

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return self.attached

    @property
    def is_qat_trainable(self) -> bool:
        return self.attached  # Trainer takes it as a model without a quantizer


class CompressedTensorsQuantizer(ModelOptQuantizer):
    """Loads and saves compressed-tensors' `nvfp4-pack-quantized`. `load` chooses it."""


class _Stored(Linear):
    """A layer with its checkpoint's tensors as buffers of their names, on the meta device until transformers loads
    them.

    `finish` turns it into an nvfp4.Linear in place: hooks that accelerate adds to a module stay where they are.
    """

    def __init__(self, packed: PackedLinear, format: ModuleType, old: torch.nn.Linear) -> None:
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = packed.in_features, packed.out_features
        self.activations, self.format = packed.activations, format
        for key, t in format.write(packed).items():
            dtype = old.bias.dtype if key == "bias" else t.dtype
            self.register_buffer(key, torch.empty(t.shape, dtype=dtype, device="meta"))

    def finish(self, name: str) -> None:
        tensors = {key: t.detach() for key, t in self._buffers.items() if t is not None}
        for key, t in tensors.items():
            if t.is_meta:
                raise _C.Error(f"{name}.{key}: is not loaded; NVFP4 layers cannot be offloaded")
        # A model may keep modules in fp32, which holds e4m3 exactly.
        tensors["weight_scale"] = tensors["weight_scale"].to(torch.float8_e4m3fn)
        try:
            packed = self.format.read(tensors, self.activations)
        except _C.Error as error:
            raise _C.Error(f"{name}.{error}") from None
        layer = Linear.from_packed(packed)
        self.activations = layer.activations
        del self.format
        self._buffers, self._non_persistent_buffers_set = layer._buffers, layer._non_persistent_buffers_set
        self.__class__ = Linear

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"

    _apply = torch.nn.Module._apply


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


def _names(model: Any, checkpoint: Checkpoint) -> tuple[dict[str, str], set[str]]:
    """Maps each layer of the checkpoint to its name in the model, by the renamings with which transformers loads.
    Returns also the names of all weights that the model is given.
    """
    conversions = get_model_conversion_mapping(model)
    converters = [entry for entry in conversions if isinstance(entry, WeightConverter)]
    by_source = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    renamed = renamer(model)
    names, given = {}, set()
    for name in checkpoint.layers:
        key, source = renamed(f"{name}.weight")
        if source is not None:
            raise _C.Error(f"{name}: is joined with other layers by transformers, which NVFP4 layers cannot be yet")
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

    names = {name: new(f"{name}.weight").removesuffix(".weight") for name in checkpoint.layers}
    tensors = {name: new(name) for name in checkpoint.tensors}
    checkpoint.layers = {names[name]: packed for name, packed in checkpoint.layers.items()}
    checkpoint.why |= {names[name]: checkpoint.why[name] for name in names if name in checkpoint.why}
    checkpoint.tensors = {tensors[name]: t for name, t in checkpoint.tensors.items()}
    checkpoint.kept = {tensors[name]: layer for name, layer in checkpoint.kept.items()}


def _layers(model: torch.nn.Module) -> dict[str, Linear | FusedPart]:
    """The NVFP4 layers by name. A joined layer is listed by its parts."""
    found: dict[str, Linear | FusedPart] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, (Linear, FusedPart)) and name.rpartition(".")[0] not in found:
            found[name] = module
    return found


def _experts(model: torch.nn.Module) -> dict[str, Experts]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Experts)}


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


def attach(model: Any) -> None:
    """Gives a model that has NVFP4 layers, and was not loaded by one, a quantizer with which save_pretrained stores
    them: as ModelOpt does, which has no dynamic input scale, or else as compressed-tensors."""
    modules = [module.joined() if isinstance(module, FusedPart) else module for module in _layers(model).values()]
    if not (modules or _experts(model)) or getattr(model, "hf_quantizer", None) is not None:
        return
    dynamic = any(module.activations is not None and module.input_global_scale is None for module in modules)
    format = compressed_tensors if dynamic else modelopt
    method = COMPRESSED_TENSORS if dynamic else modelopt.NAME
    content, _ = quantization_configs(format.NAME, {}, [])
    config = (CompressedTensorsConfig if dynamic else ModelOptConfig)(**content | {"quant_method": method})
    quantizer = (CompressedTensorsQuantizer if dynamic else ModelOptQuantizer)(config, pre_quantized=True)
    quantizer.attached, model.hf_quantizer = True, quantizer


def _saved_names(model: Any, name: str, module: Any) -> list[str]:
    """The names of a layer in a file that save_pretrained writes: several, if transformers splits its weight."""
    key, whole = f"{name}.weight", torch.empty(module.out_features, module.in_features, device="meta")
    saved = revert_weight_conversion(model, {key: whole})
    if not isinstance(module, torch.nn.Linear) and [t is whole for t in saved.values()] != [True]:
        raise _C.Error(
            f"{name}: is changed by transformers when it is saved, which NVFP4 layers cannot be; use nvfp4.save"
        )
    return [key.removesuffix(".weight") for key in saved]


def _saved_name(model: Any, name: str) -> str:
    """The name of a module in a file that save_pretrained writes."""
    (key,) = revert_weight_conversion(model, {f"{name}.weight": torch.empty(0, device="meta")})
    return str(key).removesuffix(".weight")


def _register(method: str, config: type[ModelOptConfig], quantizer: type[ModelOptQuantizer]) -> None:
    """A second import of this file (importlib.reload) replaces its own classes, and nobody else's."""
    for mapping in (AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING):
        if method in mapping and mapping[method].__module__ == __name__:
            del mapping[method]
    register_quantization_config(method)(config)
    register_quantizer(method)(quantizer)


_register(modelopt.NAME, ModelOptConfig, ModelOptQuantizer)
_register(COMPRESSED_TENSORS, CompressedTensorsConfig, CompressedTensorsQuantizer)
