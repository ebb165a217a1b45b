"""Compile the kernels of `compiled` in another process, while a server loads and serves.

- `parts`: what is compiled alone, and which of it the cache lacks.
- `process`: the process that compiles.
- `background`: start it, and wait for it on a thread.
"""
