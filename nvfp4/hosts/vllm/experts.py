"""Experts of NVFP4 checkpoints in vLLM: methods for its RoutedExperts, which load tensors and run nvfp4.Experts.

vLLM's weight loader looks at a method's class name and at attributes of parameters:

- "ModelOpt" in the name, uses_weight_scale_2_pattern() and two dimensions keep a global scale for gate and one for up.
- Without it, quant_method = TENSOR of a parameter does the same, and BLOCK marks what is cut as the weights are.

It cuts a rank's part of gate, of up and of down out of linear scales. They are swizzled afterwards, gate's and up's
apart, so a rank's rows need not be a multiple of 128.
"""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import Any

import torch
import vllm.envs as envs
from torch import Tensor
from vllm.logger import init_logger
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase, FusedMoeWeightScaleSupported, RoutedExperts
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.models.utils import WeightsMapper
from vllm.model_executor.utils import set_weight_attrs
from vllm.platforms import current_platform

from nvfp4 import _C
from nvfp4.checkpoints import compressed_tensors, modelopt, mxfp4
from nvfp4.checkpoints.experts.container import Container
from nvfp4.checkpoints.experts.naming import DOWN, GATE_UP, UP
from nvfp4.checkpoints.recipe import W4A4, W4A16
from nvfp4.layers.experts.mixture import Description
from nvfp4.layers.experts.routed import MAX_EXPERTS
from nvfp4.layers.packed import BLOCK

SWITCH = "NVFP4_VLLM_MOE"
MEASURED = 90  # the compute capability of GPUs on which ours was measured beside Marlin
# The activations of vLLM with the same formula in nvfp4.gated. vLLM takes a limit with the first alone.
ACTIVATIONS = {
    MoEActivation.SILU: "silu",
    MoEActivation.GELU_TANH: "gelu_tanh",
    MoEActivation.SILU_NO_MUL: "silu",
    MoEActivation.GELU_TANH_NO_MUL: "gelu_tanh",
    MoEActivation.RELU2_NO_MUL: "relu2",
}
OAI_LIMIT, OAI_ALPHA = 7.0, 1.702  # vLLM's SWIGLUOAI has no others

logger = init_logger("vllm.plugins.nvfp4")


def takes_mxfp4(layer: RoutedExperts, name: str, least: int) -> bool:
    """Whether vLLM's settings give MXFP4 experts to nvfp4: on a CPU, where vLLM has no kernel for them, and elsewhere
    with NVFP4_VLLM_MOE=1, since ours were not measured beside vLLM's."""
    return is_asked(SWITCH) and takes(layer, name, W4A16, least)


def takes(layer: RoutedExperts, name: str, mode: str, least: int) -> bool:
    """Whether vLLM's settings give a layer's NVFP4 experts to nvfp4: on a CPU, and with NVFP4_VLLM_MOE=1 on every GPU.
    Without it on a GPU of the MEASURED kind where nvfp4.Experts has what the layer needs: W4A16, and W4A4, whose steps
    of decoding Marlin runs faster, if batch invariance is asked for.

    Args:
        mode: as the checkpoint says.
        least: the least compute capability that nvfp4 runs on.

    Raises:
        nvfp4.Error: NVFP4_VLLM_MOE=1 asks for what cannot run here.
    """
    if layer.moe_config.moe_backend != "auto" or not wanted(SWITCH, name, least):
        return False
    if SWITCH in os.environ or current_platform.is_cpu():
        return True  # where something is missing, its message says what
    if mode != W4A16 and not envs.VLLM_BATCH_INVARIANT:
        logger.info_once("vLLM runs NVFP4 experts in %s: %s=1 leaves them to nvfp4.Experts", mode, SWITCH)
        return False
    moe = layer.moe_config
    try:
        activation_of(layer, name)
        reject_unsupported(layer, name)
        check_sizes(name, moe.num_local_experts, moe.hidden_dim, moe.intermediate_size_per_partition)
    except _C.Error as error:
        logger.info_once("vLLM runs NVFP4 experts: %s", error)
        return False
    return True


def is_asked(switch: str) -> bool:
    """Whether this is a CPU, or the environment variable `switch` is 1."""
    return bool(current_platform.is_cpu()) or os.environ.get(switch) == "1"


