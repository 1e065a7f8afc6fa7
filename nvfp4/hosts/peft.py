"""NVFP4 layers in Hugging Face PEFT: LoRA adapters that can be merged, LoRA adapters of experts, and other methods.

PEFT finds nvfp4.Linear as a torch.nn.Linear and trains adapters beside it without this module. Importing it registers
`LoraLinear` for these layers, which merges an adapter into a dense layer: PEFT's own layer would add it to the packed
weight. quantize_model and the loaders import the module where PEFT or transformers is loaded (nvfp4.layers.hosts).

PEFT adapts the parameters of a module of experts by `target_parameters`, and adds an adapter's product to the whole
parameter at each call. nvfp4.Experts has no such parameters. `LoraModel.inject_adapter` is replaced by one that gives
it parameters of their names and shapes, without memory, while PEFT looks for targets; `ParamWrapper` then hands the
factors to the experts. Names and shapes in a state dict are those of PEFT on the dense model.

PEFT's other methods run where they add to a layer's result, and an error names those that compute with its weight, or
that are not known (BESIDE). Merging such an adapter is an error before any layer is merged: PEFT would take the packed
bytes for a weight, and some methods change them without a word. So is what PEFT would train itself without an adapter,
modules_to_save and biases, where it is packed: buffers do not train.

PEFT has no public entry for a layer's class, save one for each LoraConfig. So `LoraModel._create_new_module`, the
static method that asks PEFT's own dispatchers, is replaced by one that asks `dispatch_nvfp4` before them.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.layers.experts.fp8_experts import Fp8Experts
from nvfp4.layers.experts.mixture import divided
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.experts.stack import Adapter
from nvfp4.layers.fp8 import Fp8Linear
from nvfp4.layers.fused import FusedPart
from nvfp4.layers.linear import Linear
from nvfp4.layers.traversal import keep_hooks

TESTED = "0.18.0 and 0.21.2"
try:
    import peft
except ModuleNotFoundError as error:
    if error.name != "peft":
        raise
    raise ModuleNotFoundError("nvfp4.peft needs peft: pip install peft", name="peft") from None
try:
    from peft import LoraConfig
    from peft.tuners.lora import LoraModel
    from peft.tuners.lora.layer import Linear as DenseLoraLinear
    from peft.tuners.lora.layer import ParamWrapper as DenseParamWrapper
    from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer, check_adapters_to_merge
    from peft.utils.other import AuxiliaryTrainingWrapper

    _own = LoraModel._create_new_module
    _inject, _check_merge = LoraModel.inject_adapter, LoraModel._check_merge_allowed
    _merge_adapter = LoraModel.merge_adapter
    _inject_other, _check_merge_of_other = BaseTuner.inject_adapter, BaseTuner._check_merge_allowed
    _check_module = AuxiliaryTrainingWrapper.check_module
    _replaced = DenseParamWrapper.get_param, DenseParamWrapper._activate_lora
except (ImportError, AttributeError) as error:
    raise ImportError(
        f"peft: is version {peft.__version__}, which lacks what nvfp4.peft needs ({error}); tested are {TESTED}"
    ) from None

__all__ = ["LoraLinear", "ParamWrapper", "dispatch_nvfp4"]

# Packages of peft.tuners whose layers do not compute with the weight before it is merged, as of PEFT 0.18.0 and 0.21.2.
BESIDE: tuple[str, ...] = ("lora", "adalora", "beft", "c3a", "deft", "fourierft", "gralora", "ia3", "lily")
BESIDE += ("miss", "oft", "pvera", "randlora", "road", "unilora", "vblora", "vera", "waveft")
# Initializations that do not read or change the weight.
INITIALIZATIONS = (True, False, "gaussian", "eva", "orthogonal")
OF_EXPERTS = (True, False, "gaussian")
ALL_LINEAR = "all-linear"  # of target_modules, in any case
OTHERWISE = {"ln_tuning": "trains a copy of the layer", "mixed_model": "in a PeftMixedModel is not known"}
PACKED = (Linear, FusedPart, Fp8Linear, Experts)
PARAMETERS = ("gate_up_proj", "up_proj", "down_proj")  # of modules of experts
HEADS = {"TOKEN_CLS": ("classifier", "score"), "QUESTION_ANS": ("qa_outputs",)}  # modules_to_save that PEFT adds later


class LoraLinear(DenseLoraLinear):
    """PEFT's LoRA layer around an nvfp4.Linear. Merging makes a dense torch.nn.Linear in place of both."""

    def check_merge(self, adapter_names: list[str] | None) -> None:
        if isinstance(self.get_base_layer(), Linear) and check_adapters_to_merge(self, adapter_names):
            raise _C.Error(
                "merge: the base layer is NVFP4, which an adapter cannot be added to; use merge_and_unload, which "
                "makes dense layers, or call nvfp4.dequantize_model(model) first"
            )

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        self.check_merge(adapter_names)
        super().merge(safe_merge, adapter_names)

    def unload_and_optionally_merge_module(
        self, merge: bool, safe_merge: bool, adapter_names: list[str] | None
    ) -> torch.nn.Module:
        """PEFT's merge_and_unload and unload call this for what replaces the layer in the model."""
        base = self.get_base_layer()
        if merge and isinstance(base, Linear) and check_adapters_to_merge(self, adapter_names):
            dense = base.to_linear().requires_grad_(False)  # as PEFT leaves the layers of a dense model
            keep_hooks(base, dense)
            self.base_layer = dense
        if merge:
            self.merge(safe_merge, adapter_names)
        return self.get_base_layer()


