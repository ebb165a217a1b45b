"""LoRA adapters of a generating model: their files, and their products beside those of the base."""
