"""Similarity and vector collections: a request with texts or vectors in, scores or hits out. Begin with `part.py`."""

from app.extension import Extension

EXTENSION = Extension()
