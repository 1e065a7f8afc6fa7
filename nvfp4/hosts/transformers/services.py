"""The functions that checkpoints and quantizing get through nvfp4.layers.hosts: names of tensors, a quantizer that
saves."""

from nvfp4.hosts.transformers.names import expert_names as expert_names
from nvfp4.hosts.transformers.names import rename as rename
from nvfp4.hosts.transformers.names import renamer as renamer
from nvfp4.hosts.transformers.quantizers import attach as attach
