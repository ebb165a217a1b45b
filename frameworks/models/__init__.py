"""Versions of a model: their traffic, which of them are in memory, and how several workers share them."""
