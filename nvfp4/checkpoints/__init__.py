"""NVFP4 layers in the formats of other projects: each a module with `read` (to nvfp4.packed.PackedLinear) and `write`.

    compressed_tensors   llm-compressor, vLLM
    modelopt             NVIDIA's ModelOpt
    torchao              NVFP4Tensor
    gguf                 llama.cpp, type 40
    comfy_kitchen        ComfyUI

They are functions of tensors: none of those projects has to be installed. docs/checkpoints.md compares the formats.
"""
