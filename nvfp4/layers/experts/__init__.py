"""nvfp4.Experts: the experts of a mixture.

    routed       what modules of experts have in common: the way of tokens to experts
    module       Experts, the module that stands in place of one of transformers
    stack        the matrices of all experts
    w4a16        products with inputs as they are
    w4a4         products with quantized inputs
    fp8_experts  Fp8Experts, such a module with FP8 weights
    training     gradients, and low-rank adapters
    mixture      what a module of transformers computes, and how it stores its experts

quantizing/experts.py quantizes such modules, and checkpoints/experts reads and writes them.
"""
