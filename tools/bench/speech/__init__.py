"""Measure models of speech beside CTranslate2 and transformers."""
