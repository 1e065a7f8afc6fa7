"""nvfp4.layers.experts.stack, in pickles of nvfp4.Experts."""

from nvfp4.layers.experts.stack import Stack as Stack
