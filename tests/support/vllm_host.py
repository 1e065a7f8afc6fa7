"""vLLM for tests: checkpoints, an engine, its tokens beside transformers', and what surrounds its layers."""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Read when vLLM is imported: one process, 1 GiB for the KV cache, and latent attention as attention of many heads, for
# vLLM's own kernel on a CPU has other sizes than small models.
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
os.environ |= {"VLLM_MLA_DISABLE": "1"}

import pytest
import torch
from torch import Tensor

pytest.importorskip("vllm")
if not importlib.metadata.entry_points(group="vllm.general_plugins", name="nvfp4"):
    pytest.skip("nvfp4 is not installed, so that vLLM finds no plugin", allow_module_level=True)

import transformers  # noqa: E402
import vllm  # noqa: E402
from vllm.config import VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.platforms import PlatformEnum  # noqa: E402
from vllm.platforms.interface import DeviceCapability  # noqa: E402
from vllm.plugins import load_general_plugins  # noqa: E402

import nvfp4  # noqa: E402

load_general_plugins()  # the entry point is what registers the plug-in, whatever loads it first

TOKENS = 64
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 500,  # vLLM pads it to 512
    "max_position_embeddings": 128,
    "initializer_range": 0.1,  # 0.02 gives tokens of nearly equal probability
    "eos_token_id": None,  # Phi3's and its padding are beyond the vocabulary
    "pad_token_id": 0,
    "dtype": "bfloat16",
}
FOUR = {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group", "symmetric": True}


@contextlib.contextmanager
def engines() -> Iterator[Callable[..., Any]]:
    """Makes a vllm.LLM; the last one is taken down, as vLLM has one in a process."""
    made: list[Any] = []

    def make(folder: Path, dtype: str, **more: Any) -> Any:
        options = {"skip_tokenizer_init": True, "enforce_eager": True, "max_model_len": 128, "max_num_seqs": 4}
        made.append(vllm.LLM(str(folder), dtype=dtype, **(options | more)))
        return made[0]

    try:
        yield make
    finally:
        if made:
            made.pop().llm_engine.engine_core.shutdown()
        vllm.distributed.cleanup_dist_env_and_memory()
        gc.collect()


@contextlib.contextmanager
def parallel_state(folder: Path, config: VllmConfig | None = None) -> Iterator[None]:
    """The surroundings that vLLM's layers need."""
    with set_current_vllm_config(VllmConfig() if config is None else config):
        vllm.distributed.init_distributed_environment(1, 0, f"file://{folder}/store", 0, backend="gloo")
        vllm.distributed.initialize_model_parallel(1, 1)
        try:
            yield
        finally:
            vllm.distributed.cleanup_dist_env_and_memory()


def dense_checkpoint(
    folder: Path, format_name: str, activations: str | None, architecture: str, head: bool = False, **sizes: Any
) -> Path:
    """A random model as a checkpoint. The parts of a fused layer have other weight scales, and k other input scales,
    unless the architecture (Phi3) has them as one."""
    torch.manual_seed(0)
    more = SIZES | sizes | {"architectures": [f"{architecture}ForCausalLM"]}
    if architecture in ("Qwen2", "Phi3"):  # which compute it
        more.pop("head_dim", None)
    config = getattr(transformers, f"{architecture}Config")(**more)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.05)
    ids = torch.tensor(prompts(config.vocab_size - 1)[2:])
    calibrate = None if activations is None else (lambda model: model(ids))
    nvfp4.quantize_model(model, ignore=() if head else ("lm_head",), activations=activations, calibrate=calibrate)
    if activations is not None and architecture != "Phi3":
        for layer in model.model.layers:
            layer.self_attn.k_proj.input_global_scale *= 1.5
    nvfp4.save(model.bfloat16(), folder, format_name)
    return folder


def prompts(vocabulary: int) -> list[list[int]]:
    return [(torch.arange(length) * factor % vocabulary).tolist() for length, factor in ((8, 37), (13, 91), (21, 5))]


def generate(llm: Any, given: list[list[int]]) -> list[Any]:
    how = vllm.SamplingParams(
        temperature=0, max_tokens=TOKENS, min_tokens=TOKENS, ignore_eos=True, detokenize=False, logprobs=2
    )
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in given], how, use_tqdm=False)
    return [output.outputs[0] for output in outputs]


def reference(model: Any, prompt: list[int]) -> list[int]:
    """transformers' tokens, without a token that ends."""
    ids = torch.tensor([prompt], device=model.device)
    more = {"min_new_tokens": TOKENS, "max_new_tokens": TOKENS, "eos_token_id": None, "pad_token_id": 0}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **more)
    return out[0, len(prompt) :].tolist()


