"""The OpenAI API: text generation, embeddings and models as OpenAI has them, scores and tokens as vLLM has them."""
