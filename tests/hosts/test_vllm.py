"""nvfp4.vllm: checkpoints through vLLM on a CPU, with the tokens of transformers; vLLM's classes with tensors."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mxfp4_files
import pytest
import torch
from torch import Tensor
from vllm_host import (
    FOUR,
    SIZES,
    Cuda,
    check_probabilities,
    check_tokens,
    dense_checkpoint,
    engines,
    parallel_state,
    prompts,
)

import nvfp4
from nvfp4 import _C
from nvfp4.checkpoints import compressed_tensors, modelopt
from nvfp4.layers.packed import PackedLinear

transformers = pytest.importorskip("transformers", reason="comes with vLLM")

import vllm  # noqa: E402
from vllm.config import KernelConfig, VllmConfig  # noqa: E402
from vllm.model_executor.kernels import linear as kernels  # noqa: E402
from vllm.model_executor.layers.linear import QKVParallelLinear  # noqa: E402
from vllm.model_executor.layers.quantization import get_quantization_config  # noqa: E402
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (  # noqa: E402
    CompressedTensorsConfig,
)
from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4Config  # noqa: E402
from vllm.platforms import PlatformEnum  # noqa: E402

import nvfp4.transformers  # noqa: E402
from nvfp4.hosts.vllm import plugin as plugin  # noqa: E402

FORMATS = {"compressed-tensors": compressed_tensors, "modelopt": modelopt}
PROMPTS = prompts(499)


# ---- whole models ----


@pytest.fixture
def engine() -> Iterator[Callable[..., Any]]:
    with engines() as make:
        yield make


CASES = {
    "compressed-tensors W4A4": ("compressed-tensors", "nvfp4", "Llama"),
    "compressed-tensors W4A16": ("compressed-tensors", None, "Qwen2"),  # Qwen2's q, k and v have a bias
    "ModelOpt W4A4": ("modelopt", "nvfp4", "Qwen2"),
    "ModelOpt W4A16": ("modelopt", None, "Llama"),
    "ModelOpt W4A4, fused in the file": ("modelopt", "nvfp4", "Phi3"),
}


@pytest.mark.parametrize("case", CASES)
def test_tokens_of_transformers(case: str, engine: Callable[..., Any], tmp_path: Path) -> None:
    format_name, activations, architecture = CASES[case]
    folder = dense_checkpoint(tmp_path / "model", format_name, activations, architecture, head="ModelOpt" in case)
    check_tokens(engine(folder, "float32"), nvfp4.transformers.load(folder, dtype="float32"), PROMPTS)


@pytest.mark.parametrize("inputs", [False, True])
def test_mxfp4_of_compressed_tensors(inputs: bool, engine: Callable[..., Any], tmp_path: Path) -> None:
    """With MXFP4 inputs the layers are W4A4, whose input scale is that of all sequences of a step."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, architectures=["LlamaForCausalLM"]))
    config, generator = mxfp4_files.compressed_tensors(inputs), torch.Generator().manual_seed(0)
    folder = tmp_path / "model"
    mxfp4_files.quantized(model, folder, config, generator)
    llm = engine(folder, "float32")
    modules = llm.apply_model(lambda model: [*model.modules()])[0]
    layers = [module for module in modules if isinstance(module, nvfp4.Linear)]
    assert layers and {layer.activations for layer in layers} == {"nvfp4" if inputs else None}
    if not inputs:
        check_tokens(llm, nvfp4.transformers.load(folder, dtype="float32"), PROMPTS)


@pytest.mark.parametrize(("case", "bound"), [("compressed-tensors W4A16", 0.125), ("ModelOpt W4A4", 1.0)])
def test_probabilities_of_transformers_in_bf16(
    case: str, bound: float, engine: Callable[..., Any], tmp_path: Path
) -> None:
    """In bf16 vLLM's norms, rotations and attention round at other places, so that a random model's tokens soon differ.
    Given vLLM's tokens, transformers' probabilities are near, and its choice is the same wherever it is clear. In W4A4
    a last bit of an activation may move its 4-bit value by a whole step."""
    format_name, activations, architecture = CASES[case]
    folder = dense_checkpoint(tmp_path / "model", format_name, activations, architecture)
    model = nvfp4.transformers.load(folder, dtype="bfloat16")
    clear = check_probabilities(engine(folder, "bfloat16"), model, PROMPTS, bound)
    assert clear > 0 or activations is not None


# ---- vLLM's layers with tensors ----

QKV = {"q": 64, "k": 32, "v": 32}
PREFIX = "model.layers.0.self_attn.qkv_proj"


@pytest.fixture
def parallel(tmp_path: Path) -> Iterator[None]:
    with parallel_state(tmp_path):
        yield


