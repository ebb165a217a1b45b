"""Load a language model: a folder or GGUF file in, an engine of steps out.

`generator.py` is the entry. `model_loading.py` makes the model of transformers, `paged_loading.py` one with the paged
KV cache, `cached_loading.py` one with its own cache; `code_needs.py` finds the kernels that have to be compiled.
"""
