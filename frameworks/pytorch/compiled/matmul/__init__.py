"""GEMM: packed weights, quantized activations, tiles, epilogue, linear layers, LoRA."""
