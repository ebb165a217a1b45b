"""Embed texts, images and conversations by one model, and score images by a text.

Begin with `service.py`. `image_pairs.py` is for models with a tower of texts and one of images, too.
"""
