"""Rows and padding: what both frameworks and the schedulers know about a batch."""
