"""What the Hopper kernels are to reach on an H200, and what others' kernels took there in another run.

Times in us of single calls with cold caches, an event pair of 1.3 us included. The others multiply fp16 activations
with NVFP4 weights that were repacked beforehand; each figure is its best configuration. They were not timed in the run
that is reported, so no ratio to them is ever printed.
"""

from __future__ import annotations

from .shapes import Shape

DEVICE = "H200"  # in the name of the GPU that the goals are for
FAMILY = "sm90"  # in the names of the kernels that they are for
SOURCE = "median of another run on an H200, not of this one: no ratio"

GOALS = {
    Shape(1, 7168, 16384): 19.0,
    Shape(1, 4096, 7168): 7.5,
    Shape(1, 7168, 2048): 5.5,
    Shape(16, 7168, 16384): 20.0,
    Shape(16, 4096, 7168): 7.5,
    Shape(16, 7168, 2048): 5.5,
    Shape(64, 7168, 16384): 26.0,
    Shape(64, 4096, 7168): 9.0,
    Shape(64, 7168, 2048): 6.5,
    Shape(128, 7168, 16384): 42.0,
    Shape(128, 4096, 7168): 13.5,
    Shape(128, 7168, 2048): 8.5,
    Shape(256, 7168, 16384): 84.0,
    Shape(256, 4096, 7168): 24.0,
    Shape(256, 7168, 2048): 14.0,
    Shape(2304, 4608, 7168): 200.0,
}

# columns: Marlin, Humming
OTHERS = ("Marlin W4A16", "Humming W4A16")
FIGURES = {
    Shape(1, 7168, 16384): (36.4, 36.5),
    Shape(1, 4096, 7168): (16.3, 16.9),
    Shape(1, 7168, 2048): (12.3, 13.0),
    Shape(16, 7168, 16384): (38.0, 38.7),
    Shape(16, 4096, 7168): (17.1, 16.9),
    Shape(16, 7168, 2048): (13.0, 14.0),
    Shape(64, 7168, 16384): (64.1, 47.3),
    Shape(64, 4096, 7168): (25.1, 18.8),
    Shape(64, 7168, 2048): (20.1, 15.5),
    Shape(128, 7168, 16384): (100.5, 58.9),
    Shape(128, 4096, 7168): (38.5, 23.4),
    Shape(128, 7168, 2048): (24.9, 19.1),
    Shape(256, 7168, 16384): (183.0, 105.7),
    Shape(256, 4096, 7168): (57.6, 34.5),
    Shape(256, 7168, 2048): (34.8, 24.4),
    Shape(2304, 4608, 7168): (468.0, 215.0),
}
