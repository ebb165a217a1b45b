"""Ollama's API: /api/chat, /api/generate, /api/embed and /api/embeddings; app/admin/ollama.py lists the models."""
