"""Machine code in files between processes. Nothing here imports torch.

`code_files` checks the files; `object_code` compiles a function in another process, and links it without numba.
"""