def configuration(format_name: str, mode: str, kind: Any = None) -> Any:
    """A quantization config as vLLM makes it from config.json; of this class, by default the registered one."""
    if format_name == "modelopt":
        config = {"quant_algo": "NVFP4" if mode == "W4A4" else "W4A16_NVFP4", "ignore": [], "quant_method": "modelopt"}
        name = "modelopt_fp4"
    elif format_name == "mixed":
        algorithm = "NVFP4" if mode == "W4A4" else "W4A16_NVFP4"
        layers = {PREFIX.replace("qkv", part): {"quant_algo": algorithm, "group_size": 16} for part in QKV}
        config = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers, "ignore": [], "quant_method": "modelopt"}
        name = "modelopt_mixed"
    else:
        inputs = FOUR | {"dynamic": "local" if mode == "W4A4" else True}
        groups = {"targets": ["Linear"], "weights": FOUR, "input_activations": None if mode == "W4A16" else inputs}
        config = {"format": "nvfp4-pack-quantized", "config_groups": {"group_0": groups}, "ignore": []}
        name = "compressed-tensors"
    made = (kind or get_quantization_config(name)).from_config(config)
    made.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    return made


def parts(mode: str, weight_scales: tuple[float, ...], input_scales: tuple[float, ...]) -> list[PackedLinear]:
    """q, k and v. Global scales are reciprocals, as compressed-tensors stores divisors."""
    torch.manual_seed(1)
    made = []
    for rows, scale, given in zip(QKV.values(), weight_scales, input_scales):
        own = nvfp4.Linear.from_linear(torch.nn.Linear(64, rows)).packed()
        scale, given = (torch.tensor(x).reciprocal() for x in (scale, given))
        activations = None if mode == "W4A16" else "nvfp4"
        given = given if mode == "W4A4" else None
        made.append(PackedLinear(own.weight, own.weight_scale, scale, given, own.bias, activations))
    return made


def fused(config: Any, given: list[PackedLinear], dtype: torch.dtype, finish: bool = True) -> Any:
    """vLLM's layer of q, k and v, loaded as from a checkpoint."""
    format_name = "compressed-tensors" if config.get_name() == "compressed-tensors" else "modelopt"
    layer = QKVParallelLinear(64, 16, 4, 2, params_dtype=dtype, quant_config=config, prefix=PREFIX)
    for part, packed in zip(QKV, given):
        for name, t in FORMATS[format_name].write(packed).items():
            parameter = getattr(layer, name)
            parameter.weight_loader(parameter, t.to(dtype) if name == "bias" else t, part)
    if finish:
        layer.quant_method.process_weights_after_loading(layer)
    return layer


def one_by_one(given: list[PackedLinear], x: Tensor) -> Tensor:
    return torch.cat([nvfp4.Linear.from_packed(part).to(x.dtype)(x) for part in given], -1)


SAME, OTHER = (700.0, 700.0, 700.0), (700.0, 300.0, 1100.0)


@pytest.mark.parametrize("scales", [(SAME, SAME), (OTHER, SAME), (SAME, OTHER), (OTHER, (90.0, 70.0, 70.0))])
@pytest.mark.parametrize(
    ("format_name", "mode"),
    [(name, mode) for name in ("compressed-tensors", "modelopt", "mixed") for mode in ("W4A4", "W4A16")]
    + [("compressed-tensors", "W4A4 dynamic")],
)
def test_fused_layers_are_exact(format_name: str, mode: str, scales: Any, parallel: None) -> None:
    """Equal bits to the layers one by one, whatever their global scales."""
    given = parts(mode, *scales)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        layer = fused(configuration(format_name, mode), given, dtype)
        assert not [name for name, _ in layer.named_parameters() if "scale" in name or name == "weight_packed"]
        assert len(layer.nvfp4) == (1 if mode != "W4A4" else len({*scales[1]}))
        for rows in (1, 5, 40):
            x = torch.randn(rows, 64, dtype=dtype)
            with torch.inference_mode():
                assert torch.equal(layer(x)[0], one_by_one(given, x))
                plain = layer.quant_method.apply(layer, x, None)
                assert torch.equal(plain, one_by_one([dataclasses.replace(part, bias=None) for part in given], x))
                other = torch.ones_like(layer.bias)  # not the layer's own
                assert torch.equal(layer.quant_method.apply(layer, x, other), plain + other)


def test_the_kernel_after_a_configuration_of_vllm(parallel: None) -> None:
    """vLLM's own schemes choose the kernel too. They hand over one global scale, the largest, and no others."""
    for format_name, own in (("compressed-tensors", CompressedTensorsConfig), ("modelopt", ModelOptNvFp4Config)):
        config = configuration(format_name, "W4A4", own)
        x = torch.randn(7, 64)
        with torch.inference_mode():
            for scales, exact in ((SAME, True), (OTHER, False)):
                given = parts("W4A4", scales, SAME)
                layer = fused(config, given, torch.float32)
                kernel = layer.quant_method.kernel if format_name == "modelopt" else layer.scheme.kernel
                assert type(kernel) is plugin.ExactNvFp4LinearKernel
                assert torch.equal(layer(x)[0], one_by_one(given, x)) == exact


