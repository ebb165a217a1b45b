"""Quantised copies of models, and their comparison with the originals, for every framework."""
