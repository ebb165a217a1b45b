"""Fetch models from hubs, buckets and web servers into `models.cache_dir`."""
