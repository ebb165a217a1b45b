"""Modules of sentence-transformers around an encoder: those that `modules.json` lists, and their arithmetic."""
