"""The quantizers of nvfp4.transformers for NVFP4 checkpoints, which from_pretrained and save_pretrained call.

Importing registers quantizers for ModelOpt's and compressed-tensors' checkpoints. They replace the torch.nn.Linear
modules that are NVFP4 or FP8 in the checkpoint by modules that have the checkpoint's tensors, which transformers then
loads like others (renamed, sharded, on the devices of a device_map, mapped into memory on a CPU). Afterwards each of
them becomes an nvfp4.Linear or nvfp4.Fp8Linear, in place. An nvfp4.Experts or Fp8Experts stands for each module of
experts, and is filled from the mapped files at the end.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.checkpoints import compressed_tensors, fp8, kv_cache, modelopt, mxfp4
from nvfp4.checkpoints.checkpoint import Checkpoint, check_scales
from nvfp4.checkpoints.configuration import Mode, mode_of, quantization_configs
from nvfp4.checkpoints.experts.container import Container
from nvfp4.checkpoints.experts.naming import Place
from nvfp4.checkpoints.experts.targets import described, gatherer, placeholder
from nvfp4.checkpoints.files import check_file
from nvfp4.checkpoints.fit import check_layer, dense_in_model, tied_biases
from nvfp4.checkpoints.left_out import is_head, left_out
from nvfp4.checkpoints.modules import read_modules
from nvfp4.checkpoints.recipe import AUTO, W4A4, W4A4_DYNAMIC, W4A16
from nvfp4.checkpoints.save import is_under, routers
from nvfp4.checkpoints.shards import read_tensors
from nvfp4.checkpoints.write import SaveReport, expert_tensors, packed_tensors
from nvfp4.hosts.loading import check_dtype
from nvfp4.hosts.transformers.configs import (
    COMPRESSED_TENSORS,
    FP8,
    MXFP4,
    CompressedTensorsConfig,
    FineGrainedFP8Config,
    ModelOptConfig,
    Mxfp4Config,
)
from nvfp4.hosts.transformers.library import (
    HfQuantizer,
    PreTrainedModel,
    transformers,
)
from nvfp4.hosts.transformers.names import check_saved_experts, names_in, renamer, saved_name, saved_names
from nvfp4.hosts.transformers.registry import register
from nvfp4.layers.buffers import loaded, remove_stand_ins, round_up, stand_in
from nvfp4.layers.experts.fp8_experts import Fp8Experts
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.experts.stack import left_out_of_state
from nvfp4.layers.fp8 import Fp8Linear, Fp8Tensors
from nvfp4.layers.fused import FusedPart
from nvfp4.layers.hosts import prepare_adapters
from nvfp4.layers.linear import Linear
from nvfp4.layers.packed import PackedLinear
from nvfp4.layers.traversal import find_layers, keep_hooks
from nvfp4.quantizing.dequantize_model import dequantize_model

QUANTIZED = (W4A4, W4A4_DYNAMIC, W4A16, AUTO, *fp8.ACTIVATIONS)  # modes of layers that a checkpoint must have


def ignore_unexpected(model: Any, pattern: str) -> None:
    """Keeps from_pretrained from warning of tensors with these names."""
    model._keys_to_ignore_on_load_unexpected = {*(model._keys_to_ignore_on_load_unexpected or ()), pattern}


class ModelOptQuantizer(HfQuantizer):
    """Loads ModelOpt's NVFP4 checkpoints, and saves them. Rejects other tensors of a quantized layer, and layers that
    are quantized in another way than NVFP4 and FP8."""

    requires_calibration = True  # transformers' mark of a quantizer that quantizes no model while it loads one

    def __init__(self, quantization_config: ModelOptConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self.skipped: dict[str, str] = {}
        self.attached = False  # whether it belongs to a model that was not loaded with it
        self.experts: dict[str, tuple[Container, bool]] = {}  # to load, and whether gate and up alternate
        self.biases: dict[str, str] = {}  # layers with a bias that is tied to the parameter of this name
        self.read: list[str] = []  # layers that become dense, since the module above reads the weight
        self.dense: dict[str, Fp8Tensors] = {}  # FP8 layers of the checkpoint that are dense in the model
        self.modes: dict[str, Mode] = {}  # the mode of each layer that the configuration describes, by its name here
        self.dtypes: dict[str, torch.dtype] = {}  # those that the parameters of the model should have

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return check_dtype("dtype", dtype)

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        if getattr(model.config, "distributed_config", None) is not None:
            raise _C.Error("distributed_config: is given; NVFP4 layers cannot be distributed yet")
        renamed = renamer(model)
        unwanted, gather = left_out(model, lambda name: renamed(name)[0]), gatherer(model, renamed)
        checkpoint = self._read(kwargs.get("checkpoint_files"), unwanted, gather)
        check_scales(checkpoint)
        fp8.warn_of_inputs(checkpoint.fp8_and_experts)
        for name, reason in checkpoint.skipped.items():
            if name in checkpoint.kept.values():
                raise _C.Error(f"{name}: cannot be put into the model: {reason}")
        for name, experts in checkpoint.experts.items():
            raise _C.Error(f"{name}: cannot be put into the model: is a stack of {len(experts)} experts")
        self._await_experts(model, checkpoint)
        names, given = names_in(model, checkpoint)
        modules = dict(model.named_modules(remove_duplicate=False))
        self._await_dense(model, checkpoint, names, modules)
        tied = tied_biases(checkpoint, model, names, lambda name: renamed(name)[0])
        for name, packed in checkpoint.all_layers.items():
            packed = dataclasses.replace(packed, bias=tied[name][1]) if name in tied else packed
            check_layer(name, packed, {name: modules[names[name]]} if names[name] in modules else {})
        mode = self.quantization_config.recipe().mode
        for name, module in modules.items():  # transformers warns of missing tensors, and makes them up
            absent = f"{name}.weight" not in given and f"{name}.weight" not in model.all_tied_weights_keys
            if type(module) is torch.nn.Linear and absent and mode(name) in QUANTIZED:
                if not is_head(model, name, given):
                    kind = "FP8" if mode(name) in fp8.ACTIVATIONS else "NVFP4"
                    raise _C.Error(f"{name}: is {kind} by the configuration but not in the checkpoint")
                warnings.warn(f"{name}: is not in the checkpoint and stays dense", stacklevel=2)

        self.dtypes = {name: p.dtype for name, p in model.named_parameters() if p.is_floating_point()}
        activations = self.quantization_config.activations
        stored: dict[int, _Stored | fp8.StoredFp8] = {}
        for name, packed in checkpoint.all_layers.items():
            old = modules[names[name]]
            if activations == AUTO:  # else the configuration describes other modes
                self.modes[names[name]] = mode_of(packed)
            if isinstance(packed, PackedLinear):
                special = (checkpoint.mxfp4, checkpoint.coarse, checkpoint.reshaped)
                own = next((tensors[name] for tensors in special if name in tensors), None)
                format = mxfp4 if name in checkpoint.mxfp4 else self.quantization_config.format
                stored[id(old)] = _Stored(packed, format, old, own)
            else:
                stored[id(old)] = fp8.StoredFp8(packed, self.quantization_config.format.NAME, old)
            if model.all_tied_weights_keys.pop(f"{names[name]}.bias", None) is not None and name in tied:
                self.biases[names[name]] = tied[name][0]
            # The configuration ties this weight, but the checkpoint has one of its own, which can be no Parameter.
            if model.all_tied_weights_keys.pop(f"{names[name]}.weight", None) is not None:
                model.config.tie_word_embeddings = False
        for module in list(modules.values()):
            for key, child in module._modules.items():
                if id(child) in stored:
                    setattr(module, key, stored[id(child)])
        others = any(container.format is mxfp4 or container.coarse for container, _ in self.experts.values())
        if checkpoint.mxfp4 or checkpoint.coarse or others:
            self.modes = {}  # the configuration does not describe what is saved, NVFP4 in blocks of 16
        self.skipped = checkpoint.skipped
        cache = [name for name in self.skipped if name.rpartition(".")[2] in kv_cache.NAMES]
        for name in self.skipped.keys() - {*cache}:
            warnings.warn(f"{name}: {self.skipped[name]}", stacklevel=2)
        if cache:
            warnings.warn(f"skips {len(cache)} scales of the KV cache ({cache[0]}, ...)", stacklevel=2)
        if checkpoint.kv_cache is not None:
            kv_cache.attach(model, checkpoint.kv_cache.renamed(lambda name: renamed(name)[0]))
        if self.experts:
            ignore_unexpected(model, rf"(^|\.)({'|'.join(map(re.escape, self.experts))})\.")
        unused = (*kv_cache.NAMES, modelopt.INPUT_SCALE, compressed_tensors.INPUT_SCALE)
        ignore_unexpected(model, rf"(^|\.)({'|'.join(unused)})$")

    def _await_experts(self, model: Any, checkpoint: Checkpoint) -> None:
        """Puts a module on the meta device in place of each module whose experts the checkpoint has. Its
        buffers are no state until they are filled, from the mapped files: transformers counts their bytes, and moves
        them to their device, but neither misses nor joins their tensors."""
        for name, container in checkpoint.containers.items():
            old = model.get_submodule(name)
            about = described(name, old)
            new = placeholder(container, about, old)
            keep_hooks(old, new)
            for module in new.modules():
                module._non_persistent_buffers_set.update(module._buffers)
            model.set_submodule(name, new)
            self.experts[name] = container, about.interleaved
            if self.quantization_config.activations == AUTO:
                self.modes |= container.modes_of(name)
        checkpoint.containers = {}

    def _await_dense(
        self, model: Any, checkpoint: Checkpoint, names: dict[str, str], modules: dict[str, torch.nn.Module]
    ) -> None:
        """Notes the layers that are dense in the model. They become so at the end: NVFP4 layers as transformers has
        loaded them, FP8 layers from the mapped files."""
        for name, reason in dense_in_model(checkpoint, modules, names).items():
            checkpoint.skipped[name] = reason
            if name in checkpoint.layers:
                self.read.append(names[name])
            else:
                self.dense[names[name]] = checkpoint.fp8.pop(name)
        if self.dense:
            scales = "|".join(fp8.SCALE_NAMES)
            ignore_unexpected(model, rf"(^|\.)({'|'.join(map(re.escape, self.dense))})\.({scales})$")

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
        recipe = config.recipe_beside(Path(files[0]).parent)
        return read_modules(tensors, recipe, wanted=config.activations, unwanted=unwanted, gather=gather)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        for name, module in model.named_modules():
            if isinstance(module, _Stored):
                source = self.biases.get(name)
                module.finish(name, None if source is None else model.get_parameter(source))
            elif isinstance(module, fp8.StoredFp8):
                module.finish(name)
        for name in self.read:
            layer = model.get_submodule(name)
            dense = layer.to_linear().requires_grad_(False)
            keep_hooks(layer, dense)
            model.set_submodule(name, dense)
        self.modes = {} if self.read else self.modes
        self.read = []
        for name, (container, interleaved) in self.experts.items():
            experts = model.get_submodule(name)
            container.fill(experts, interleaved)
            for module in experts.modules():
                module._non_persistent_buffers_set.clear()
        self.experts = {}
        self._cast(model)
        for name, tensors in self.dense.items():
            weight = model.get_submodule(name).weight
            weight.data.copy_(tensors.dense(weight.dtype))
        self.dense = {}
        prepare_adapters(model)
        return model

    def _cast(self, model: Any) -> None:
        """Gives parameters the dtype that was asked for. transformers 5.17 leaves those of a quantized checkpoint as
        they are stored where it renames them, such as Mixtral's routers."""
        in_fp32 = {*(model._keep_in_fp32_modules or ()), *(model._keep_in_fp32_modules_strict or ())}
        for name, p in model.named_parameters():
            wanted = self.dtypes.get(name, p.dtype)
            if p.dtype != wanted and not any(part in name for part in in_fp32):
                p.data = p.data.to(wanted)

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
        """The state dict with the format's tensors of each NVFP4 layer, for save_pretrained. Where the layers are not
        those that the configuration describes, it becomes theirs."""
        layers, experts = _layers(model), _experts(model)
        with left_out_of_state(model):
            state = model.state_dict()
        if not (layers or experts):  # PEFT has merged adapters into all of them
            self.remove_quantization_config(model)
            return state, {}
        state = {key: t for key, t in state.items() if not is_under(key, {**layers, **experts})}
        report = SaveReport(self.quantization_config.format.NAME)
        modes: dict[str, Mode] = {}
        for name, mixture in experts.items():
            modes[name] = mixture.mode
            stored = expert_tensors(name, mixture, report)
            check_saved_experts(model, name, stored)
            state |= stored
        for name, module in layers.items():
            packed = module.packed()
            modes[name] = mode_of(packed)
            state |= packed_tensors(name, packed, report)
        for name, module in model.named_modules():
            if isinstance(module, Fp8Experts):
                check_saved_experts(model, name, [key for key in state if key.startswith(f"{name}.")])
        cache = kv_cache.of(model)
        if cache is not None and cache.format == report.format:
            state |= cache.scales
        if modes != self.modes:
            self._describe(model, modes)
        if self.attached:
            model.config.quantization_config = self.quantization_config  # a submodel, if it was saved, left its own
        return state, {}

    def _describe(self, model: Any, modes: dict[str, Mode]) -> None:
        """A configuration of these layers, with the names that save_pretrained writes."""
        layers, ignore, mixtures = {}, [], list[str]()
        for name, module in model.named_modules(remove_duplicate=False):
            if isinstance(module, Experts):
                mixtures.append(saved_name(model, name))
                layers[mixtures[-1]] = modes[name]
            elif name in modes:
                (stored,) = saved_names(model, name, module)
                layers[stored] = modes[name]
            elif isinstance(module, torch.nn.Linear) and not isinstance(module, Linear):  # not the one in a FusedPart
                ignore += saved_names(model, name, module)
        ignore += [saved_name(model, name) for name in routers(model)]
        format = self.quantization_config.format.NAME
        content, _ = quantization_configs(format, layers, ignore, mixtures)
        cache = kv_cache.of(model)
        if cache is not None and cache.format == format:
            content |= cache.configs()[0]
        self.quantization_config.content = content
        model.config.quantization_config = self.quantization_config
        self.modes = modes

    def _dequantize(self, model: Any, dtype: torch.dtype | str | None = None) -> Any:
        dequantize_model(model, getattr(torch, dtype) if isinstance(dtype, str) else dtype)  # a configuration's text
        return model

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return True  # adapters train; the backward of a W4A4 layer raises an error that says what to do

    @property
    def is_qat_trainable(self) -> bool:
        return self.attached  # Trainer takes it as a model without a quantizer


