"""Quantize a causal language model of transformers into an NVFP4 checkpoint.

IN is a folder that transformers loads, with its tokenizer if there is a text. OUT loads by nvfp4.transformers,
nvfp4.load and vLLM. The other files of IN, such as the tokenizer's, are copied. OUT appears when it is whole.

With --text the model runs on the first tokens of FILE, in windows. Input scales come from that, and --weights gptq
chooses the weights by it. Take a text like those that the model is for.

OUT.partial keeps each layer that is finished. After an interruption the same command goes on with the others, and OUT
has the same bytes as without one, on the same machine. Options that change no weight (--activations, --block-scale,
--format) may be others then.

Exit status: 0 done, 2 the model cannot be read or quantized: OUT is not written.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvfp4 import __version__
from nvfp4._text import unwatched
from nvfp4.cli import machine, show
from nvfp4.cli.convert import FORMATS, add_output_arguments

if TYPE_CHECKING:
    import torch

    from nvfp4.quantizing.report import QuantizeReport
    from nvfp4.quantizing.stored import StoredResults

PRESETS = ("mlp_only", "experts_only")  # of quantize_model, which needs torch
TOKENS, WINDOW = 4096, 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="IN", help="a model's folder")
    parser.add_argument("path", metavar="OUT", help="a folder that does not exist")
    parser.add_argument(
        "--weights",
        choices=["round", "search", "gptq"],
        help="how codes and block scales of weights are chosen (default: gptq with --text, else search)",
    )
    parser.add_argument("--text", metavar="FILE", help="a text in UTF-8 to calibrate on; gptq needs it")
    parser.add_argument("--tokens", type=int, metavar="N", help=f"take N tokens of the text (default: {TOKENS})")
    parser.add_argument("--window", type=int, metavar="N", help=f"run N tokens at a time (default: {WINDOW})")
    parser.add_argument(
        "--activations", choices=["nvfp4", "none"], default="nvfp4", help="W4A4 or W4A16 (default: nvfp4, W4A4)"
    )
    parser.add_argument(
        "--ignore",
        nargs="*",
        default=["lm_head"],
        metavar="PATTERN",
        help="layers to leave dense, as of nvfp4.quantize_model: any number of patterns, or mlp_only or experts_only "
        "(default: lm_head)",
    )
    parser.add_argument(
        "--block-scale",
        choices=["amax6", "four_over_six"],
        help="how block scales of inputs are chosen, and of weights with --weights round (default: amax6)",
    )
    parser.add_argument(
        "--format", choices=FORMATS, help="(default: modelopt, or compressed-tensors if an input scale is dynamic)"
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: a GPU that torch can use, else cpu)")
    parser.add_argument(
        "--dtype", choices=["auto", "bfloat16", "float16", "float32"], default="auto", help="(default: the model's)"
    )
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> int:
    torch = machine.need_torch()
    try:
        import transformers

        from nvfp4.hosts.transformers import quantizers  # noqa: F401, whose version of transformers it checks
    except ImportError as error:
        raise show.CommandError(
            f"transformers is needed and could not be imported ({error}); pip install 'transformers>=5.17,<5.25'"
        ) from None
    from nvfp4.checkpoints.convert import other_files
    from nvfp4.checkpoints.write import shard_bytes
    from nvfp4.quantizing.stored import stored_results

    source, path = Path(args.source), Path(args.path)
    check(args, source, path)
    device, limit, files = device_of(args.device), shard_bytes(args.max_shard_size), other_files(source)
    weights = args.weights or ("search" if args.text is None else "gptq")
    ignore = args.ignore[0] if len(args.ignore) == 1 and args.ignore[0] in PRESETS else args.ignore
    windows = [] if args.text is None else windows_of(source, args.text, args.tokens or TOKENS, args.window or WINDOW)
    partial = path.with_name(path.name + ".partial")
    depends = {
        "IN": {f.name: [f.stat().st_size, f.stat().st_mtime_ns] for f in sorted(source.iterdir()) if f.is_file()},
        "--weights": weights,
        "--text with --tokens and --window": hashlib.sha256(json.dumps(windows).encode()).hexdigest(),
        "--ignore": ignore,
        "--device": str(device),
        "--dtype": args.dtype,
        "number of CPU threads": torch.get_num_threads() if device.type == "cpu" else None,
        "version of nvfp4": __version__,
        "version of torch": torch.__version__,
        "version of transformers": transformers.__version__,
    }
    finished = unwatched if sys.stderr.isatty() else lambda name: say(f"finished {name}")
    with stored_results(partial, depends, finished) as results:
        say(f"{partial} keeps finished layers, {len(results)} now")
        model = load(source, args.dtype, device)
        report = quantize(model, windows, args, weights, ignore, results)
        say(f"writing {path}")
        write(model, partial / "checkpoint", source, files, limit)
        os.rename(partial / "checkpoint", path)
    format = model.hf_quantizer.quantization_config.format.NAME
    size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    if args.json:
        print(json.dumps(dataclasses.asdict(report) | {"format": format, "bytes": size}, indent=1))
        return 0
    for line in str(report).splitlines():
        print(show.printable(line))
    print(show.printable(f"{path}: {format}, {len(report.layers)} NVFP4 layers, {show.si(size, 'B')} of tensors"))
    return 0


def say(text: str) -> None:
    print(show.printable(text), file=sys.stderr, flush=True)


# ---- what the command is given ----


def check(args: argparse.Namespace, source: Path, path: Path) -> None:
    """Rejects arguments that cannot be used, or would be ignored."""
    from nvfp4.checkpoints.files import read_json

    if not source.is_dir():
        raise show.CommandError(f"IN: {source} is no folder; must be a model's folder")
    if "quantization_config" in read_json(source / "config.json", source):
        raise show.CommandError(f"IN: {source} is quantized already; must be a dense model")
    if os.path.lexists(path):
        raise show.CommandError(f"OUT: {path} exists; must be a new folder")
    dynamic = args.text is None and args.activations == "nvfp4"
    if args.text is None:
        if args.weights == "gptq":
            raise show.CommandError("--text: is missing; --weights gptq needs a text")
        for name in ("tokens", "window"):
            if getattr(args, name) is not None:
                raise show.CommandError(f"--{name}: is given without --text; must be given with it")
    for name in ("tokens", "window"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise show.CommandError(f"--{name}: is {getattr(args, name)}; must be positive")
    if args.activations == "none" and args.weights == "round" and args.text is not None:
        raise show.CommandError("--text: is given with --weights round and --activations none, which use no text")
    if args.activations == "none" and args.weights != "round" and args.block_scale is not None:
        raise show.CommandError(
            "--block-scale: is given with --activations none; must be given with inputs to quantize, or --weights round"
        )
    if dynamic and args.format == "modelopt":
        raise show.CommandError(
            "--format: is modelopt, which cannot store W4A4 without input scales; give --text, or "
            "--format compressed-tensors"
        )


def device_of(name: str | None) -> torch.device:
    torch = machine.need_torch()
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise show.CommandError(f"--device: is {name}; must be cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise show.CommandError(f"--device: is {name}; torch can use {torch.cuda.device_count()} GPUs")
    return device


def windows_of(source: Path, text: str, tokens: int, window: int) -> list[list[int]]:
    """The first tokens of a text, split into windows."""
    from transformers import AutoTokenizer

    try:
        content = Path(text).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise show.CommandError(f"--text: {text} is no UTF-8: {error}") from None
    tokenizer = loaded(AutoTokenizer, source)
    ids = tokenizer(content, verbose=False)["input_ids"]
    if len(ids) < tokens:
        raise show.CommandError(f"--tokens: is {tokens}; {text} has {len(ids)}")
    return [ids[begin : min(begin + window, tokens)] for begin in range(0, tokens, window)]


def loaded(kind: Any, source: Path, **more: Any) -> Any:
    """An object of transformers from its folder, without a network and without code of the folder."""
    from safetensors import SafetensorError

    from nvfp4.checkpoints.files import READER_ERRORS

    try:
        return kind.from_pretrained(source, local_files_only=True, trust_remote_code=False, **more)
    except (ImportError, SafetensorError, *READER_ERRORS) as error:
        raise show.CommandError(show.printable(f"IN: {kind.__name__} cannot load {source}: {error}")) from None


# ---- the model ----


def load(source: Path, dtype: str, device: torch.device) -> Any:
    """The dense model."""
    from transformers import AutoModelForCausalLM

    torch = machine.need_torch()
    given = dtype if dtype == "auto" else getattr(torch, dtype)
    model, found = loaded(AutoModelForCausalLM, source, dtype=given, output_loading_info=True)
    for name in sorted(found["missing_keys"]):
        raise show.CommandError(show.printable(f"IN: {source} has no tensor {name}, which the model needs"))
    return model.eval().to(device)


def quantize(
    model: Any,
    windows: Sequence[Sequence[int]],
    args: argparse.Namespace,
    weights: str,
    ignore: Sequence[str] | str,
    results: StoredResults,
) -> QuantizeReport:
    """Quantizes the model in place."""
    from nvfp4.hosts.transformers.quantizers import attach
    from nvfp4.quantizing import quantize_model

    torch = machine.need_torch()
    check_windows(model, windows)

    def calibrate(model: Any) -> None:
        for window in windows:
            model(torch.tensor([window], device=model.device), use_cache=False)

    options = quantize_model.Options(
        None if args.activations == "none" else args.activations,
        calibrate if windows else None,
        block_scale=args.block_scale or "amax6",
        weights=weights,
    )
    report = quantize_model.quantize(model, ignore, options, results)
    if args.format is not None:
        model.hf_quantizer = None
        attach(model, args.format)
    return report


def check_windows(model: Any, windows: Sequence[Sequence[int]]) -> None:
    """Rejects windows that the model cannot read."""
    most = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    longest = max(map(len, windows), default=0)
    if most is not None and longest > most:
        raise show.CommandError(f"--window: is {longest}; the model reads at most {most} tokens")
    rows = len(model.get_input_embeddings().weight)
    largest = max(map(max, windows), default=0)
    if largest >= rows:
        raise show.CommandError(f"IN: its tokenizer gives the token {largest}; its embedding has {rows} rows")


def write(model: Any, folder: Path, source: Path, files: Sequence[Path], limit: int) -> None:
    """Writes the checkpoint and copies the model's other files."""
    from nvfp4.checkpoints.output import copy

    shutil.rmtree(folder, ignore_errors=True)
    if (source / "generation_config.json").exists():  # is copied: save_pretrained rejects some that it loads
        model.generation_config = type(model.generation_config)()
    model.save_pretrained(folder, max_shard_size=limit)
    for file in folder.glob("*.safetensors"):
        file.chmod((folder / "config.json").stat().st_mode)  # safetensors 0.8 gives its files 0600
    for file in files:
        copy(file, folder)
