"""Load a language model: a folder or GGUF file in, an engine of steps out.

`generator.py` is the entry. `paged_loading.py` loads a model with the paged KV cache, `cached_loading.py` one with the
caches of transformers; `code_needs.py` finds the kernels that have to be compiled.
"""
