"""Text generation of PyTorch models: steps over a batch of sequences with a shared KV cache."""
