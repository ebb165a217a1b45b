"""Versions of a model: their traffic, and which of them are in memory."""
