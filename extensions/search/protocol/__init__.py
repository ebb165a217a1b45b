"""Search over embeddings: /v1/similarity and /v1/collections."""
