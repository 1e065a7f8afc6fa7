"""nvfp4.hosts.transformers, in pickles of models of transformers."""

from nvfp4.hosts.transformers.configs import CompressedTensorsConfig as CompressedTensorsConfig
from nvfp4.hosts.transformers.configs import ModelOptConfig as ModelOptConfig
from nvfp4.hosts.transformers.quantizers import CompressedTensorsQuantizer as CompressedTensorsQuantizer
from nvfp4.hosts.transformers.quantizers import ModelOptQuantizer as ModelOptQuantizer
