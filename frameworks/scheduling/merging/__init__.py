"""Merge rows of requests into batches: pad, join and cut them, and test by trials which rows may share a batch."""
