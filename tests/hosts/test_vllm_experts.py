"""Experts in vLLM: models on a CPU with the tokens of transformers, a rank's part of a layer, activations, errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mxfp4_files
import pytest
import torch
from torch import Tensor
from vllm_host import FOUR, Cuda, check_probabilities, check_tokens, engines, parallel_state, prompts

import nvfp4
from nvfp4 import _C
from nvfp4.checkpoints import compressed_tensors, modelopt
from nvfp4.layers.experts.module import Experts
from nvfp4.layers.packed import PackedLinear

pytest.importorskip("transformers", reason="comes with vLLM")

from mixed_precision_models import Mixed  # noqa: E402
from moe_models import VOCABULARY, Mixture  # noqa: E402
from vllm.config import KernelConfig, ParallelConfig, VllmConfig, get_current_vllm_config  # noqa: E402
from vllm.model_executor.layers import activation as activations  # noqa: E402
from vllm.model_executor.layers.fused_moe import config as moe_config  # noqa: E402
from vllm.model_executor.layers.fused_moe.layer import FusedMoEFactory  # noqa: E402
from vllm.model_executor.layers.linear import LinearBase  # noqa: E402
from vllm.model_executor.layers.quantization import get_quantization_config  # noqa: E402

import nvfp4.transformers  # noqa: E402
from nvfp4.hosts.vllm import experts as plugin  # noqa: E402

FORMATS = {"compressed-tensors": compressed_tensors, "modelopt": modelopt}
PROMPTS = prompts(VOCABULARY - 1)

# ---- whole models ----

# vLLM's attention on a CPU takes heads of 32. A token that ends is one that vLLM would not give before the last.
SMALL = {"head_dim": 32, "eos_token_id": None, "max_position_embeddings": 128}
DEEPSEEK = {
    "qk_rope_head_dim": 16,
    "head_dim": 16,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "eos_token_id": None,
    "max_position_embeddings": 128,
}
# vLLM's own rotary kernel for a CPU is wrong for heads of which a part is rotated: its functions in torch are not.
IN_TORCH = {"compilation_config": {"custom_ops": ["none"]}}
CASES = {
    "Qwen3-MoE, ModelOpt W4A16": ("qwen3-moe", "modelopt", "W4A16", SMALL),
    "Qwen3-MoE, compressed-tensors W4A4": ("qwen3-moe", "compressed-tensors", "W4A4", SMALL),
    "Mixtral, ModelOpt W4A4": ("mixtral", "modelopt", "W4A4", SMALL),
    "Mixtral, compressed-tensors W4A16": ("mixtral", "compressed-tensors", "W4A16", SMALL),
    "DeepSeek-V3, ModelOpt W4A16": ("deepseek-v3", "modelopt", "W4A16", DEEPSEEK),
    "gpt-oss, ModelOpt W4A16": ("gpt-oss", "modelopt", "W4A16", SMALL),
    "gpt-oss, ModelOpt W4A4": ("gpt-oss", "modelopt", "W4A4", SMALL),
    "DeepSeek-V3, compressed-tensors W4A16": ("deepseek-v3", "compressed-tensors", "W4A16", DEEPSEEK),
}


@pytest.fixture
def engine() -> Iterator[Callable[..., Any]]:
    with engines() as make:
        yield make


def experts_of(llm: Any) -> list[Experts]:
    return llm.apply_model(lambda model: [module for module in model.modules() if isinstance(module, Experts)])[0]


@pytest.mark.parametrize("case", CASES)
def test_tokens_of_transformers(case: str, engine: Callable[..., Any], tmp_path: Path) -> None:
    """Gate and up of each expert have scales of their own."""
    name, format_name, mode, changes = CASES[case]
    torch.manual_seed(0)
    own = Mixture(name, mode, tmp_path, **changes)
    folder = own.write(tmp_path / "model", format_name)
    llm = engine(folder, "float32", **(IN_TORCH if name == "deepseek-v3" else {}))
    assert len(experts_of(llm)) == own.mixtures
    assert {module.mode for module in experts_of(llm)} == {mode}
    model = own.dense if mode == "W4A16" else nvfp4.transformers.load(folder, dtype="float32")
    check_tokens(llm, model, PROMPTS)


def test_gpt_oss_in_mxfp4(engine: Callable[..., Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    own = Mixture("gpt-oss", "W4A16", tmp_path, **SMALL, hidden_size=64, intermediate_size=96)
    model = mxfp4_files.quantized(own.dense, tmp_path / "mx", mxfp4_files.GPT_OSS, torch.Generator().manual_seed(0))
    llm = engine(tmp_path / "mx", "float32")
    assert len(experts_of(llm)) == own.mixtures and {module.mode for module in experts_of(llm)} == {"W4A16"}
    check_tokens(llm, model, PROMPTS)


def test_gpt_oss_of_compressed_tensors_is_an_error(engine: Callable[..., Any], tmp_path: Path) -> None:
    """vLLM drops its scales without a word."""
    own = Mixture("gpt-oss", "W4A16", tmp_path, **SMALL)
    with pytest.raises(nvfp4.Error, match=r"^model.layers.0.mlp.experts.0.w13.weight_(global_)?scale: is nan"):
        engine(own.write(tmp_path / "model", "compressed-tensors"), "float32")


def test_tokens_of_compiled_code(engine: Callable[..., Any], tmp_path: Path) -> None:
    """vLLM's default on a CPU."""
    torch.manual_seed(0)
    own = Mixture("qwen3-moe", "W4A16", tmp_path, **SMALL)
    folder = own.write(tmp_path / "model", "modelopt")
    check_tokens(engine(folder, "float32", enforce_eager=False), own.dense, PROMPTS)


