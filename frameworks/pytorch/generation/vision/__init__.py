"""Language models that see: transformers' processor makes tokens and pixels of a conversation with images, its vision
tower makes vectors of the pixels, and a step of the engine reads them in place of the embeddings of image tokens.

Begin with prompts.py, then tower.py and step_images.py. loading/vision_trial.py compares all of it with transformers.
"""