class ParamWrapper(DenseParamWrapper):
    """PEFT's LoRA layer around one parameter of an nvfp4.Experts, or around another such layer: the first one is that
    of gate and up. It has the name of PEFT's class, by which PEFT tells such layers from others.

    The factors are rounded to the dtype of the input, as PEFT rounds them to that of the parameter.
    """

    def get_param(self) -> Tensor:
        """A tensor with the shape of the parameter and no memory; its dtype is not that of a weight, which PEFT would
        take for the adapter's."""
        return parameter_of(self.get_base_layer(), self.parameter_name)

    def factors(self, adapter_name: str) -> Adapter:
        """left [E, N, r] and right [E, r, K] of the stack, with the rows of gate before those of up."""
        experts: Experts = self.get_base_layer()
        a, b = self.lora_A[adapter_name].weight, self.lora_B[adapter_name].weight
        a = a.reshape(self.num_experts, -1, a.shape[1])  # [E, r, in]
        b = b.reshape(b.shape[0], -1, self.num_experts).permute(2, 0, 1)  # [E, out, r]
        # The parameter is [E, out, in] or [E, in, out] for PEFT, by its version and what the module says of
        # is_transposed.
        out_first = getattr(self, "_did_swap_in_out_features", False)
        first, second = (b, a) if out_first else (a.transpose(1, 2), b.transpose(1, 2))
        left, right = (second.transpose(1, 2), first.transpose(1, 2)) if experts.transposed else (first, second)
        if experts.interleaved and self.parameter_name == "gate_up_proj":
            left = divided(left, 2, True).flatten(1, 2)
        return left * self.scaling[adapter_name], right

    def forward(self, x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        """Passes the factors as an argument: the module is that of all threads. Several adapters are one of the sum of
        their ranks."""
        found = [self.factors(name) for name in self.active_adapters if name in self.lora_A]
        if found and not self.disable_adapters:
            name = "down_adapter" if self.parameter_name == "down_proj" else "gate_up_adapter"
            options[name] = torch.cat([left for left, _ in found], 2), torch.cat([right for _, right in found], 1)
        result: Tensor = super().forward(x, *arguments, **options)
        return result

    def _activate_lora(self, active_adapters: list[str]) -> contextlib.AbstractContextManager[None]:
        """PEFT's forward calls the experts within this context, and has passed the factors to them."""
        return contextlib.nullcontext()

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        if any(name in self.lora_A for name in check_adapters_to_merge(self, adapter_names)):
            cannot_merge(self.parameter_name)


def cannot_merge(name: str) -> NoReturn:
    raise _C.Error(
        f"merge: {name} is of nvfp4.Experts, whose NVFP4 weights an adapter cannot be added to; keep the adapter, "
        "or merge it into the dense model and quantize that"
    )


def parameter_of(experts: Experts, name: str) -> Tensor:
    """A parameter of the module of transformers that an nvfp4.Experts replaces, as a tensor without memory."""
    count, parts, rows, columns = (experts.down if name == "down_proj" else experts.gate_up).shape
    shape = (columns, parts * rows) if experts.transposed else (parts * rows, columns)
    device = experts.down.weight_global_scale.device
    return torch.empty((), dtype=torch.uint8, device=device).expand(count, *shape)


@contextlib.contextmanager
def parameters_shown(model: torch.nn.Module) -> Iterator[None]:
    """Lets PEFT find the parameters of experts, in the order of transformers' modules, which is that of its layers."""
    found = [module for module in model.modules() if isinstance(module, Experts)]
    for experts in found:
        for name in ("gate_up_proj" if experts.gated else "up_proj", "down_proj"):
            experts._parameters[name] = torch.nn.Parameter(parameter_of(experts, name), requires_grad=False)
    try:
        yield
    finally:
        for experts in found:
            experts._parameters.clear()


def dispatch_nvfp4(
    target: torch.nn.Module, adapter_name: str, config: LoraConfig, **kwargs: Any
) -> torch.nn.Module | None:
    """Makes the LoRA layer of a target that is NVFP4, as PEFT's dispatchers do. Returns None for another target.

    Raises:
        nvfp4.Error: the target takes no adapter, or the configuration has an initialization that needs a dense weight.
    """
    base = target.get_base_layer() if isinstance(target, BaseTunerLayer) else target
    if isinstance(base, FusedPart):
        raise _C.Error(
            "target: is a layer that is joined with others (fuse=True), which takes no adapter; use fuse=False"
        )
    if isinstance(base, Experts):
        return dispatch_experts(target, adapter_name, config, **kwargs)
    if not isinstance(base, Linear) or kwargs.get("parameter_name") is not None:
        return None
    if type(base) is not Linear:
        base.packed()  # raises: the layer is split among ranks
    check_initialization(config, INITIALIZATIONS)
    if config.fan_in_fan_out:  # recipes for GPT-2 have it, whose Conv1D layers are nvfp4.Linear now
        warnings.warn(
            "fan_in_fan_out is True, but an nvfp4.Linear has its weight as [N, K]; sets it to False", stacklevel=2
        )
        config.fan_in_fan_out = False
    if "fan_in_fan_out" in kwargs:  # PEFT 0.18 passes each option of the configuration
        kwargs["fan_in_fan_out"] = False
    return LoraLinear(target, adapter_name, config=config, **kwargs)


def dispatch_experts(target: torch.nn.Module, adapter_name: str, config: LoraConfig, **kwargs: Any) -> torch.nn.Module:
    if kwargs.get("parameter_name") is None:
        raise _C.Error(
            "target_modules: has a module of experts, an nvfp4.Experts; must have target_parameters for it, such as "
            "['experts.gate_up_proj', 'experts.down_proj']"
        )
    check_initialization(config, OF_EXPERTS)
    if config.use_dora:
        raise _C.Error("use_dora: is True, which needs the dense weights of experts; must be False for them")
    return ParamWrapper(target, adapter_name, config=config, **kwargs)


def check_fp8(tuner: Any, model: torch.nn.Module, adapter_name: str) -> None:
    """Raises if a configuration names FP8 layers, which take no adapter. Warns of those that "all-linear" leaves out,
    since they are no torch.nn.Linear, and of FP8 experts that target_parameters leaves out."""
    config = tuner.peft_config[adapter_name]
    targets, parameters = (getattr(config, key, None) for key in ("target_modules", "target_parameters"))
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Fp8Linear)}
    if isinstance(targets, str) and targets.lower() == ALL_LINEAR:
        found = [name for name in layers if not (is_head(model, layers[name]) or is_excluded(tuner, config, name))]
        warn_of(f"target_modules: is {targets!r}, but FP8 layers take no adapter", found)
    elif targets is not None:
        for name in layers:
            if not is_excluded(tuner, config, name) and tuner._check_target_module_exists(config, name):
                raise _C.Error(
                    f"target_modules: has {name}, an FP8 layer, which takes no adapter; leave it out, for example by "
                    "exclude_modules"
                )
    experts = [name for name, module in model.named_modules() if isinstance(module, Fp8Experts)]
    wanted = [f".{target}" for target in parameters or ()]
    missed = [name for name in experts if any(f".{name}.{p}".endswith(t) for p in PARAMETERS for t in wanted)]
    warn_of("target_parameters: FP8 experts take no adapter", missed)


