"""Quantizes, calls, saves and loads a tiny model of each modelling file of transformers.

    python tests/hosts/sweep_transformers.py --output FILE [--only bert,llama] [--all] [--processes 2] [--seconds 90]

The table is docs/proof/transformers_classes.csv. A configuration is the default one with each size replaced by rule
(`RULES`), also in its parts. What cannot be built or called by these rules is listed with the reason. Each class runs
in a process of its own, with limits of time and memory.

Verdicts:
    right: the results after saving and loading have equal bits, and those of dense weights with the same values
        (dequantize_model) are equal within BOUND. dequantize_model takes no experts; `compared` says what was done.
    right, dense: also, and layers whose weight a class reads are dense and named.
    nothing to quantize: the model has no layer that NVFP4 can take.
    nvfp4.Error: quantize_model, save_pretrained or from_pretrained raised it.
    FAILS: another exception, or another result.
    not built, not called: the dense model already fails.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import inspect
import multiprocessing
import re
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.models.auto import configuration_auto, modeling_auto

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import recorded  # noqa: E402

import nvfp4
import nvfp4.transformers

BOUND = 1e-4  # relative; fp32 sums of at most some hundred products in a few layers
MAX_PARAMETERS, MAX_BYTES = 40_000_000, 24 << 30
COLUMNS = ("model type", "class", "verdict", "NVFP4 layers", "dense layers", "compared", "detail")
PREFERRED = ("ForConditionalGeneration", "ForCausalLM", "ForMaskedLM", "ForPreTraining", "LMHeadModel", "Model")

# Sizes by the names of their fields, the first that matches.
RULES: list[tuple[str, int]] = [
    (r"vocab_size(_.*)?|.*_vocab_size", 128),
    (r"(num_)?(local_|routed_|shared_)?experts|n_routed_experts|moe_num_experts|num_local_experts", 4),
    (r"num_experts_per_tok(en)?|moe_top_?k|num_selected_experts|moe_k|top_k_experts", 2),
    (r"n_shared_experts|num_shared_experts|moe_num_shared_experts", 1),
    (r"n_group|topk_group|num_expert_groups?", 1),
    (r"(num_|n_)?(.*_)?(kv|key_value)_heads(_.*)?", 2),
    (r"(.*_)?(num_|n_)?(.*_)?(attention_)?heads?|.*_attention_heads", 4),
    (r"(.*_)?(num_|n_)(hidden_|encoder_|decoder_)?(layers?|blocks)|(.*_)?(encoder|decoder|hidden|attention)_layers", 2),
    (r"(qk_|v_|.*_)?head_dim|d_kv|attention_head_size|d_head", 16),
    (r"coordinate_size", 8),
    (r"window_size", 4),
    (r"mamba_(n_heads|num_heads)", 8),
    (r"rotary_dim|mamba_d_head|mamba_head_dim|mamba_d_state", 16),
    (r"(q|kv)_lora_rank|shape_size|time_step_rank|state_size", 16),
    (r"(.*_)?(intermediate_size|ffn_dim|ff_dim|d_ff|d_inner|mlp_dim|n_inner|inner_dim|ffn_hidden_size)(_.*)?", 96),
    (r"(.*_)?(hidden_size|hidden_dim|d_model|n_embd|embed_dim|embedding_size|embedding_dim|projection_dim|emb_dim"
     r"|output_dim|proj_dim|feature_size|width|dim|channels_out|out_hidden_size)(_.*)?", 64),
    (r"image_size|input_size|img_size|tile_size", 32),
    (r"(max_position_embeddings|n_positions|max_source_positions|max_target_positions|n_ctx|max_seq_len.*)", 128),
]  # fmt: skip
LISTS = {r"depths|num_blocks|layer_depths|num_layers|num_encoder_blocks": 1, r"num_(attention_)?heads": 2}
WIDTHS = r"(.*_)?(hidden_sizes|embed_dims?|dims|channels|neck_hidden_sizes|out_channels|encoder_hidden_sizes)"
DERIVED = (
    r"layer_types|mlp_layer_types|attention_types|attention_layers|layers_block_type|.*_layer_pattern|sparse_layers"
)
TOKEN = re.compile(r".*_token_(id|index)|image_token|(bos|eos|pad|sep|cls|mask|unk)_id")


def small(name: str, value: Any, used: list[int]) -> Any:
    """A field's value in a tiny configuration."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if TOKEN.fullmatch(name) and isinstance(value, int):
        used.append(value)
        return value if 0 <= value < 20 else 20 + len(used)
    if isinstance(value, int):
        size = next((size for rule, size in RULES if re.fullmatch(rule, name)), value)
        return min(value, size) if value > 0 else value
    if isinstance(value, (list, tuple)) and value and all(isinstance(x, int) and x is not True for x in value):
        for rule, size in LISTS.items():
            if re.fullmatch(rule, name):
                return type(value)(min(x, size) for x in value)
        if re.fullmatch(WIDTHS, name):
            return type(value)(x if x <= 3 else 32 * (1 + i) for i, x in enumerate(value))
    return value


