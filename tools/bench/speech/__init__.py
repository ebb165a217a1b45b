"""Measure models with an encoder and a decoder beside CTranslate2 and transformers: speech, translation."""