def warn_of(text: str, names: list[str]) -> None:
    if names:
        more = f" and {len(names) - 3} others" if len(names) > 3 else ""
        warnings.warn(f"{text}: {', '.join(names[:3])}{more}", stacklevel=5)


def check_trained(tuner: Any, model: torch.nn.Module, adapter_name: str) -> None:
    """Raises if a configuration trains modules or biases that are packed. PEFT would train nothing there, since their
    tensors are buffers, and save packed bytes in the adapter's file."""
    config, named = tuner.peft_config[adapter_name], dict(model.named_modules(remove_duplicate=False))
    saved = (*(getattr(config, "modules_to_save", None) or ()), *HEADS.get(config.task_type, ()))
    packed = {name: module for name, module in named.items() if isinstance(module, PACKED)}
    for whole in [name for name in named if any(name.endswith(target) for target in saved)]:
        for name, module in packed.items():
            if name == whole or name.startswith(f"{whole}."):
                cannot_train("modules_to_save", name, module)
    tied = bool(saved) and getattr(config, "ensure_weight_tying", False)
    tied |= any(getattr(config, key, None) is not None for key in ("trainable_token_indices", "token_indices"))
    for name, module in packed.items():
        if tied and is_head(model, module) and getattr(model.config, "tie_word_embeddings", False):
            raise _C.Error(
                f"{name}: is packed and no longer tied to the embedding, which the adapter's configuration trains in "
                "both; set model.config.tie_word_embeddings = False"
            )
        if has_trained_bias(tuner, config, name, module):
            raise _C.Error(
                f"bias: is {config.bias!r}, but the bias of {name} is a buffer, which does not train; must be 'none'"
            )