@pytest.mark.parametrize(("kind", "mode"), [("modelopt per token", "W4A16"), ("ct per token", "W4A4")])
def test_probabilities_beside_fp8_layers_of_vllm(
    kind: str, mode: str, engine: Callable[..., Any], tmp_path: Path
) -> None:
    """MIXED_PRECISION, and groups of compressed-tensors: vLLM runs the attention, whose inputs are FP8 too. The last
    bit of one may move its value by 2^-3."""
    torch.manual_seed(0)
    own = Mixed("qwen3-moe", mode, tmp_path, kind, **SMALL)
    tensors = {key: t for key, t in own.stored(own.kind.format).items() if not key.endswith(("k_scale", "v_scale"))}
    folder = own.write(tmp_path / "model", own.kind.format, tensors, kv_cache_quant_algo=None)
    llm = engine(folder, "float32", **IN_TORCH)
    modules = llm.apply_model(lambda model: [*model.modules()])[0]
    assert {type(m.quant_method).__module__.partition(".")[0] for m in modules if isinstance(m, LinearBase)} == {"vllm"}
    assert len(experts_of(llm)) == own.mixtures
    assert check_probabilities(llm, nvfp4.transformers.load(folder, dtype="float32"), PROMPTS, 0.05) > 100


# ---- vLLM's layer with tensors ----

E, HIDDEN, INNER, RANKS, TOKENS, CHOICES = 7, 64, 144, 3, 11, 2  # 48 rows on each rank: no multiple of 128
PREFIX = "model.layers.0.mlp.experts"
ORDER = {"gate": "w1", "up": "w3", "down": "w2"}


@pytest.fixture
def parallel(tmp_path: Path) -> Iterator[None]:
    with parallel_state(tmp_path):
        yield


@pytest.fixture
def expert_parallel(tmp_path: Path) -> Iterator[None]:
    with parallel_state(tmp_path, VllmConfig(parallel_config=ParallelConfig(enable_expert_parallel=True))):
        yield


