"""PyTorch models from Hugging Face folders. Nothing here is imported before the first such model is loaded."""
