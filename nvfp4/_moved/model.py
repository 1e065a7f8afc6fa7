"""nvfp4.layers.fused, in pickles of models that nvfp4 0.2 joined."""

from nvfp4.layers.fused import FusedPart as FusedPart
