"""The inference API of Hugging Face: POST /models/{name}, and POST / for the only model. Begin with `codec.py`."""
