"""nvfp4.layers.fused, in pickles of models that quantize_model(fuse=True) quantized."""

from nvfp4.layers.fused import FusedPart as FusedPart
