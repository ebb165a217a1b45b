"""The API of Text Embeddings Inference: /embed, /rerank, /predict, /similarity and /tokenize."""
