"""The public name of nvfp4.layers.experts.module."""

from nvfp4.layers.experts.module import Experts as Experts
