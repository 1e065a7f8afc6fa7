"""Converts a checkpoint from ModelOpt to compressed-tensors and back, or from MXFP4, without decoding a weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nvfp4 import _C
from nvfp4.checkpoints import modelopt
from nvfp4.checkpoints.checkpoint import Checkpoint
from nvfp4.checkpoints.configuration import CONFIG, HF_QUANT, PARAMS, quantization_in, unwrapped
from nvfp4.checkpoints.files import check_file, file_errors, is_there, read_json
from nvfp4.checkpoints.load import load
from nvfp4.checkpoints.recipe import strings, table
from nvfp4.checkpoints.save import check_format
from nvfp4.checkpoints.shards import INDEX
from nvfp4.checkpoints.write import SaveReport, shard_bytes, write

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")
PATTERNS = "*?[]"


@file_errors("source")
def convert(
    source: str | Path, path: str | Path, format: str, max_shard_size: int | str = "5GB"
) -> tuple[Checkpoint, SaveReport]:
    """Writes a checkpoint in another format. Weights and block scales keep their bytes.

    A multiplier (ModelOpt) and a divisor (compressed-tensors) are each the rounded reciprocal of the other. ModelOpt
    gets the multipliers that nvfp4.load computes from the divisors. SaveReport.rounded lists the scales that
    compressed-tensors rounds.

    MXFP4 layers become NVFP4 layers with equal values, and those of gpt-oss ModelOpt's stacks of experts. The
    Checkpoint's `mxfp4` has their names.

    Args:
        source (str or Path): a checkpoint's folder.
            Its files that hold no weights, such as a tokenizer's, are copied. Hidden files and folders are not.
            Links that leave the folder are errors, except those of a Hub cache.
        path (str or Path): a folder that is new or empty.
        format (str): "modelopt" or "compressed-tensors".
        max_shard_size (int or str, optional): the size of the files, as in nvfp4.save. Default: "5GB".

    Returns:
        (Checkpoint, SaveReport): what was read, with the scales of a KV cache that are left out in `skipped`, and what
            was written.

    Raises:
        nvfp4.Error: an argument breaks a rule, the checkpoint is damaged or has that format already, or it has layers
            that are quantized in another way, which only its own configuration describes. Nothing is written then.
    """
    check_format(format)
    limit, folder = shard_bytes(max_shard_size), Path(source)
    if not folder.is_dir():
        raise _C.Error(f"source: {folder} is no folder; must be a checkpoint's folder")
    checkpoint = load(folder)
    if checkpoint.format == format and not checkpoint.mxfp4:
        raise _C.Error(f"format: {folder} has the format {format!r} already")
    for name, experts in checkpoint.experts.items():
        if name in checkpoint.mxfp4 and format == modelopt.NAME:
            continue
        raise _C.Error(f"{name}: cannot be converted: is a stack of {len(experts)} experts")
    if not checkpoint.layers and not checkpoint.experts:
        raise _C.Error(f"source: {folder} has no NVFP4 layer")
    others = {*checkpoint.kept.values()} | {name for name in checkpoint.skipped if name in checkpoint.tensors}
    for name, reason in checkpoint.skipped.items():
        if name in others:
            raise _C.Error(f"{name}: cannot be converted: {reason}")
    config = read_json(folder / CONFIG, folder) if is_there(folder / CONFIG) else {}
    files, ignore = other_files(folder), ignored(folder, checkpoint)
    if quantization_in(folder, PARAMS):
        files = [file for file in files if file.name != PARAMS]
        checkpoint.skipped[PARAMS] = f"is not copied: its quantization is not that of the format {format}"
    return checkpoint, write(
        Path(path),
        format,
        checkpoint.all_layers,
        checkpoint.tensors,
        ignore,
        without_quantization(config),
        limit,
        files=files,
        stacks=checkpoint.experts,
    )


def other_files(folder: Path) -> list[Path]:
    """The files of a checkpoint that hold neither weights nor the configuration, such as a tokenizer's, checked."""
    files = [
        file
        for file in sorted(folder.iterdir())
        if not file.is_dir()
        and not file.name.startswith(".")
        and not file.name.endswith(WEIGHTS)
        and file.name not in (CONFIG, HF_QUANT, INDEX)
    ]
    for file in files:
        check_file(file, folder)
    return files


def without_quantization(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without what its part for text says of quantization, which comes after that of the whole."""
    text = {key: value for key, value in table(config, "text_config").items() if key != "quantization_config"}
    return {**config, "text_config": text} if text else config


def ignored(folder: Path, checkpoint: Checkpoint) -> set[str]:
    """Names of the linear layers that are not quantized: of all modules with a matrix, which may also be embeddings,
    and the old configuration's names. Its patterns match nothing else."""
    quantization = quantization_in(folder, CONFIG) or unwrapped(quantization_in(folder, HF_QUANT))
    old = strings(quantization, "ignore") or strings(quantization, "exclude_modules")
    names = {name for name in old if not name.startswith("re:") and not any(c in name for c in PATTERNS)}
    matrices = {name for name, t in checkpoint.tensors.items() if t.ndim == 2 and name.endswith(".weight")}
    # A head that is tied to the embedding has no tensor of its own.
    return names | {name.removesuffix(".weight") for name in matrices} | {"lm_head"}
