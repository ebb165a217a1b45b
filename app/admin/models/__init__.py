"""Routes of models: list, describe, register, load, unload, and their adapters; folders in which models are found.

Begin with `api.py`. `allowed_paths.py` says which paths may be registered.
"""
