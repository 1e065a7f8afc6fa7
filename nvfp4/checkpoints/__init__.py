"""Checkpoints: reading them, putting them into models, and writing them.

NVFP4 layers in the formats of other projects, each a module with `read` (to nvfp4.packed.PackedLinear) and `write`.
They are functions of tensors: none of those projects has to be installed. docs/checkpoint-formats.md compares them.

    compressed_tensors   llm-compressor, vLLM
    modelopt             NVIDIA's ModelOpt
    torchao              NVFP4Tensor
    gguf                 llama.cpp, type 40
    comfy_kitchen        ComfyUI

The way of a checkpoint into a model:

    read             which format it is; files, shards, gguf_header: what lies on the disk
    configuration    what config.json says, as a recipe; names, patterns, options: how it says it
    modules          each module as a layer, an expert's layer, or tensors to keep; grouping, tensors, stacks
    self_described   files of torchao, comfy-kitchen and GGUF; unmarked_layout, nibble_order: files that say nothing
    load             puts a checkpoint into a model; fit, left_out: whether it fits

save, write and output write one, convert turns one into the other format, inspect looks for damage.
"""
