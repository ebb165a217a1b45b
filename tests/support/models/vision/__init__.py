"""Make tiny random models that read images and texts and write texts, one folder of each model type."""
