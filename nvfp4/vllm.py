"""The public name of nvfp4.hosts.vllm: vLLM calls `register` through the entry point `vllm.general_plugins`."""

from nvfp4.hosts.vllm.plugin import ExactNvFp4LinearKernel as ExactNvFp4LinearKernel
from nvfp4.hosts.vllm.plugin import register as register
