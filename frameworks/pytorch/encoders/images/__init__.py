"""Models of images: pixels in, embeddings or labels out; CLIP and SigLIP read texts too. Begin with `loading.py`."""
