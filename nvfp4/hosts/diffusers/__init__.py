"""NVFP4 in Hugging Face diffusers: the implementation of nvfp4.diffusers."""
