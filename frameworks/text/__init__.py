"""Texts: tokenizer, configuration files of text models, and token requests."""