def test_vllms_emulation(parallel: None) -> None:
    """vLLM's emulation rounds values, sums and results to bf16: the same within some roundings of 2^-8."""
    given = parts("W4A4", SAME, (90.0,) * 3)
    exact = fused(configuration("modelopt", "W4A4"), given, torch.bfloat16)
    own = configuration("modelopt", "W4A4", ModelOptNvFp4Config)
    emulated = fused(own, given, torch.bfloat16, finish=False)
    emulated.quant_method.kernel = kernels.EmulationNvFp4LinearKernel(kernels.NvFp4LinearLayerConfig())
    emulated.quant_method.process_weights_after_loading(emulated)
    x = torch.randn(33, 64, dtype=torch.bfloat16)
    with torch.inference_mode():
        ours, theirs = exact(x)[0].float(), emulated(x)[0].float()
    assert (ours - theirs).norm() < 0.02 * ours.norm()


# ---- what is registered, and what turns it off ----


def test_the_entry_point_registers() -> None:
    for platform in (PlatformEnum.CPU, PlatformEnum.CUDA):
        known = kernels._POSSIBLE_NVFP4_KERNELS[platform]
        assert known[0] is plugin.ExactNvFp4LinearKernel and known.count(known[0]) == 1
    before = list(kernels._POSSIBLE_NVFP4_KERNELS[PlatformEnum.CUDA])
    plugin.register()
    assert before == kernels._POSSIBLE_NVFP4_KERNELS[PlatformEnum.CUDA]
    for name, config in plugin.CONFIGS.items():
        assert get_quantization_config(name) is config