def fields(config: Any, used: list[int]) -> dict[str, Any]:
    """The arguments of a tiny configuration, from one with defaults."""
    own = inspect.signature(type(config).__init__).parameters.keys() | vars(config).keys()
    base = vars(transformers.PretrainedConfig()).keys() - {"pad_token_id", "bos_token_id", "eos_token_id"}
    result: dict[str, Any] = {}
    for name, value in vars(config).items():
        if name.startswith("_") or name not in own or name in base or re.fullmatch(DERIVED, name):
            continue
        if isinstance(value, transformers.PretrainedConfig):
            result[name] = {**fields(value, used), "model_type": value.model_type}
        elif isinstance(value, dict) and "rope_theta" in value:
            half = int(8 * value.get("partial_rotary_factor", 1))  # of a head's 16 dimensions
            part = 3 * half // 8
            result[name] = value | {"mrope_section": [half - 2 * part, part, part]}
        else:
            result[name] = small(name, value, used)
    if "kv_lora_rank" in result:
        result["num_key_value_heads"] = result.get("num_attention_heads")
    if "rope_parameters" in own and not result.get("rope_parameters"):
        result["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    if own & {"full_attention_interval", "linear_num_value_heads"}:
        result["num_hidden_layers"] = 4  # of which one has attention
    return result


def tiny(kind: Any) -> Any:
    return kind(**fields(kind(), []))


def dummies(model: Any) -> dict[str, Tensor]:
    """Inputs by their names."""
    config, draw = model.config, torch.Generator().manual_seed(1)
    parts = [config, *(part for part in vars(config).values() if isinstance(part, transformers.PretrainedConfig))]

    def first(*names: str, otherwise: int) -> Any:
        return next((x for n in names for c in parts if isinstance(x := getattr(c, n, None), int)), otherwise)

    size = first("image_size", "img_size", "input_size", otherwise=32)
    image = torch.randn(2, first("num_channels", "in_channels", "in_chans", otherwise=3), size, size, generator=draw)
    ids = torch.randint(3, 20, (2, 12), generator=draw)
    bins = first("num_mel_bins", "feature_size", otherwise=80)
    return {
        "input_ids": ids,
        "decoder_input_ids": ids,
        "qformer_input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": image,
        "pixel_values_videos": image.unsqueeze(1).repeat(1, first("num_frames", otherwise=4), 1, 1, 1),
        "input_features": torch.randn(2, bins, 2 * first("max_source_positions", otherwise=32), generator=draw),
        "input_values": torch.randn(2, 4000, generator=draw),
        "past_values": torch.randn(2, first("context_length", otherwise=32), generator=draw),
        "bbox": torch.zeros(2, 12, 4, dtype=torch.int64),
    }


def calls(model: Any) -> Iterator[dict[str, Any]]:
    """Inputs to try in turn: the main one, what has no default too, all that are known; audio in other shapes."""
    names, known = inspect.signature(model.forward).parameters, dummies(model)
    more = {"use_cache": False} if "use_cache" in names else {}
    main = [model.main_input_name, *["decoder_input_ids"] * bool(getattr(model.config, "is_encoder_decoder", False))]
    required = [name for name, p in names.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    both = [*main, "input_ids", "pixel_values", "attention_mask"]
    tried: list[set[str]] = []
    for wanted in (main, [*main, *required], both, [*both, "bbox"], [*both, "qformer_input_ids"]):
        made = {name: known[name] for name in wanted if name in names and name in known}
        if made and made.keys() not in tried:
            tried.append({*made})
            yield made | more
    for name, x in (("input_values", known["input_values"][:, None]), ("input_features", known["input_features"].mT)):
        if name in names:
            yield {name: x} | ({"decoder_input_ids": known["decoder_input_ids"]} if len(main) > 1 else {}) | more


def called(model: Any) -> tuple[dict[str, Any], list[Tensor]]:
    """The inputs that the model takes, and its results. The first error, where it takes none."""
    errors: list[Exception] = []
    for inputs in calls(model):
        try:
            return inputs, results(model, inputs)
        except Exception as error:
            errors.append(error)
    raise (
        errors[0] if errors else ValueError(f"no rule for inputs {[*inspect.signature(model.forward).parameters][:4]}")
    )


def tensors(x: Any) -> Iterator[Tensor]:
    if isinstance(x, Tensor) and x.is_floating_point():
        yield x
    elif isinstance(x, dict):
        for value in x.values():
            yield from tensors(value)
    elif isinstance(x, (list, tuple)):
        for value in x:
            yield from tensors(value)


def results(model: Any, inputs: dict[str, Any]) -> list[Tensor]:
    torch.manual_seed(2)
    with torch.no_grad():
        found = [t.detach().clone() for t in tensors(model(**copy.deepcopy(inputs)))]
    if not found:
        raise ValueError("the model returns no floating-point tensor")
    return found


def distance(found: list[Tensor], wanted: list[Tensor]) -> float:
    """The largest relative error of a tensor in the Frobenius norm; infinity for other shapes, or NaN in one alone."""
    worst = 0.0 if len(found) == len(wanted) else float("inf")
    for x, y in zip(found, wanted):
        if x.shape != y.shape or not torch.equal(x.isfinite(), y.isfinite()):
            return float("inf")
        x, y = (t.double().nan_to_num(0, 0, 0) for t in (x, y))
        worst = max(worst, float((x - y).norm() / y.norm().clamp(min=1e-30)))
    return worst


def examine(kind: Any, config_kind: Any, row: dict[str, Any]) -> None:
    """Fills a row's verdict; an exception is of the step that the verdict names."""
    row["verdict"] = "not built"
    config = tiny(config_kind)
    torch.manual_seed(0)
    with torch.device("meta"):
        count = sum(p.numel() for p in kind(copy.deepcopy(config)).parameters())
    if count > MAX_PARAMETERS:
        raise ValueError(f"{count} parameters by these rules")
    model = kind(config).eval()
    row["verdict"] = "not called"
    inputs, plain = called(model)
    row["verdict"] = "FAILS"
    report = nvfp4.quantize_model(model, activations=None)
    experts = any(isinstance(module, nvfp4.Experts) for module in model.modules())
    row |= {"NVFP4 layers": len(report.layers), "dense layers": len(report.skipped)}
    if not row["NVFP4 layers"]:
        row |= {"verdict": "nothing to quantize", "detail": next(iter(report.skipped.values()), "")}
        return
    found = results(model, inputs)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = kind.from_pretrained(folder, dtype=torch.float32).eval()
        again = results(copy.deepcopy(loaded), inputs)  # torch's kernels round otherwise in a file that is not aligned
    if not all(x.shape == y.shape and torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in zip(found, again)):
        raise ValueError(f"loaded again: relative error {distance(again, found):.0e}")
    row["compared"] = "saved"
    if not experts:
        nvfp4.dequantize_model(model)
        off = distance(found, results(model, inputs))
        if off > BOUND:
            raise ValueError(f"dense weights: relative error {off:.0e}; {distance(found, plain):.0e} from unquantized")
        row["compared"] = "saved and dense"
    read = [name for name, why in report.skipped.items() if "reads its weight itself" in why]
    row |= {"verdict": "right, dense" if read else "right", "detail": " ".join(read[:3])}


def run(kind: Any, config_kind: Any, model_type: str, pipe: Connection) -> None:
    """The process of a class."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    warnings.simplefilter("ignore")
    row: dict[str, Any] = {"model type": model_type, "class": kind.__name__}
    try:
        examine(kind, config_kind, row)
    except nvfp4.Error as error:
        row |= {"verdict": "nvfp4.Error", "detail": short(error)}
    except Exception as error:
        row["detail"] = f"{type(error).__name__}: {short(error)}"
    pipe.send(row)


def short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return re.sub(r"/\S*/", "", text)[:160]


def classes(every: bool) -> list[tuple[str, Any, Any]]:
    """Model type, class and configuration: one class of each modelling file, or all that an auto class can make."""
    by_type: dict[str, list[str]] = {}
    for name, mapping in sorted(vars(modeling_auto).items()):
        if name.endswith("_MAPPING_NAMES") and name != "CONFIG_MAPPING_NAMES":
            for model_type, names in mapping.items():
                by_type.setdefault(model_type, []).extend([names] if isinstance(names, str) else names)
    made, files = [], set()
    for model_type, names in sorted(by_type.items()):
        config_kind = getattr(transformers, configuration_auto.CONFIG_MAPPING_NAMES.get(model_type, ""), None)
        rank = {name: [name.endswith(p) for p in (*PREFERRED, "")].index(True) for name in dict.fromkeys(names)}
        for name in sorted(rank, key=rank.__getitem__):
            kind = getattr(transformers, name, None)
            if kind is None or config_kind is None:
                continue
            if every or kind.__module__ not in files or model_type.endswith("_model"):
                made.append((model_type, kind, config_kind))
                files.add(kind.__module__)
            if not every:
                break
    return made


def sweep(chosen: list[tuple[str, Any, Any]], processes: int, seconds: float) -> Iterator[dict[str, Any]]:
    context, waiting, running = multiprocessing.get_context("fork"), list(chosen), []
    while waiting or running:
        while waiting and len(running) < processes:
            model_type, kind, config_kind = waiting.pop(0)
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=run, args=(kind, config_kind, model_type, theirs))
            process.start()
            theirs.close()
            running.append((process, ours, time.monotonic(), model_type, kind))
        for entry in list(running):
            process, ours, start, model_type, kind = entry
            late = time.monotonic() - start > seconds
            if not (ours.poll() or late or not process.is_alive()):
                continue
            row = {"model type": model_type, "class": kind.__name__, "verdict": "FAILS", "detail": "killed"}
            try:
                row = ours.recv() if ours.poll() else {**row, "detail": f"took {seconds} s"} if late else row
            except EOFError:
                row["detail"] = "the process died"
            process.kill()
            process.join()
            running.remove(entry)
            yield row
        time.sleep(0.02)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", type=lambda text: text.split(","), help="model types or classes")
    parser.add_argument("--all", action="store_true", help="every class, not one of each modelling file")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=90)
    options = parser.parse_args()
    torch.set_num_threads(1)  # a process that forks has no threads
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    importlib.import_module("nvfp4.hosts.transformers.services")
    chosen = classes(options.all)
    if options.only:
        chosen = [entry for entry in chosen if entry[0] in options.only or entry[1].__name__ in options.only]
    rows = []
    for row in sweep(chosen, options.processes, options.seconds):
        rows.append(row)
        print(*(row.get(name, "") for name in COLUMNS), sep=" | ", flush=True)
    rows.sort(key=lambda row: (row["model type"], row["class"]))
    recorded.write_rows(options.output, COLUMNS, rows, "none: a CPU")
    return int(any(row["verdict"] == "FAILS" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
