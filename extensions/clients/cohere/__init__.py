"""The parts of Cohere's API that embed and rank: /v2/embed and /v2/rerank."""
