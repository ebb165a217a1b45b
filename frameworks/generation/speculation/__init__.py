"""Speculation: tokens are proposed, and a step computes several positions of a text at once. Pure."""
