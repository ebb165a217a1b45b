"""Collections: embeddings with metadata, durable on disk, and their exact and indexed search."""
