"""The public name of nvfp4.layers.parallel."""

from nvfp4.layers.parallel import ColwiseLinear as ColwiseLinear
from nvfp4.layers.parallel import ColwiseParallel as ColwiseParallel
from nvfp4.layers.parallel import PartLinear as PartLinear
from nvfp4.layers.parallel import RowwiseLinear as RowwiseLinear
from nvfp4.layers.parallel import RowwiseParallel as RowwiseParallel
