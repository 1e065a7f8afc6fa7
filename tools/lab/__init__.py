"""The laboratory: what brings up and looks into a GPU's kernels. `python tools/lab --help` lists its programs."""