def configuration(format_name: str, mode: str) -> Any:
    """A quantization config as vLLM makes it from config.json."""
    algorithm = {"W4A4": "NVFP4", "W4A16": "W4A16_NVFP4"}.get(mode)
    if format_name == "modelopt":
        config = {"quant_algo": algorithm, "ignore": [], "quant_method": "modelopt"}
        return get_quantization_config("modelopt_fp4").from_config(config)
    if format_name == "mixed":
        layers = {f"{PREFIX}.0.gate_proj": {"quant_algo": algorithm, "group_size": 16}}
        layers["lm_head"] = {"quant_algo": "FP8"}
        config = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers, "ignore": [], "quant_method": "modelopt"}
        return get_quantization_config("modelopt_mixed").from_config(config)
    inputs = None if mode == "W4A16" else FOUR | {"dynamic": "local"}
    groups = {"group_0": {"targets": ["Linear"], "weights": FOUR, "input_activations": inputs}}
    config = {"format": "nvfp4-pack-quantized", "config_groups": groups, "ignore": []}
    return get_quantization_config("compressed-tensors").from_config(config)


def layer_of(config: Any, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """vLLM's layer of experts, without tensors."""
    sizes = {"num_experts": E, "top_k": CHOICES, "hidden_size": HIDDEN, "intermediate_size": INNER}
    get_current_vllm_config().compilation_config.static_forward_context.clear()  # the name of a layer before
    return FusedMoEFactory(**sizes | more, params_dtype=dtype, quant_config=config, prefix=PREFIX).routed_experts


def random_layers(gated: bool = True, bias: bool = False, inputs: bool = False) -> dict[tuple[int, str], PackedLinear]:
    """The layers of all experts, each with a global scale of its own, which survives as a divisor."""
    made = {}
    for e, name in itertools.product(range(E), ("gate", "up", "down") if gated else ("gate", "down")):
        n, k = (HIDDEN, INNER) if name == "down" else (INNER, HIDDEN)
        linear = torch.nn.Linear(k, n, bias=bias)
        linear.weight.data.normal_(std=0.3)
        own = nvfp4.Linear.from_linear(linear, None).packed()
        scale = own.weight_global_scale.reciprocal().reciprocal()
        given = (300 + torch.rand(()) * 500).reciprocal() if inputs else None
        mode = "nvfp4" if inputs else None
        made[e, name] = PackedLinear(own.weight, own.weight_scale, scale, given, own.bias, mode)
    return made


def load(layer: Any, given: dict[tuple[int, str], PackedLinear], format_name: str, finish: bool = True) -> Any:
    """Loads a layer as from a checkpoint's tensors, a rank's part."""
    tensors = []
    for (e, name), packed in given.items():
        written = FORMATS[format_name].write(packed)
        tensors += [(f"{e}.{name}_proj.{key}", t) for key, t in written.items()]
    loaded = set(layer.load_weights(tensors))
    assert loaded <= {name for name, _ in layer.named_parameters()}
    if finish:
        layer.quant_method.process_weights_after_loading(layer)
        assert not list(layer.parameters())
    return layer


def reference(
    given: dict[tuple[int, str], PackedLinear], rows: slice = slice(None), first: bool = True, **more: Any
) -> Experts:
    """nvfp4.Experts of the same layers, or of some rows of gate and up with those columns of down."""
    chosen = range(INNER)[rows]
    has_bias = given[0, "down"].bias is not None
    gated = (0, "up") in given
    experts = Experts(
        E, HIDDEN, len(chosen), gated=gated, bias=has_bias, activations=given[0, "down"].activations, **more
    )
    for stack, names in ((experts.gate_up, ("gate", "up") if gated else ("gate",)), (experts.down, ("down",))):
        for p, name in enumerate(names):
            each = [given[e, name] for e in range(E)]
            if name == "down":
                values = slice(chosen.start // 2, chosen.stop // 2), slice(chosen.start // 16, chosen.stop // 16)
                weights, scales = ([t[:, s] for t in ts] for s, ts in zip(values, tensors_of(each)))
            else:
                weights, scales = ([t[rows] for t in ts] for ts in tensors_of(each))
            stack.keep(p, weights, scales)
            stack.weight_global_scale[:, p] = torch.stack([packed.weight_global_scale for packed in each])
            if each[0].input_global_scale is not None:
                if stack.input_global_scale is None:
                    stack.input_global_scale = torch.zeros_like(stack.weight_global_scale)
                stack.input_global_scale[:, p] = torch.stack([packed.input_global_scale for packed in each])
            if has_bias:
                biases = torch.stack([packed.bias.data for packed in each])
                stack.bias[:, p] = biases[:, rows] if name != "down" else biases * first
    return experts


def tensors_of(layers: list[PackedLinear]) -> tuple[list[Tensor], list[Tensor]]:
    return [packed.weight for packed in layers], [packed.weight_scale for packed in layers]


def routing() -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.rand(TOKENS, E).topk(CHOICES).indices.int()
    return torch.randn(TOKENS, HIDDEN), torch.rand(TOKENS, CHOICES), ids


def apply(layer: Any, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    with torch.inference_mode():
        return layer.quant_method.apply(layer, x, weights, ids, None, None)


def of_rank(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moe_config, "get_tensor_model_parallel_rank", lambda: rank)
    config = moe_config.FusedMoEConfig
    monkeypatch.setattr(config, "tp_rank", property(lambda self: self.moe_parallel_config.tp_rank))


def test_input_scales_are_computed_once(parallel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by code that is compiled, or captured in a CUDA graph."""
    layer = load(layer_of(configuration("modelopt", "W4A4")), random_layers(inputs=True), "modelopt")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for stack in (layer.nvfp4.gate_up, layer.nvfp4.down):
        assert stack.input_scales()[0] is stack.input_scales()[0]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mode", ["W4A4", "W4A16"])
@pytest.mark.parametrize("format_name", ["compressed-tensors", "modelopt", "mixed"])
def test_a_layer_is_exact(format_name: str, mode: str, bias: bool, parallel: None) -> None:
    """Equal bits to nvfp4.Experts, in all dtypes, with a scale for gate and one for up."""
    written = "compressed-tensors" if format_name == "compressed-tensors" else "modelopt"
    given = random_layers(bias=bias, inputs=mode == "W4A4")
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        config = configuration(format_name, mode)
        layer = load(layer_of(config, dtype, has_bias=bias), given, written)
        assert layer.nvfp4.mode == mode
        if mode == "W4A4":
            scales = [torch.stack([given[e, n].input_global_scale for e in range(E)]) for n in ("gate", "up", "down")]
            assert torch.equal(layer.nvfp4.gate_up.input_global_scale, torch.stack(scales[:2], 1))
            assert torch.equal(layer.nvfp4.down.input_global_scale, scales[2].unsqueeze(1))
        x, weights, ids = routing()
        expected = reference(given, dtype=dtype)(x.to(dtype), ids, weights)
        for index in (ids, ids.long()):
            assert torch.equal(apply(layer, x.to(dtype), weights, index), expected)


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("mode", ["W4A4", "W4A16"])
def test_ranks_of_tensor_parallelism(
    mode: str, format_name: str, parallel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank has the bits of its own slices, and their sum is the whole. Biases of down are added once."""
    given = random_layers(bias=True, inputs=mode == "W4A4")
    x, weights, ids = routing()
    total = torch.zeros(TOKENS, HIDDEN, dtype=torch.float64)
    for rank in range(RANKS):
        of_rank(rank, monkeypatch)
        layer = load(
            layer_of(configuration(format_name, mode), tp_size=RANKS, has_bias=True),
            given,
            format_name,
        )
        rows = slice(rank * INNER // RANKS, (rank + 1) * INNER // RANKS)
        y = apply(layer, x, weights, ids)
        assert torch.equal(y, reference(given, rows, first=rank == 0)(x, ids, weights))
        total += y
    whole = reference(given)(x, ids, weights)
    assert (total - whole).norm() < 1e-5 * whole.norm()


@pytest.mark.parametrize("format_name", FORMATS)
def test_ranks_of_expert_parallelism(format_name: str, expert_parallel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """3, 2 and 2 experts of 7. Each rank has the bits of its own experts' terms, and their sum is the whole."""
    given = random_layers()
    x, weights, ids = routing()
    total = torch.zeros(TOKENS, HIDDEN, dtype=torch.float64)
    counts = []
    for rank in range(RANKS):
        of_rank(rank, monkeypatch)
        config = configuration(format_name, "W4A16")
        layer = load(layer_of(config, tp_size=RANKS), given, format_name)
        counts.append(layer.nvfp4.num_experts)
        here = layer.expert_map[ids.long()] >= 0
        y = apply(layer, x, weights, ids)
        assert torch.equal(y, reference(given)(x, torch.where(here, ids, -1), weights))
        total += y
    assert counts == [3, 2, 2]
    whole = reference(given)(x, ids, weights)
    assert (total - whole).norm() < 1e-5 * whole.norm()


def test_router_weights_on_the_input(parallel: None) -> None:
    given = random_layers()
    layer = load(layer_of(configuration("modelopt", "W4A16"), apply_router_weight_on_input=True), given, "modelopt")
    x, weights, ids = routing()
    one = (ids[:, :1], weights[:, :1])
    expected = reference(given)(x * one[1], one[0], torch.ones_like(one[1]))
    assert torch.equal(apply(layer, x, one[1], one[0]), expected)


@pytest.mark.parametrize("mode", ["W4A4", "W4A16"])
def test_batch_invariance(mode: str, parallel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    given = random_layers(inputs=mode == "W4A4")
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    layer = load(layer_of(configuration("modelopt", mode)), given, "modelopt")
    assert layer.nvfp4.batch_invariant
    x, weights, ids = routing()
    y = apply(layer, x, weights, ids)
    assert torch.equal(y, reference(given, batch_invariant=True)(x, ids, weights))
    for t in range(TOKENS):
        assert torch.equal(apply(layer, *(one[t : t + 1] for one in (x, weights, ids)))[0], y[t])


# ---- activations ----

ACTIVATIONS = {  # vLLM's functions of [gate, up], in torch
    "silu": ({"activation": "silu"}, lambda: activations.SiluAndMul()),
    "silu with a limit": (
        {"activation": "silu", "swiglu_limit": 0.75},
        lambda: activations.SiluAndMulWithClamp(0.75),
    ),
    "gelu_tanh": ({"activation": "gelu_pytorch_tanh"}, lambda: activations.GeluAndMul("tanh")),
    "swigluoai": ({"activation": "swigluoai"}, lambda: activations.SwigluOAIAndMul()),
    "swigluoai apart": (
        {"activation": "swigluoai_uninterleave", "swiglu_limit": 0.75, "swiglu_alpha": 1.5, "swiglu_beta": 1.0},
        lambda: activations.SiluAndMulWithClamp(0.75, 1.5, 1.0),
    ),
    "silu by another name": (
        {"activation": "swigluoai_uninterleave", "swiglu_limit": 0.75},
        lambda: activations.SiluAndMulWithClamp(0.75),
    ),
}


def dense(packed: PackedLinear) -> Tensor:
    scale = nvfp4.swizzle(packed.weight_scale)
    return nvfp4.dequantize(packed.weight, scale, global_scale=packed.weight_global_scale).double()


def loop(
    given: dict[tuple[int, str], PackedLinear], x: Tensor, weights: Tensor, ids: Tensor, act: Callable[[Tensor], Tensor]
) -> Tensor:
    """Each token's experts one after another in fp64."""
    first = [name for name in ("gate", "up") if (0, name) in given]
    result = torch.zeros(TOKENS, HIDDEN, dtype=torch.float64)
    for t, choice in itertools.product(range(TOKENS), range(CHOICES)):
        e = int(ids[t, choice])
        inner = torch.cat([dense(given[e, name]) @ x[t].double() for name in first])
        result[t] += float(weights[t, choice]) * (dense(given[e, "down"]) @ act(inner.unsqueeze(0))[0])
    return result


@pytest.mark.parametrize("case", ACTIVATIONS)
def test_activations_of_vllm(case: str, parallel: None) -> None:
    """A loop with vLLM's own functions. SWIGLUOAI has rows of gate and up in turn, as gpt-oss stores them."""
    options, function = ACTIVATIONS[case]
    native = function().forward_native
    given = random_layers()
    if case == "swigluoai":  # one scale for both
        given |= {
            (e, "up"): PackedLinear(
                given[e, "up"].weight,
                given[e, "up"].weight_scale,
                given[e, "gate"].weight_global_scale,
                None,
                None,
                None,
            )
            for e in range(E)
        }
    layer = load(layer_of(configuration("modelopt", "W4A16"), **options), given, "modelopt", finish=False)
    act = native
    if case == "swigluoai":
        for t in (layer.w13_weight.data, layer.w13_weight_scale.data.view(torch.uint8)):
            t.copy_(t.unflatten(1, (2, INNER)).transpose(1, 2).flatten(1, 2).clone())
        act = lambda inner: native(inner.unflatten(1, (2, INNER)).transpose(1, 2).flatten(1, 2))  # noqa: E731
    layer.quant_method.process_weights_after_loading(layer)
    x, weights, ids = routing()
    expected = loop(given, x, weights, ids, act)
    y = apply(layer, x, weights, ids)
    assert (y - expected).norm() < 1e-5 * expected.norm()


class WithoutGate(Cuda):
    """vLLM makes no experts without a gate on a CPU."""

    def is_cuda_alike(self) -> bool:
        return True


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("name", ["relu2", "silu", "gelu_tanh"])
def test_experts_without_a_gate(name: str, format_name: str, parallel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moe_config, "current_platform", WithoutGate(90))
    given = random_layers(gated=False)
    names = {"ckpt_names": ("gate_proj", "down_proj", None)}
    config = configuration(format_name, "W4A16")
    layer = load(layer_of(config, activation=f"{name}_no_mul", **names), given, format_name)
    functions = {
        "relu2": lambda t: torch.relu(t).square(),
        "silu": torch.nn.functional.silu,
        "gelu_tanh": lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
    }
    x, weights, ids = routing()
    expected = loop(given, x, weights, ids, functions[name])
    assert (apply(layer, x, weights, ids) - expected).norm() < 1e-5 * expected.norm()


# ---- stacks of gpt-oss ----


@pytest.mark.parametrize("shape", [(), (1,), (E,), (E, 2)])
def test_global_scales_of_a_stack(shape: tuple[int, ...], parallel: None) -> None:
    layer = layer_of(configuration("modelopt", "W4A4"))
    given = torch.rand(shape)
    plugin.fill_scalars(layer, layer.w13_weight_scale_2, torch.empty(0), given)
    assert torch.equal(
        layer.w13_weight_scale_2.data, given.reshape(-1, shape[-1] if len(shape) == 2 else 1).expand(E, 2)
    )
    if len(shape) < 2:
        plugin.fill_scalars(layer, layer.w2_weight_scale_2, torch.empty(0), given)
        assert torch.equal(layer.w2_weight_scale_2.data, given.expand(E))


def test_global_scales_of_a_ranks_experts(expert_parallel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    of_rank(1, monkeypatch)
    layer = layer_of(configuration("modelopt", "W4A4"), tp_size=RANKS)
    given = torch.rand(E)
    plugin.fill_scalars(layer, layer.w2_input_scale, torch.empty(0), given)
    assert torch.equal(layer.w2_input_scale.data, given[3:5])


def test_stacks_for_several_ranks_are_an_error(parallel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    of_rank(0, monkeypatch)
    layer = layer_of(configuration("modelopt", "W4A4"), tp_size=RANKS)
    with pytest.raises(nvfp4.Error, match=f"^{PREFIX}: vLLM cannot cut gpt-oss's packed stacks for {RANKS} ranks$"):
        plugin.take_stacks(layer, PREFIX)


# ---- what runs them, and errors ----


def test_what_turns_it_on_and_off(parallel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layer_of(configuration("modelopt", "W4A16"))

    def takes(mode: str = "W4A16") -> bool:
        return plugin.takes(layer, PREFIX, mode, 80)

    assert takes()
    with monkeypatch.context() as changed:
        changed.setenv(plugin.SWITCH, "0")
        assert not takes()
    with monkeypatch.context() as changed:
        changed.setattr(layer.moe_config, "moe_backend", "marlin")
        assert not takes()
    monkeypatch.setattr(plugin, "current_platform", Cuda(90))
    monkeypatch.setattr(_C, "archs", "sm_80")
    assert takes() and not takes("W4A4") and not takes("W4A4 dynamic")
    with monkeypatch.context() as changed:
        changed.setenv("VLLM_BATCH_INVARIANT", "1")
        assert takes("W4A4")
    for capability in (75, 80, 89, 100):  # on which no one has measured it beside vLLM's
        monkeypatch.setattr(plugin, "current_platform", Cuda(capability))
        assert not takes()
    monkeypatch.setattr(plugin, "current_platform", Cuda(90))
    with monkeypatch.context() as changed:
        changed.setattr(_C, "archs", "")
        assert not takes()
    monkeypatch.setenv(plugin.SWITCH, "0")
    assert not takes()
    monkeypatch.setenv(plugin.SWITCH, "1")
    for capability in (80, 90, 120):
        monkeypatch.setattr(plugin, "current_platform", Cuda(capability))
        assert takes() and takes("W4A4")
    monkeypatch.setattr(plugin, "current_platform", Cuda(75))
    with pytest.raises(
        nvfp4.Error, match=rf"^{plugin.SWITCH}: is 1 on .*7.*5.*capability 80 and more; {PREFIX} cannot"
    ):
        takes()
    monkeypatch.setattr(plugin, "current_platform", Cuda(90))
    monkeypatch.setattr(_C, "archs", "")
    with pytest.raises(nvfp4.Error, match="is built for the CPU alone"):
        takes()
    monkeypatch.setenv(plugin.SWITCH, "yes")
    with pytest.raises(nvfp4.Error, match=f"^{plugin.SWITCH}: is 'yes'; must be 0 or 1$"):
        takes()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("is_lora_enabled", True, "has no LoRA adapters"),
        ("hidden_dim", 72, "hidden size is 72"),
        ("num_local_experts", 1025, "has 1025 experts"),
        ("swiglu_beta", 1.0, None),
    ],
)
def test_what_is_missing_is_vllms_on_cuda(
    name: str, value: Any, message: str | None, parallel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has asked for ours there, so that a layer runs that needs more: with a message, and not as an error."""
    messages: list[str] = []
    monkeypatch.setattr(plugin.logger, "info_once", lambda text, *given: messages.append(text % given))
    layer = layer_of(configuration("modelopt", "W4A16"))
    monkeypatch.setattr(_C, "archs", "sm_80")
    monkeypatch.setattr(plugin, "current_platform", Cuda(90))
    messages.clear()
    monkeypatch.setattr(layer.moe_config, name, value)
    assert plugin.takes(layer, PREFIX, "W4A16", 80) == (message is None)
    assert len(messages) == (message is not None)
    assert all(text.startswith(f"vLLM runs NVFP4 experts: {PREFIX}: ") and message in text for text in messages)
    monkeypatch.setenv(plugin.SWITCH, "1")
    assert plugin.takes(layer, PREFIX, "W4A16", 80)


@pytest.mark.parametrize("format_name", ["compressed-tensors", "modelopt", "mixed"])
def test_off_leaves_experts_to_vllm(format_name: str, parallel: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugin.SWITCH, "0")
    with pytest.raises(NotImplementedError, match="No NvFp4 MoE backend supports"):
        layer_of(configuration(format_name, "W4A16"))


def test_another_backend_is_vllms(tmp_path: Path) -> None:
    config = VllmConfig(kernel_config=KernelConfig(moe_backend="marlin"))
    with parallel_state(tmp_path, config), pytest.raises((ValueError, NotImplementedError)):
        layer_of(configuration("modelopt", "W4A16"))


def test_ignored_experts_are_vllms(parallel: None) -> None:
    config = configuration("modelopt", "W4A16")
    config.exclude_modules = ["*experts*"]
    assert not isinstance(layer_of(config).quant_method, plugin._Experts)
    config = configuration("compressed-tensors", "W4A16")
    config.ignore = ["re:.*experts.*"]
    assert not isinstance(layer_of(config).quant_method, plugin._Experts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"activation": "gelu"},
            "has the activation gelu with limit None, alpha None and beta None, which nvfp4.Experts",
        ),
        ({"activation": "gelu_tanh", "swiglu_limit": 2.0}, "has the activation gelu_tanh with limit 2.0"),
        ({"activation": "swiglustep"}, "has the activation swiglustep"),
        ({"activation": "swigluoai", "swiglu_limit": 2.0}, "has the activation swigluoai with limit 2.0"),
        (
            {"activation": "swigluoai_uninterleave", "swiglu_limit": 2.0, "swiglu_alpha": 1.7},
            "has the activation swigluoai_uninterleave with limit 2.0, alpha 1.7 and beta None",
        ),
        ({"intermediate_size": 40}, "the intermediate size on each device is 40; must be a multiple of 16"),
        ({"hidden_size": 72}, "the hidden size is 72; must be a multiple of 16"),
        ({"num_experts": 1025}, "has 1025 experts on each device; must have 1 to 1024"),
    ],
)
def test_what_is_not_supported_is_named(options: dict[str, Any], message: str, parallel: None) -> None:
    with pytest.raises(nvfp4.Error, match=f"^{PREFIX}: {message}"):
        layer_of(configuration("modelopt", "W4A16"), **options)


@pytest.mark.parametrize(
    ("place", "name", "value", "message"),
    [
        ("moe", "is_lora_enabled", True, "LoRA adapters"),
        ("parallel", "enable_eplb", True, r"expert load balancing \(EPLB\)"),
        ("parallel", "dp_size", 2, "data parallelism"),
        ("parallel", "pcp_size", 2, "prefill context parallelism"),
        ("parallel", "sp_size", 2, "sequence parallelism"),
    ],
)
def test_ways_to_run_that_are_not_supported(
    place: str, name: str, value: Any, message: str, parallel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = layer_of(configuration("modelopt", "W4A16"))
    changed = layer.moe_config if place == "moe" else layer.moe_config.moe_parallel_config
    monkeypatch.setattr(changed, name, value)
    with pytest.raises(nvfp4.Error, match=f"^{PREFIX}: nvfp4.Experts has no {message} in vLLM; NVFP4_VLLM_MOE=0"):
        plugin.reject_unsupported(layer, PREFIX)


@pytest.mark.parametrize(
    ("absent", "message"),
    [
        ((4, "up", "weight_scale"), r"\.4\.w13\.weight_scale: is nan at row 0, column 0 \(576 of 576 are such\)"),
        ((4, "down", "weight_scale"), r"\.4\.w2\.weight_scale: is nan at row 0, column 0"),
        ((2, "up", "weight_scale_2"), r"\.2\.w13\.weight_scale_2: is nan; must be positive and finite"),
        ((6, "down", "bias"), r"\.w2_bias: is NaN; the checkpoint lacks it"),
        ((6, "gate", "bias"), r"\.w13_bias: is NaN; the checkpoint lacks it"),
    ],
)
def test_what_a_checkpoint_lacks_is_named(absent: tuple[int, str, str], message: str, parallel: None) -> None:
    """vLLM loads what there is, and says nothing of the rest."""
    tensors = [
        (f"{e}.{name}_proj.{key}", t)
        for (e, name), packed in random_layers(bias=True).items()
        for key, t in modelopt.write(packed).items()
        if (e, name, key) != absent
    ]
    layer = layer_of(configuration("modelopt", "W4A16"), has_bias=True)
    list(layer.load_weights(tensors))
    with pytest.raises(nvfp4.Error, match=f"^{PREFIX}{message}"):
        layer.quant_method.process_weights_after_loading(layer)