def wanted(switch: str, name: str, least: int, most: int | None = None) -> bool:
    """Whether a layer, by its name, is to run with nvfp4: as the environment variable `switch` says, which is 0 or 1.
    Without it on a CPU, and on a GPU of the MEASURED kind. `least` and `most` are compute capabilities."""
    given = os.environ.get(switch)
    if given not in (None, "0", "1"):
        raise _C.Error(f"{switch}: is {given!r}; must be 0 or 1")
    if given == "0" or current_platform.is_cpu():
        return given != "0"
    found = current_platform.get_device_capability() if current_platform.is_cuda() else None
    capability = 0 if found is None else found.to_int()
    runs = bool(_C.archs) and least <= capability <= (capability if most is None else most)
    if given is None:
        return runs and capability == MEASURED
    if not current_platform.is_cuda():
        raise _C.Error(f"{switch}: is 1 on {current_platform.device_name}; must be 0 where there is no CPU or CUDA")
    if not runs:
        kinds = f"compute capability {least} and more" if most is None else f"compute capability {least} to {most}"
        built = f"for {kinds}" if _C.archs else "for the CPU alone"
        raise _C.Error(f"{switch}: is 1 on {found}, but nvfp4 is built {built}; {name} cannot run")
    return True


class _Experts(FusedMoEMethodBase):
    """Loads and runs the NVFP4 experts of a layer. The layer has the checkpoint's tensors as parameters until they are
    loaded, and then nvfp4.Experts in `layer.nvfp4`.

    Args:
        layer (RoutedExperts): vLLM's layer, before it has parameters.
        mode (str): "W4A4", "W4A4 dynamic" or "W4A16", as the checkpoint says.
        name (str): the name of the layer, for error messages.

    Raises:
        nvfp4.Error: the layer needs something that nvfp4.Experts does not have.
    """

    format: ModuleType

    def __init__(self, layer: RoutedExperts, mode: str, name: str) -> None:
        super().__init__(layer.moe_config)
        self.mode, self.name = mode, name
        self.activation, self.limit, self.alpha = activation_of(layer, name)
        reject_unsupported(layer, name)
        logger.info_once("Using nvfp4.Experts for NVFP4 experts (%s)", mode)

    def get_fused_moe_quant_config(self, layer: RoutedExperts) -> None:
        """None: vLLM's kernels, which it is for, do not run."""
        return

    def create_weights(
        self,
        layer: RoutedExperts,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Registers the format's tensors of gate and up ("w13_", or of up alone) and of down ("w2_")."""
        gated, interleaved = self.moe.is_act_and_mul, layer.activation is MoEActivation.SWIGLUOAI
        inner, loader = intermediate_size_per_partition, extra_weight_attrs["weight_loader"]
        check_sizes(self.name, num_experts, hidden_size, inner)
        self.about = Description(
            num_experts,
            hidden_size,
            inner,
            self.activation,
            gated,
            self.limit,
            self.alpha,
            bias=self.moe.has_bias,
            transposed=False,
            is_transposed=False,
            interleaved=interleaved,
        )
        parts = 2 if gated else 1
        for stem, count, n, k in (("w13", (parts,), parts * inner, hidden_size), ("w2", (), hidden_size, inner)):
            tensors = self._tensors(num_experts, count, n, k)
            if self.moe.has_bias:
                tensors["bias"] = (torch.full((num_experts, n), torch.nan, dtype=params_dtype), None)
            for key, (data, kind) in tensors.items():
                parameter = torch.nn.Parameter(data, requires_grad=False)
                layer.register_parameter(f"{stem}_{key}", parameter)
                set_weight_attrs(parameter, {"weight_loader": loader} | ({"quant_method": kind.value} if kind else {}))

    def _tensors(self, experts: int, count: tuple[int, ...], n: int, k: int) -> dict[str, tuple[Tensor, Any]]:
        """The format's tensors of one product, and how vLLM's loader cuts them. A scale or a bias that is not loaded
        stays NaN, and is found afterwards."""
        weight_key, scale_key, global_key = self.format.REQUIRED
        scale = torch.full((experts, n, k // BLOCK), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn)
        tensors: dict[str, tuple[Tensor, Any]] = {
            weight_key: (torch.empty(experts, n, k // 2, dtype=torch.uint8), None),
            scale_key: (scale, FusedMoeWeightScaleSupported.BLOCK),
        }
        for key in (global_key, self.format.INPUT_SCALE):
            data = torch.full((experts, *count), torch.nan, dtype=torch.float32)
            tensors[key] = (data, FusedMoeWeightScaleSupported.TENSOR)
        return tensors

    def process_weights_after_loading(self, layer: RoutedExperts) -> None:
        """Moves the tensors into nvfp4.Experts, as stacks, which vLLM's compiled code can take."""
        container = Container(self.name, self.format, modes={self.mode})
        device = next(layer.parameters()).device
        for role, stem in ((GATE_UP if self.about.gated else UP, "w13"), (DOWN, "w2")):
            stacks = self._taken(layer, stem)
            scales = stacks.get(self.format.INPUT_SCALE)  # some lack it, which no sample has reached
            scaled = [] if scales is None else (~scales.isnan()).reshape(len(scales), -1).any(1).nonzero().tolist()
            container.locals[role] = f"{{}}.{stem}"
            container.layers[role] = {
                e: {key: t[e] for key, t in stacks.items() if key != self.format.INPUT_SCALE or [e] in scaled}
                for e in range(self.about.experts)
            }
        experts = self.about.make("meta", layer.params_dtype)
        experts.apply_router_weight_on_input = layer.apply_router_weight_on_input
        experts.batch_invariant = bool(envs.VLLM_BATCH_INVARIANT)
        layer.nvfp4 = container.fill(experts, self.about.interleaved, device)
        for stack in (experts.gate_up, experts.down):
            stack.gather(device)
            stack.settle()

    def _keys(self) -> tuple[str, ...]:
        return (*self.format.REQUIRED, self.format.INPUT_SCALE)

    def _taken(self, layer: RoutedExperts, stem: str) -> dict[str, Tensor]:
        """The tensors [E, ...] of one product, by their names in the format, which leave the layer."""
        keys = (*self._keys(), *(["bias"] if self.about.bias else []))
        tensors = {key: layer.get_parameter(f"{stem}_{key}").data for key in keys}
        for key in (*keys, "scale"):  # "scale" is of take_stacks
            layer._parameters.pop(f"{stem}_{key}", None)
        if self.mode != W4A4:
            tensors.pop(self.format.INPUT_SCALE, None)
        if self.about.bias:
            if bool(tensors["bias"].isnan().any()):
                raise _C.Error(f"{self.name}.{stem}_bias: is NaN; the checkpoint lacks it")
            if stem == "w2" and self.moe.tp_rank > 0:
                tensors["bias"].zero_()  # vLLM adds the ranks' results
        return tensors

    def apply(
        self,
        layer: RoutedExperts,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        shared_experts: Any,
        shared_experts_input: Tensor | None,
    ) -> Tensor:
        """Maps x [tokens, H] to the sum over this rank's experts of each token. vLLM runs shared experts itself."""
        return layer.nvfp4(x, topk_ids, topk_weights, expert_map=layer.expert_map)


class ExactModelOptExperts(_Experts):
    """NVFP4 experts of ModelOpt's format."""

    format = modelopt

    def uses_weight_scale_2_pattern(self) -> bool:
        return True

    def create_weights(self, layer: RoutedExperts, *sizes: Any, **more: Any) -> None:
        super().create_weights(layer, *sizes, **more)
        if type(layer).__name__ == "GptOssRoutedExperts":
            take_stacks(layer, self.name)


class ExactCompressedTensorsExperts(_Experts):
    """NVFP4 experts of compressed-tensors' format."""

    format = compressed_tensors


class ExactMxfp4Experts(_Experts):
    """MXFP4 experts of gpt-oss, which vLLM's loader cuts as its own method has them."""

    format = mxfp4

    def _keys(self) -> tuple[str, ...]:
        return ("weight", "weight_scale")

    def _tensors(self, experts: int, count: tuple[int, ...], n: int, k: int) -> dict[str, tuple[Tensor, Any]]:
        if k % mxfp4.GROUP:
            raise _C.Error(f"{self.name}: K is {k} on each device; must be a multiple of {mxfp4.GROUP}")
        scale = torch.full((experts, n, k // mxfp4.GROUP), mxfp4.NAN, dtype=torch.uint8)
        weight = torch.empty(experts, n, k // 2, dtype=torch.uint8)
        return {"weight": (weight, None), "weight_scale": (scale, FusedMoeWeightScaleSupported.BLOCK)}


def take_stacks(layer: RoutedExperts, name: str) -> None:
    """Makes vLLM's loader of gpt-oss hand over the scales of ModelOpt's stacks, which it drops for want of names. Block
    scales go where it cuts and transposes weights, global scales to parameters with a loader of ours."""
    if layer.moe_config.tp_size > 1:
        raise _C.Error(f"{name}: vLLM cannot cut gpt-oss's packed stacks for {layer.moe_config.tp_size} ranks")
    suffixes: dict[str, str | None] = {}
    for stem, theirs in (("w13", "gate_up_proj"), ("w2", "down_proj")):
        names = {"weight_scale": "weight_scale", "weight_scale_2": "scale", "input_scale": "input_scale"}
        suffixes |= {f".{theirs}_{key}": f".{stem}_{own}" for key, own in names.items()}
        layer.register_parameter(f"{stem}_scale", torch.nn.Parameter(torch.empty(0), requires_grad=False))
        for own, target in (("scale", "weight_scale_2"), ("input_scale", "input_scale")):
            filled = functools.partial(fill_scalars, layer, layer.get_parameter(f"{stem}_{target}"))
            layer.get_parameter(f"{stem}_{own}").weight_loader = filled
    model = sys.modules[type(layer).__module__].GptOssForCausalLM
    model.hf_to_vllm_mapper |= WeightsMapper(orig_to_new_suffix=suffixes)


def fill_scalars(layer: RoutedExperts, target: Tensor, parameter: Tensor, given: Tensor) -> None:
    """Fills the global scales of a stack, [E] or [E, 2] here, with one for all, one an expert, or both of an expert."""
    if given.numel() > 1 and layer.expert_map is not None:
        given = given[(layer.expert_map >= 0).to(given.device)]
    shape = (-1, *[1] * (target.ndim - 1)) if given.numel() in (1, len(target)) else tuple(target.shape)
    target.data.copy_(given.reshape(shape).expand(target.shape))


def activation_of(layer: RoutedExperts, name: str) -> tuple[str, float | None, float | None]:
    """The activation, limit and alpha of nvfp4.Experts that compute what vLLM's activation does."""
    kind, moe = layer.activation, layer.moe_config
    limit, alpha, beta = (
        own if own is not None else getattr(moe, key)
        for key in ("swiglu_limit", "swiglu_alpha", "swiglu_beta")
        for own in (getattr(layer, key),)
    )
    given = f"{name}: has the activation {kind.value} with limit {limit}, alpha {alpha} and beta {beta}"
    if kind is MoEActivation.SWIGLUOAI and limit in (None, OAI_LIMIT) and alpha in (None, OAI_ALPHA):
        return "swiglu", OAI_LIMIT, OAI_ALPHA
    if kind is MoEActivation.SWIGLUOAI_UNINTERLEAVE and limit is not None:
        alpha, beta = 1.0 if alpha is None else alpha, 0.0 if beta is None else beta
        if beta == 1:
            return "swiglu", limit, alpha
        if beta == 0 and alpha == 1:
            return "silu", limit, None
    if kind is MoEActivation.SILU or (kind in ACTIVATIONS and limit is None):
        return ACTIVATIONS[kind], limit, None
    raise _C.Error(f"{given}, which nvfp4.Experts does not have; {SWITCH}=0 leaves experts to vLLM")


def check_sizes(name: str, experts: int, hidden: int, inner: int) -> None:
    """Raises an error message if nvfp4.Experts cannot take a rank's part of a layer."""
    for what, size in (("hidden size", hidden), ("intermediate size on each device", inner)):
        if size % BLOCK:
            raise _C.Error(f"{name}: the {what} is {size}; must be a multiple of {BLOCK}")
    if not 1 <= experts <= MAX_EXPERTS:
        raise _C.Error(f"{name}: has {experts} experts on each device; must have 1 to {MAX_EXPERTS}")


def reject_unsupported(layer: RoutedExperts, name: str) -> None:
    moe = layer.moe_config
    parallel = moe.moe_parallel_config
    unsupported = {
        "LoRA adapters": moe.is_lora_enabled,
        "expert load balancing (EPLB)": parallel.enable_eplb,
        "data parallelism": moe.dp_size > 1,
        "prefill context parallelism": moe.pcp_size > 1,
        "sequence parallelism": moe.is_sequence_parallel,
    }
    for what, wanted in unsupported.items():
        if wanted:
            raise _C.Error(f"{name}: nvfp4.Experts has no {what} in vLLM; {SWITCH}=0 leaves experts to vLLM")
