"""Prompts of a language model: its tokenizer, and the chat template that makes a prompt of messages."""
