"""Bytes: sizes, pooled buffers, budgets and the result cache. Imports no other package of this project."""
