"""PyTorch models from Hugging Face folders. Nothing here is imported before the first such model is loaded.

What its libraries read from the environment is said here, for they read it when they are imported.
"""

import os

# Nothing is ever fetched by transformers, whatever a config.json says.
os.environ["HF_HUB_OFFLINE"] = "1"
# GNU OpenMP's threads wait for the next product awake for so many turns, about 0.3 ms, and then go to sleep. By default
# it is 3 ms, in which they keep the event loop from its CPU.
os.environ.setdefault("GOMP_SPINCOUNT", "30000")
# So many of oneDNN's kernels torch keeps for each thread, and so for each model, beside the thousand that oneDNN keeps
# for all of them: by default another thousand, of 0.3 MB each. What is found in the other place comes as quickly.
os.environ.setdefault("LRU_CACHE_CAPACITY", "256")
