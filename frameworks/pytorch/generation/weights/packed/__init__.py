"""Weights that their files hold in 8 or 4 bits: GGUF, GPTQ, AWQ and compressed-tensors."""
