"""A custom node of ComfyUI without nodes: copy it into ComfyUI/custom_nodes. See docs/pictures.md."""

import nvfp4.comfy  # noqa: F401

NODE_CLASS_MAPPINGS = {}
