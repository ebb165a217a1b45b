"""The quantized copies of models, and their comparison with the originals, for every framework."""
