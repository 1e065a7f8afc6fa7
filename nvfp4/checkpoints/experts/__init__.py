"""The experts of a mixture in a checkpoint.

    naming       how checkpoints name and store them
    container    reads them into the stacks of nvfp4.Experts
    fp8_experts  reads those with FP8 weights into nvfp4.Fp8Experts
    stored       writes stacks back as they were
    targets      which module of a model takes them

Pickles of nvfp4.Experts hold Naming under the name of this module.
"""

from nvfp4.checkpoints.experts.naming import Naming as Naming
