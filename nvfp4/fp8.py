"""The public name of nvfp4.layers.fp8."""

from nvfp4.layers.fp8 import Fp8Linear as Fp8Linear
from nvfp4.layers.fp8 import Fp8Tensors as Fp8Tensors
from nvfp4.layers.fp8 import StoredScales as StoredScales
