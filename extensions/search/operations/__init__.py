"""Similarity and vector collections: a request with texts or vectors in, hits out. Begin with `operations.py`."""
