"""Text generation without a framework: the words of it, what is next, and text out of tokens. Imports no torch."""
