"""The public name of nvfp4.hosts.comfy: importing it registers nvfp4 as a backend of comfy-kitchen."""

from nvfp4.hosts.comfy import register as register
from nvfp4.hosts.comfy import unregister as unregister
