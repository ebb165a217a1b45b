"""LoRA adapters of a generating model: their files, and their matmuls beside those of the base."""
