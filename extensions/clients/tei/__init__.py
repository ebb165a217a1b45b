"""The API of Text Embeddings Inference: /embed, /embed_sparse, /rerank, /predict, /similarity and /tokenize."""