class CompressedTensorsQuantizer(ModelOptQuantizer):
    """Loads and saves compressed-tensors' `nvfp4-pack-quantized`."""


class Mxfp4Quantizer(ModelOptQuantizer):
    """Loads gpt-oss in MXFP4 into NVFP4 layers. The model is saved as after quantize_model."""

    saved: str | None = None  # the format; None: as `attach` has it

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        model = super()._process_model_after_weight_loading(model, **kwargs)
        model.hf_quantizer = None
        del model.config.quantization_config
        attach(model, self.saved)
        model.quantization_method = model.hf_quantizer.quantization_config.quant_method
        model.hf_quantizer.skipped = self.skipped
        return model


class FineGrainedFP8Quantizer(Mxfp4Quantizer):
    """Loads FP8 layers beside experts in NVFP4 or MXFP4. Scales of blocks are computed at each call, which
    compressed-tensors stores alone."""

    saved = compressed_tensors.NAME


class _Stored(Linear):
    """A layer with its checkpoint's tensors as buffers of their names, on the meta device until transformers loads
    them: `stored`, where the format writes others.

    `finish` turns it into an nvfp4.Linear in place: hooks that accelerate adds to a module stay where they are.
    """

    def __init__(
        self, packed: PackedLinear, format: ModuleType, old: torch.nn.Linear, stored: Mapping[str, Tensor] | None = None
    ) -> None:
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = packed.in_features, packed.out_features
        self.activations, self.format, self.dtype = packed.activations, format, old.weight.dtype
        for key, t in (format.write(packed) if stored is None else stored).items():
            dtype = old.bias.dtype if key == "bias" else t.dtype
            self.register_buffer(key, torch.empty(t.shape, dtype=dtype, device="meta"))
        stand_in(self)

    def finish(self, name: str, bias: Tensor | None) -> None:
        """bias: that of another module, where the file has it there alone."""
        tensors = loaded(self, name)
        if bias is not None:
            tensors["bias"] = bias.detach().to(next(iter(tensors.values())).device, copy=True)
        # A model may keep modules in fp32, which holds e4m3 exactly.
        if self.format is not mxfp4:
            tensors["weight_scale"] = tensors["weight_scale"].to(torch.float8_e4m3fn)
        try:
            packed = self.format.read(tensors, self.activations)
        except _C.Error as error:
            raise _C.Error(f"{name}.{error}") from None
        layer = Linear.from_packed(packed, dtype=self.dtype)
        self.activations, self.divisors = layer.activations, layer.divisors
        del self.format
        remove_stand_ins(self)
        self._buffers, self._non_persistent_buffers_set = layer._buffers, layer._non_persistent_buffers_set
        self.__class__ = Linear

    def reset_parameters(self) -> None:
        """Does nothing: a class may call it for layers that it takes for new ones, as Wav2Vec2ForPreTraining does."""

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"

    _apply = torch.nn.Module._apply


