"""Models of images: pixels in, vectors or labels out; CLIP and SigLIP read texts too. Begin with `loading.py`."""
