"""Ollama's API: /api/chat, /api/generate, /api/embed and /api/embeddings. `models.py` lists the models."""
