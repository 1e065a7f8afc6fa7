"""NVFP4 checkpoints in vLLM: the plug-in that nvfp4.vllm names to it."""
