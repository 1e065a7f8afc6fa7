"""NVFP4 in Hugging Face transformers: the implementation of nvfp4.transformers."""
