"""Rows and padding of batches, shared by the frameworks and the schedulers."""
