"""Quantisation, whatever the framework: copies made once, and what they lose and gain against the original."""
