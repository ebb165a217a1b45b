"""GEMM: packed weights, quantized activations, tiles, epilogue, linear layers, LoRA.

In: activations, float32 [rows, inputs]. Out: float32 [rows, outputs]. Begin with `linear`, the layer; `gemm` has its
loops, `formats` what they read, `float_tiles` and `integer_tiles` the inner loops, `epilogue` what follows.
"""
