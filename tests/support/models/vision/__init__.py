"""Make tiny random models that read images and text."""
