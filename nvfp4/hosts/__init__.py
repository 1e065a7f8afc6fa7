"""Code for other libraries, a module or a package for each. Layers, checkpoints and quantizing import none of them;
nvfp4.layers.hosts has their names.

    transformers   loads and saves NVFP4 checkpoints; nvfp4.transformers is what users import
    peft           merges adapters; nvfp4.peft
    vllm           a plug-in; nvfp4.vllm
"""
