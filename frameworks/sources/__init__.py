"""Fetch models from hubs into `models.cache_dir`, and from the sources that extensions add."""