def has_trained_bias(tuner: Any, config: Any, name: str, module: torch.nn.Module) -> bool:
    """Whether a configuration trains the bias of a packed module."""
    parts = (module.gate_up, module.down) if isinstance(module, Experts) else (module,)
    bias, targets = getattr(config, "bias", "none"), getattr(config, "target_modules", None)
    if not isinstance(bias, str) or bias == "none" or all(part.bias is None for part in parts):
        return False
    if bias == "all" or targets is None or (isinstance(targets, str) and targets.lower() == ALL_LINEAR):
        return True
    return bool(tuner._check_target_module_exists(config, name))


def cannot_train(where: str, name: str, module: torch.nn.Module) -> NoReturn:
    if isinstance(module, Fp8Linear):
        raise _C.Error(f"{where}: has {name}, which is FP8 and has no parameter to train; leave it out")
    raise _C.Error(
        f"{where}: has {name}, which is NVFP4 and has no parameter to train; quantize the model with this layer in "
        "`ignore`, or call nvfp4.dequantize_model(model) first"
    )


def check_copied(wrapper: Any) -> None:
    """Raises if a module that PEFT copies to train it has a packed layer; where no tuner was asked before."""
    for name, module in wrapper.original_module.named_modules():
        if isinstance(module, PACKED):
            cannot_train("modules_to_save", name or "a layer", module)


def is_head(model: Any, module: torch.nn.Module) -> bool:
    """Whether a module is the output layer of a model of transformers, which "all-linear" leaves out."""
    return hasattr(model, "get_output_embeddings") and model.get_output_embeddings() is module


def is_excluded(tuner: Any, config: Any, name: str) -> bool:
    """Whether exclude_modules or modules_to_save take a module out of the targets."""
    return type(tuner._check_target_module_exists(config, name)).__name__ == "_ExcludedModule"


def check_method(tuner: Any, model: torch.nn.Module, adapter_name: str) -> None:
    """Raises if a method computes with the weight of an NVFP4 layer that it is to adapt, or trains it."""
    package = type(tuner).__module__.removeprefix("peft.tuners.").partition(".")[0]
    config = tuner.peft_config[adapter_name]
    targets = getattr(config, "target_modules", None)
    if package in BESIDE or targets is None:
        return
    for name, module in model.named_modules():
        if isinstance(module, (Linear, FusedPart)) and (
            targets == ALL_LINEAR or tuner._check_target_module_exists(config, name)
        ):
            what = OTHERWISE.get(package, "computes with the dense weight")
            raise _C.Error(
                f"{name}: is NVFP4, and {type(config).__name__} {what}; use LoRA, or call "
                "nvfp4.dequantize_model(model) first"
            )


def is_beside_nvfp4(module: torch.nn.Module) -> bool:
    """Whether a layer of PEFT is around an NVFP4 layer that it cannot be merged into."""
    if not isinstance(module, BaseTunerLayer) or isinstance(module, (LoraLinear, ParamWrapper)):
        return False
    return isinstance(module.get_base_layer(), (Linear, FusedPart))


def reject_merge(name: str, module: torch.nn.Module) -> NoReturn:
    raise _C.Error(
        f"merge: {name} is NVFP4, which the adapter of a {type(module).__name__} cannot be merged into; call "
        "nvfp4.dequantize_model(model) first"
    )


def guard(kind: Any) -> None:
    """Has the method `merge` of a class of PEFT's layers raise where the base layer is NVFP4."""
    own = kind.merge
    if getattr(own, "of_nvfp4", False):
        return

    @functools.wraps(own)
    def merge(self: Any, *arguments: Any, **kwargs: Any) -> Any:
        if is_beside_nvfp4(self):
            reject_merge("the base layer", self)
        return own(self, *arguments, **kwargs)

    merge.of_nvfp4 = True  # type: ignore[attr-defined]
    kind.merge = merge


