"""The API of Text Generation Inference: /generate, /generate_stream, and POST / for models that generate text."""
