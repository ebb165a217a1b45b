"""Read language models from GGUF files, the format of llama.cpp."""