def guard_layers(model: torch.nn.Module) -> None:
    for kind in {type(module) for module in model.modules() if is_beside_nvfp4(module)}:
        guard(kind)


def check_initialization(config: LoraConfig, allowed: tuple[Any, ...]) -> None:
    if config.init_lora_weights not in allowed:
        raise _C.Error(
            f"init_lora_weights: is {config.init_lora_weights!r}, which needs a dense weight; must be one of "
            f"{', '.join(map(repr, allowed))} for NVFP4 layers"
        )


def register() -> None:
    """Has PEFT ask dispatch_nvfp4 first, find the parameters of experts, and reject what packed weights do not take. A
    second import of this file (importlib.reload) replaces the first one's."""
    asked: Callable[..., torch.nn.Module] = getattr(_own, "before_nvfp4", _own)
    injected: Callable[..., None] = getattr(_inject, "before_nvfp4", _inject)
    checked: Callable[..., None] = getattr(_check_merge, "before_nvfp4", _check_merge)
    merged: Callable[..., None] = getattr(_merge_adapter, "before_nvfp4", _merge_adapter)
    other_injected: Callable[..., None] = getattr(_inject_other, "before_nvfp4", _inject_other)
    other_checked: Callable[..., None] = getattr(_check_merge_of_other, "before_nvfp4", _check_merge_of_other)
    module_checked: Callable[..., None] = getattr(_check_module, "before_nvfp4", _check_module)

    def create_new_module(
        lora_config: LoraConfig, adapter_name: str, target: torch.nn.Module, **kwargs: Any
    ) -> torch.nn.Module:
        module = dispatch_nvfp4(target, adapter_name, lora_config, **kwargs)
        return asked(lora_config, adapter_name, target, **kwargs) if module is None else module

    def inject_adapter(
        self: LoraModel, model: torch.nn.Module, adapter_name: str, *arguments: Any, **kwargs: Any
    ) -> None:
        check_trained(self, model, adapter_name)
        check_fp8(self, model, adapter_name)
        with parameters_shown(model):
            injected(self, model, adapter_name, *arguments, **kwargs)
        guard_layers(model)  # AdaLoRA's

    def inject_other(self: Any, model: torch.nn.Module, adapter_name: str, *arguments: Any, **kwargs: Any) -> None:
        check_trained(self, model, adapter_name)
        check_method(self, model, adapter_name)
        check_fp8(self, model, adapter_name)
        other_injected(self, model, adapter_name, *arguments, **kwargs)
        guard_layers(model)

    def check_module(self: Any) -> None:
        check_copied(self)
        module_checked(self)

    def check_merge_of_other(self: Any) -> None:
        """Raises before PEFT has merged other layers."""
        other_checked(self)
        for name, module in self.model.named_modules():
            if is_beside_nvfp4(module):
                reject_merge(name, module)

    def check_merge_allowed(self: LoraModel) -> None:
        """Raises before PEFT has merged other layers."""
        checked(self)
        for name, module in self.model.named_modules():
            if isinstance(module, ParamWrapper) and any(adapter in module.lora_A for adapter in module.active_adapters):
                cannot_merge(f"{name}, {module.parameter_name},")

    def merge_adapter(self: LoraModel, adapter_names: list[str] | None = None, safe_merge: bool = False) -> None:
        """Raises before PEFT has merged dense layers."""
        self._check_merge_allowed()
        for module in self.model.modules():
            if isinstance(module, LoraLinear):
                module.check_merge(adapter_names)
        merged(self, adapter_names, safe_merge)

    create_new_module.before_nvfp4 = asked  # type: ignore[attr-defined]
    inject_adapter.before_nvfp4 = injected  # type: ignore[attr-defined]
    check_merge_allowed.before_nvfp4 = checked  # type: ignore[attr-defined]
    merge_adapter.before_nvfp4 = merged  # type: ignore[attr-defined]
    inject_other.before_nvfp4 = other_injected  # type: ignore[attr-defined]
    check_merge_of_other.before_nvfp4 = other_checked  # type: ignore[attr-defined]
    check_module.before_nvfp4 = module_checked  # type: ignore[attr-defined]
    LoraModel._create_new_module = staticmethod(create_new_module)
    LoraModel.inject_adapter, LoraModel._check_merge_allowed = inject_adapter, check_merge_allowed
    LoraModel.merge_adapter = merge_adapter
    BaseTuner.inject_adapter, BaseTuner._check_merge_allowed = inject_other, check_merge_of_other
    AuxiliaryTrainingWrapper.check_module = check_module


register()