def _layers(model: torch.nn.Module) -> dict[str, Linear | FusedPart | Fp8Linear]:
    """The NVFP4 and FP8 layers by name. A joined layer is listed by its parts."""
    modules = model.named_modules(remove_duplicate=False)
    return {**find_layers(model), **{name: module for name, module in modules if isinstance(module, Fp8Linear)}}


def _experts(model: torch.nn.Module) -> dict[str, Experts]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Experts)}


def attach(model: Any, wanted: str | None = None) -> None:
    """Gives a model that has NVFP4 layers, and was not loaded by one, a quantizer with which save_pretrained stores
    them: in the `wanted` format, or as ModelOpt does, which has no dynamic input scale, or else as compressed-tensors.
    Where FP8 layers or the scales of a KV cache were read, in the format that has them."""
    modules = [module.joined() if isinstance(module, FusedPart) else module for module in _layers(model).values()]
    if not (modules or _experts(model)) or getattr(model, "hf_quantizer", None) is not None:
        return
    eight = [module for module in modules if isinstance(module, Fp8Linear)]
    formats = {module.stored.format for module in eight if module.stored is not None}
    cache = kv_cache.of(model)
    formats |= set() if cache is None else {cache.format}
    dynamic = any(
        module.activations is not None and module.input_global_scale is None
        for module in modules
        if isinstance(module, Linear)
    )
    dynamic |= any(experts.mode == W4A4_DYNAMIC for experts in _experts(model).values())
    theirs = dynamic or formats == {compressed_tensors.NAME} if wanted is None else wanted == compressed_tensors.NAME
    format = compressed_tensors if theirs else modelopt
    method = COMPRESSED_TENSORS if theirs else modelopt.NAME
    content, _ = quantization_configs(format.NAME, {}, [])
    config = (CompressedTensorsConfig if theirs else ModelOptConfig)(**content | {"quant_method": method})
    quantizer = (CompressedTensorsQuantizer if theirs else ModelOptQuantizer)(config, pre_quantized=True)
    quantizer.attached, model.hf_quantizer = True, quantizer


