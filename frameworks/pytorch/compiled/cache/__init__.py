"""Cache compiled machine code in files between processes.

Begin with `code_cache`, the folder; `cached_function` is numba's interface to its files.
"""
