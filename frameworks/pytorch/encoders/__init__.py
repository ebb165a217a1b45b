"""Encoders of texts and images: token ids or pixels in, vectors or labels out.

`loading.py` and `image_loading.py` load a folder, `encoder.py` and `image_encoder.py` compute batches.
"""
