"""Layers with NVFP4 and FP8 weights, the tensors that they are made of, and what looks for layers in a model."""