def log_probabilities(model: Any, prompt: list[int], tokens: list[int], chunk: int | None = None) -> Tensor:
    """[tokens, vocabulary], of each given token's place, by transformers: at once, or in chunks of so many tokens."""
    ids = torch.tensor([prompt + tokens], device=model.device)
    cache = None if chunk is None else transformers.DynamicCache(config=model.config)
    more = {} if chunk is None else {"past_key_values": cache, "use_cache": True}
    with torch.no_grad():
        parts = [model(part, **more).logits[0] for part in ids.split(chunk or ids.shape[1], 1)]
    return torch.cat(parts)[len(prompt) - 1 : -1].float().log_softmax(-1).cpu()


def difference(outputs: Any, expected: Tensor) -> float:
    """The largest difference of a log probability that vLLM gives, of its token and of the likeliest ones, over the
    tokens of `expected`."""
    return max(
        abs(given.logprob - float(own[token]))
        for own, step in zip(expected, outputs.logprobs)
        for token, given in step.items()
    )


def check_tokens(llm: Any, model: Any, given: list[list[int]], bound: float = 1e-4) -> None:
    """64 greedy tokens of vLLM are transformers', with their log probabilities. In fp32 the hosts' other layers differ
    by some 1e-7, far less than two tokens' probabilities. A W4A4 layer turns that into a whole 4-bit step if a value
    lies at a rounding border: tokens after the first such position are not compared."""
    compared = 0
    for prompt, own in zip(given, generate(llm, given), strict=True):
        tokens = list(own.token_ids)
        assert len(tokens) == TOKENS and len(set(tokens)) > 4
        with at_borders(model) as unsure:
            expected = log_probabilities(model, prompt, tokens)
        sure = max(0, min(unsure, default=len(prompt) + TOKENS) - len(prompt) + 1)
        assert tokens[:sure] == reference(model, prompt)[:sure]
        assert difference(own, expected[:sure]) < bound if sure else True
        compared += min(sure, TOKENS)
    assert compared >= TOKENS // 2  # 1/6 of the tokens of three prompts


@contextlib.contextmanager
def at_borders(model: torch.nn.Module) -> Iterator[set[int]]:
    """The positions at which an input of a W4A4 linear layer has a value, or a block's scale, at a rounding border.
    They are there after a call of the model."""
    found: set[int] = set()

    def note(layer: nvfp4.Linear, given: tuple[Tensor, ...]) -> None:
        x = given[0].reshape(-1, layer.in_features)
        scale = x.abs().amax() / 2688 if layer.input_global_scale is None else layer.input_global_scale
        found.update((border_distance(x, scale) < 1e-6).nonzero().flatten().tolist())

    layers = [m for m in model.modules() if isinstance(m, nvfp4.Linear) and m.activations == "nvfp4"]
    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def border_distance(x: Tensor, global_scale: Tensor) -> Tensor:
    """The least distance of a row's values [T, K] from a border of e2m1, relative to the largest value of their block,
    or of a block's scale from a border of e4m3, relative to the scale."""
    blocks = x.float().unflatten(-1, (-1, 16))
    exact = (blocks.abs().amax(-1) / 6 / global_scale).clamp(max=448)  # as quantizers saturate
    scale = exact.to(torch.float8_e4m3fn)
    near = [(scale.view(torch.uint8).int() + step).clamp(0, 0x7E).to(torch.uint8) for step in (-1, 1)]
    middles = [(scale.float() + other.view(torch.float8_e4m3fn).float()) / 2 for other in near]
    distances = [((exact - middle).abs() / exact).where(middle != scale.float(), 1.0) for middle in middles]
    of_scale = torch.stack(distances).amin(0)
    values = (blocks.abs() / (scale.float() * global_scale).unsqueeze(-1)).unsqueeze(-1)
    borders = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], device=x.device)
    of_values = (values - borders).abs().amin((-2, -1)) / 6
    return torch.minimum(of_scale, of_values).nan_to_num(1.0).amin(-1)


def check_probabilities(llm: Any, model: Any, given: list[list[int]], bound: float) -> int:
    """Given vLLM's tokens, transformers' log probabilities are near, and its choice is the same wherever it is clear.
    Returns how often it is."""
    clear = 0
    for prompt, own in zip(given, generate(llm, given), strict=True):
        tokens = torch.tensor(own.token_ids)
        expected = log_probabilities(model, prompt, tokens.tolist())
        assert difference(own, expected) < bound
        best, second = expected.topk(2).values.T
        decided = best - second > 2 * bound
        assert torch.equal(expected.argmax(1)[decided], tokens[decided])
        clear += int(decided.sum())
    return clear


class Cuda:
    """vLLM's platform of a GPU, as far as a kernel is chosen by it. No GPU is needed: nothing is computed."""

    _enum = PlatformEnum.CUDA
    device_name = "cuda"

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def is_cpu(self) -> bool:
        return False

    def is_cuda(self) -> bool:
        return True

    def get_device_capability(self) -> Any:
        return DeviceCapability(self.capability // 10, self.capability % 10)
