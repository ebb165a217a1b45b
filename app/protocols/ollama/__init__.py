"""Ollama's API: /api/chat, /api/generate and /api/embed; app/admin/ollama.py lists the models."""
