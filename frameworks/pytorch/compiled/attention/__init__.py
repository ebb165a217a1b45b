"""Attention over a block table: scaled dot products, online softmax, weighted values."""
