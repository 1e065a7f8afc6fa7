"""The public name of nvfp4.hosts.peft: importing it registers NVFP4 layers with PEFT."""

from nvfp4.hosts.peft import LoraLinear as LoraLinear
from nvfp4.hosts.peft import ParamWrapper as ParamWrapper
from nvfp4.hosts.peft import dispatch_nvfp4 as dispatch_nvfp4