def guard_resizing() -> None:
    """Has resize_token_embeddings raise before anything changes where the head is packed: it would make a new head from
    the packed bytes, after the embedding has its new size."""
    own = getattr(PreTrainedModel.resize_token_embeddings, "before_nvfp4", PreTrainedModel.resize_token_embeddings)

    @functools.wraps(own)
    def resize_token_embeddings(
        self: Any, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, *more: Any, **kwargs: Any
    ) -> Any:
        head = self.get_output_embeddings()
        head = getattr(head, "base_layer", head)  # under an adapter of PEFT
        if isinstance(head, (Linear, FusedPart, Fp8Linear)):
            rows = head.out_features if new_num_tokens is None else new_num_tokens
            rows = round_up(rows, pad_to_multiple_of) if pad_to_multiple_of else rows
            if rows != head.out_features:
                name = next((name for name, module in self.named_modules() if module is head), "lm_head")
                kind = "FP8" if isinstance(head, Fp8Linear) else "NVFP4"
                raise _C.Error(
                    f"{name}: is {kind} with {head.out_features} rows, which cannot become {rows}; resize the dense "
                    "model, or leave the head dense"
                )
        return own(self, new_num_tokens, pad_to_multiple_of, *more, **kwargs)

    resize_token_embeddings.before_nvfp4 = own  # type: ignore[attr-defined]
    PreTrainedModel.resize_token_embeddings = resize_token_embeddings


guard_resizing()
register(modelopt.NAME, ModelOptConfig, ModelOptQuantizer)
register(COMPRESSED_TENSORS, CompressedTensorsConfig, CompressedTensorsQuantizer)
register(MXFP4, Mxfp4Config, Mxfp4Quantizer)
register(FP8, FineGrainedFP8Config, FineGrainedFP8Quantizer)