@pytest.mark.parametrize("capability", [75, 80, 86, 89, 90, 100, 120])
def test_the_choice_on_cuda(capability: int, parallel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By vLLM's own function, on a CPU: nothing runs. W4A16 is ours where it was measured, and elsewhere on request."""
    for module in (plugin, plugin.experts, kernels):
        monkeypatch.setattr(module, "current_platform", Cuda(capability))
    monkeypatch.setattr(_C, "archs", "sm_80")
    for kernel in kernels._POSSIBLE_NVFP4_KERNELS[PlatformEnum.CUDA][1:]:
        monkeypatch.setattr(kernel, "is_supported", classmethod(lambda cls, *_: (True, None)))
    runs = 80 <= capability <= 90
    assert plugin.chosen("W4A4", PREFIX) == runs and plugin.chosen("W4A16", PREFIX) == (capability == 90)
    supported, reason = plugin.ExactNvFp4LinearKernel.is_supported(capability)
    assert supported or reason == f"the compute capability is {capability}; must be 80 to 90"
    with monkeypatch.context() as changed:
        changed.setattr(_C, "archs", "")
        assert not plugin.chosen("W4A4", PREFIX) and not plugin.chosen("W4A16", PREFIX)
    monkeypatch.setenv(plugin.W4A16_SWITCH, "0")
    assert plugin.chosen("W4A4", PREFIX) == runs and not plugin.chosen("W4A16", PREFIX)
    monkeypatch.setenv(plugin.W4A16_SWITCH, "1")
    if runs:
        assert plugin.chosen("W4A16", PREFIX)
    else:
        with pytest.raises(nvfp4.Error, match=rf"^{plugin.W4A16_SWITCH}: is 1 on .*, but .* 80 to 90; {PREFIX} cannot"):
            plugin.chosen("W4A16", PREFIX)


def test_w4a16_with_another_backend_of_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (plugin, plugin.experts):
        monkeypatch.setattr(module, "current_platform", Cuda(90))
    monkeypatch.setattr(_C, "archs", "sm_80")
    for options in ({"linear_backend": "marlin"}, {"linear_backend_per_quant": {"nvfp4_w4a16": "marlin"}}):
        with parallel_state(tmp_path, VllmConfig(kernel_config=KernelConfig(**options))):
            assert not plugin.chosen("W4A16", PREFIX)


@pytest.mark.parametrize("capability", [None, 75, 80, 90, 100])
def test_the_choice_if_batch_invariant(capability: int | None, parallel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours wherever it runs, also where vLLM has a kernel; but W4A4 with the scale of all rows is not invariant."""
    if capability is not None:
        monkeypatch.setattr(plugin, "current_platform", Cuda(capability))
        monkeypatch.setattr(_C, "archs", "sm_80")
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    ours = capability is None or 80 <= capability <= 90
    assert plugin.batch_invariant()
    assert [plugin.chosen(mode, PREFIX) for mode in ("W4A4", "W4A16", "W4A4 dynamic")] == [ours, ours, False]
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "0")
    assert not plugin.batch_invariant()


@pytest.mark.parametrize("mode", ["W4A4", "W4A16"])
@pytest.mark.parametrize("format_name", ["compressed-tensors", "modelopt", "mixed"])
def test_layers_that_are_batch_invariant(
    format_name: str, mode: str, parallel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fp32, where W4A16 is a product of torch's otherwise, which depends on the count of rows."""
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    layer = fused(configuration(format_name, mode), parts(mode, OTHER, OTHER), torch.float32)
    made = [module for modules in (layer.nvfp4, layer.nvfp4_biased) for module in modules]
    assert made and all(module.batch_invariant for module in made)
    x = torch.randn(40, 64)
    with torch.inference_mode():
        whole = layer(x)[0]
        for rows in (slice(0, 1), slice(5, 8), slice(7, 40)):
            assert torch.equal(layer(x[rows])[0], whole[rows])


def test_what_turns_it_off(parallel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[tuple[str, ...]] = []
    monkeypatch.setattr(plugin.logger, "info_once", lambda *given: messages.append(given))
    assert plugin.chosen("W4A4", PREFIX) and plugin.chosen("W4A16", PREFIX)
    assert messages == [("Using nvfp4.Linear for NVFP4 weights with %s", "16-bit activations")]
    monkeypatch.setenv("VLLM_DISABLED_KERNELS", "ExactNvFp4LinearKernel")
    assert not plugin.chosen("W4A16", PREFIX)
    with pytest.raises(ValueError, match="ExactNvFp4LinearKernel disabled by environment variable"):
        plugin.chosen("W4A4", PREFIX)  # vLLM has no other kernel on a CPU
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert not plugin.chosen("W4A16", PREFIX) and not plugin.chosen("W4A4", PREFIX)
    monkeypatch.setenv("NVFP4_VLLM", "0")
    monkeypatch.setattr(kernels, "_POSSIBLE_NVFP4_KERNELS", {})
    monkeypatch.setattr(plugin, "register_quantization_config", None)
    plugin.register()
    assert kernels._POSSIBLE_NVFP4_KERNELS == {}


def test_importing_nvfp4_imports_no_vllm() -> None:
    code = "import sys, torch, nvfp4; nvfp4.Linear, nvfp4.load; assert not [m for m in sys.modules if 'vllm' in m]"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_threads_start_before_vllm_binds_the_caller() -> None:
    """There are as many threads as torch has, and all may run on every core of the process."""
    code = """if True:
        import os, torch
        torch.set_num_threads(5)
        from nvfp4 import vllm as plugin
        before = set(os.listdir("/proc/self/task"))
        plugin.register()
        started = set(os.listdir("/proc/self/task")) - before
        assert len(started) >= 4, started
        assert all(os.sched_getaffinity(int(task)) == os.sched_getaffinity(0) for task in started)
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_version_that_lacks_something_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM logs that the plugin cannot be loaded, and goes on."""
    monkeypatch.setattr(vllm, "__version__", "0.99.0")
    monkeypatch.delattr(kernels, "NvFp4LinearKernel")
    with pytest.raises(ImportError, match=r"^vllm: is version 0.99.0, which lacks .*NvFp4LinearKernel.*; tested is 0"):
        importlib.reload(plugin)


# ---- errors ----


def test_damage_is_named(parallel: None) -> None:
    given = parts("W4A4", OTHER, OTHER)
    layer = fused(configuration("modelopt", "W4A4"), given, torch.bfloat16, finish=False)
    layer.weight_scale_2.data[1] = torch.nan
    with pytest.raises(nvfp4.Error, match=f"^{PREFIX}.weight_scale_2: is nan; must be positive and finite$"):
        layer.quant_method.process_weights_after_loading(layer)
    layer = fused(configuration("compressed-tensors", "W4A4"), given, torch.bfloat16, finish=False)
    layer.input_global_scale.data[2] = 0
    with pytest.raises(nvfp4.Error, match=f"^{PREFIX}.input_global_scale: is 0; must be positive and finite$"):
        layer.quant_method.process_weights_after_loading(layer)
    layer = fused(configuration("compressed-tensors", "W4A16"), [], torch.bfloat16, finish=False)
    with pytest.raises(nvfp4.Error, match=f"^{PREFIX}.weight_scale: is NaN; the checkpoint lacks it, or has the layer"):
        layer.quant_method.process_weights_after_loading(layer)
    with pytest.raises(nvfp4.Error, match=f"^{PREFIX}: K is 72 on each device; must be a multiple of 16$"):
        QKVParallelLinear(72, 16, 4, 2, quant_config=configuration("modelopt", "W4A16"), prefix=PREFIX)
