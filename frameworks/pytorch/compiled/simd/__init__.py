"""Vectors in LLVM's language: loads, conversions of dtypes, elementwise functions."""
