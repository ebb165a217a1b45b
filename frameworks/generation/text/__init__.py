"""Tokens to text and back: detokenize as tokens arrive, stop strings, marks of reasoning and tool calls, infilling."""
