"""GEMM for the weights of each dtype; importing a module compiles its kernel.

In: weights [outputs, inputs]. Out: `PACKED`, the packed format with the address of the compiled GEMM.
"""
