"""Cache compiled machine code in files between processes.

Begin with `code_cache`, the folder; `code_files` checks its files, `cached_function` is numba's interface to them.
"""
