"""Encoders of texts and images: token ids or pixels in, vectors or labels out.

`loading.py` loads a folder, `encoder.py` computes batches; `images/` has the models of images.
"""
