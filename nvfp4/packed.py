"""The public name of nvfp4.layers.packed."""

from nvfp4.layers.packed import PackedLinear as PackedLinear
