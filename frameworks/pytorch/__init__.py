"""PyTorch models from Hugging Face folders. Nothing here is imported before the first such model is loaded.

The environment is set here, because its libraries read it when they are imported.
"""

import os

import frameworks.sources.offline  # noqa: F401 - reads the user's HF_HUB_OFFLINE before it is set here
from frameworks.pytorch.lean_imports import leave_out_unused_parts

# transformers downloads nothing, whatever a config.json names.
os.environ["HF_HUB_OFFLINE"] = "1"
# GNU OpenMP's threads spin about 0.3 ms for the next parallel region before they sleep. The default is 3 ms, during
# which they keep the event loop from its CPU.
os.environ.setdefault("GOMP_SPINCOUNT", "30000")
# torch caches so many of oneDNN's kernels per thread, and so per model, beside the thousand that oneDNN caches for all.
# The default is another thousand of 0.3 MB each; the shared cache is as fast.
os.environ.setdefault("LRU_CACHE_CAPACITY", "256")

leave_out_unused_parts()
