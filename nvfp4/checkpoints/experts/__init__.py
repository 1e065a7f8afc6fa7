"""The experts of a mixture in a checkpoint.

container   reads them into the stacks of nvfp4.Experts, and writes them back as they were
targets     which module of a model takes them
"""

from nvfp4.checkpoints.experts.container import Naming as Naming
