"""Whole files of torchao and GGUF for nvfp4.load. Each says itself how its layers are stored."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from nvfp4 import _C
from nvfp4.checkpoints import gguf, mxfp4, torchao
from nvfp4.checkpoints.checkpoint import Checkpoint, in_another_way, noted
from nvfp4.checkpoints.files import READER_ERRORS, check_file, parse_json
from nvfp4.checkpoints.gguf_header import check_header
from nvfp4.checkpoints.grouping import check_unclaimed, grouped, keep, skip_other
from nvfp4.checkpoints.options import TORCHAO, TORCHAO_ACTIVATIONS, check_block, check_keys
from nvfp4.checkpoints.recipe import AUTO, table
from nvfp4.checkpoints.shards import parts_of
from nvfp4.checkpoints.stacks import add_layer
from nvfp4.checkpoints.tensors import chosen
from nvfp4.layers.checks import prefix_errors
from nvfp4.layers.packed import PackedLinear

SPLIT = ("split.count", "split.no")  # of a GGUF file in parts
Errors = dict[str, str] | None  # of the layers by name, where they are not raised


# ---- torchao ----


def read_torchao(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str], errors: Errors = None, wanted: str | None = AUTO
) -> Checkpoint:
    """Tensors of flatten_tensor_state_dict, torchao/prototype/safetensors in torchao 0.18, and its metadata: of each
    tensor its `_type` and, as `_data`, the attributes of the NVFP4Tensor."""
    checkpoint, (modules, names) = Checkpoint(torchao.NAME), grouped(tensors)
    for name, text in sorted(metadata.items()):  # a file keeps no order of them
        module, _, parameter = name.rpartition(".")
        if name == "tensor_names" or not text.startswith("{"):
            continue
        description = parse_json(f"metadata of {name}", text)
        kind = description.get("_type")
        if kind == "Tensor" or "_data" not in description:
            continue
        own = modules.get(module, {})
        if kind != "NVFP4Tensor" or parameter != "weight":
            checkpoint.skipped[module] = in_another_way(f"{kind} of {parameter}")
            checkpoint.why[module] = f"metadata of {name}"
            continue
        checkpoint.why[module] = f"metadata of {name}"
        mine = {local: own.pop(local) for local in torchao.KNOWN if local in own}
        data = table(description, "_data", f"metadata of {name}: ")
        check_keys(f"metadata of {name}: ", data, TORCHAO)
        check_block(f"metadata of {name}: ", data, "block_size")
        swizzled = bool(data.get("is_swizzled_scales", False))
        activations = table(data, "act_quant_kwargs", f"metadata of {name}: ")
        kind = table(activations, "_data", f"metadata of {name}: act_quant_kwargs.")
        check_keys(f"metadata of {name}: act_quant_kwargs.", kind, TORCHAO_ACTIVATIONS)
        check_block(f"metadata of {name}: act_quant_kwargs.", kind, "block_size")
        dynamic = bool(kind.get("use_dynamic_per_tensor_scale", False))

        mode = chosen(mine, torchao.INPUT_SCALE, "nvfp4" if activations else None, wanted)
        if not activations and torchao.INPUT_SCALE not in mine:
            dynamic = True  # where the caller wants quantized activations
        read = functools.partial(torchao.read, is_swizzled_scales=swizzled, activations=mode, dynamic=dynamic)
        with noted(module, errors):
            add_layer(checkpoint, module, mine, "_weight_qdata", read)
    for module, own in modules.items():
        skip_other(checkpoint, module, own)
        keep(checkpoint, module, own, names)
    check_unclaimed(checkpoint, errors)
    return checkpoint


# ---- GGUF ----


def read_blocks(own: Mapping[str, Tensor], activations: str | None = AUTO) -> PackedLinear:
    return gguf.read(own["blocks"], own.get("scale"), own.get("input_scale"), own.get("bias"), activations)


def read_gguf(path: Path, errors: Errors = None, wanted: str | None = AUTO, mmap: bool = True) -> Checkpoint:
    """Tensors of type 40 and their `.scale` and `.input_scale`, and of type 39 (MXFP4). Other tensors of 16 or 32 bits
    as they are, and those of other types as bytes, with a reason in `skipped`."""
    try:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader
    except ModuleNotFoundError:
        raise ModuleNotFoundError("nvfp4.load needs gguf for GGUF files: pip install gguf", name="gguf") from None
    files, stored = parts_of(path), []
    for number, file in enumerate(files):
        check_file(file, None if file == path else path.parent)
        check_header(file, GGML_QUANT_SIZES)
        try:
            reader = GGUFReader(file, "c")  # mapped; torch has no tensors that cannot be written
            fields = [reader.get_field(key) for key in SPLIT]
            count, place = (default if x is None else int(x.contents()) for x, default in zip(fields, (1, 0)))
        except READER_ERRORS as error:
            raise _C.Error(f"{file}: is no GGUF file, or damaged: {error}") from None
        if count != len(files) or place != number:
            raise _C.Error(
                f"{file}: is part {place + 1} of {count} by its header, and {number + 1} of {len(files)} by its name; "
                "parts are named NAME-00001-of-00003.gguf"
            )
        stored += reader.tensors
    checkpoint, tensors, packed, mx = Checkpoint(gguf.NAME), dict[str, Tensor](), set(), set()
    for entry in stored:
        if entry.name in tensors:
            raise _C.Error(f"{entry.name}: is in two parts of {path.name}")
        t = torch.from_numpy(entry.data)
        if not mmap:
            t = t.clone()
        if entry.tensor_type == GGMLQuantizationType.BF16:
            t = t.view(torch.bfloat16)
        elif entry.tensor_type == GGMLQuantizationType.NVFP4 and entry.name.endswith("weight"):
            packed.add(entry.name)
        elif entry.tensor_type == GGMLQuantizationType.MXFP4 and entry.name.endswith("weight"):
            mx.add(entry.name)
        elif t.dtype == torch.uint8:
            checkpoint.skipped[entry.name] = in_another_way(entry.tensor_type.name)
        tensors[entry.name] = t
    modules, names = grouped(tensors)
    for module, own in modules.items():
        prefix = f"{module}." if module else ""
        if f"{prefix}weight" in packed:
            scales = [local for local in ("scale", "input_scale", "bias") if local in own]
            mine = {"blocks": own.pop("weight")} | {local: own.pop(local) for local in scales}
            checkpoint.why[module] = f"{prefix}weight has type 40 (NVFP4)"
            with noted(module, errors):
                mode = chosen(mine, "input_scale", AUTO, wanted)
                add_layer(checkpoint, module, mine, "blocks", functools.partial(read_blocks, activations=mode))
        elif f"{prefix}weight" in mx:
            stored = own.pop("weight")
            bias = {"bias": own.pop("bias")} if "bias" in own else {}
            checkpoint.why[module] = f"{prefix}weight has type 39 (MXFP4)"
            with noted(module, errors):
                with prefix_errors(module):
                    mine = gguf.mxfp4_tensors(stored) | bias
                mxfp4.add(checkpoint, module, mine, "nvfp4" if wanted == "nvfp4" else None)
        keep(checkpoint, module, own, names)
    check_unclaimed(checkpoint, errors)
    return checkpoint
