"""A checkpoint of ModelOpt as one of compressed-tensors, and the reverse, without decoding a weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nvfp4 import _C
from nvfp4.checkpoints.common import Checkpoint
from nvfp4.checkpoints.loader import load
from nvfp4.checkpoints.parts import INDEX
from nvfp4.checkpoints.reader import read_json
from nvfp4.checkpoints.save import SaveReport, check_format, shard_bytes, write

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")
PATTERNS = "*?[]"


def convert(
    source: str | Path, path: str | Path, format: str, max_shard_size: int | str = "5GB"
) -> tuple[Checkpoint, SaveReport]:
    """Writes a checkpoint in another format. Weights and block scales keep their bytes.

    A multiplier (ModelOpt) and a divisor (compressed-tensors) are each the rounded reciprocal of the other. To
    modelopt: the multipliers that nvfp4.load computes of the divisors. To compressed-tensors: see SaveReport.rounded.

    Args:
        source: a checkpoint's folder. Its files that hold no weights, such as a tokenizer's, are copied.
        path: a folder that is new or empty.
        format: "modelopt" or "compressed-tensors".
        max_shard_size: as of nvfp4.save.

    Returns:
        What was read, with the scales of a KV cache that are left out in `skipped`, and what was written.

    Raises:
        nvfp4.Error: an argument breaks a rule, the checkpoint is damaged or has that format already, or it has layers
            that are quantized in another way, which only its own configuration describes. Nothing is written then.
    """
    check_format(format)
    limit, folder = shard_bytes(max_shard_size), Path(source)
    if not folder.is_dir():
        raise _C.Error(f"source: {folder} is no folder; must be a checkpoint's folder")
    checkpoint = load(folder)
    if checkpoint.format == format:
        raise _C.Error(f"format: {folder} has the format {format!r} already")
    for name, experts in checkpoint.experts.items():
        raise _C.Error(f"{name}: cannot be converted: is a stack of {len(experts)} experts")
    if not checkpoint.layers:
        raise _C.Error(f"source: {folder} has no NVFP4 layer")
    others = {*checkpoint.kept.values()} | {name for name in checkpoint.skipped if name in checkpoint.tensors}
    for name, reason in checkpoint.skipped.items():
        if name in others or name.startswith("quantization_config."):
            raise _C.Error(f"{name}: cannot be converted: {reason}")
    config = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    files = [
        file
        for file in sorted(folder.iterdir())
        if file.is_file()
        and not file.name.endswith(WEIGHTS)
        and file.name not in ("config.json", "hf_quant_config.json", INDEX)
    ]
    ignore = ignored(folder, config, checkpoint)
    return checkpoint, write(
        Path(path), format, checkpoint.layers, checkpoint.tensors, ignore, config, limit, files=files
    )


def ignored(folder: Path, config: dict[str, Any], checkpoint: Checkpoint) -> set[str]:
    """Names of the linear layers that are not quantized: of all modules with a matrix, which may also be embeddings,
    and the old configuration's names. Its patterns match nothing else."""
    quantization: dict[str, Any] = config.get("quantization_config") or {}
    if not quantization and (folder / "hf_quant_config.json").exists():
        content = read_json(folder / "hf_quant_config.json")
        quantization = content.get("quantization", content)
    old = quantization.get("ignore") or quantization.get("exclude_modules") or []
    names = {name for name in old if not name.startswith("re:") and not any(c in name for c in PATTERNS)}
    matrices = {name for name, t in checkpoint.tensors.items() if t.ndim == 2 and name.endswith(".weight")}
    # A head that is tied to the embedding has no tensor of its own.
    return names | {name.removesuffix(".weight") for name in matrices} | {"lm_head"}
