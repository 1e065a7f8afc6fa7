"""The experts of a mixture in a checkpoint.

    naming      how checkpoints name and store them
    container   reads them into the stacks of nvfp4.Experts
    stored      writes them back as they were
    targets     which module of a model takes them

Pickles of nvfp4.Experts hold Naming under the name of this module.
"""

from nvfp4.checkpoints.experts.naming import Naming as Naming
