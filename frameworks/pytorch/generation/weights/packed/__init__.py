"""Read quantized weights of files, int8 or int4: GGUF, GPTQ, AWQ and compressed-tensors."""
