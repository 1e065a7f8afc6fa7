"""The public name of nvfp4.layers.linear."""

from nvfp4.layers.linear import Linear as Linear
