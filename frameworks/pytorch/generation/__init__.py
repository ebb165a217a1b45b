"""How PyTorch models generate text: a batch of sequences, step by step."""
