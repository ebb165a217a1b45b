"""Metrics, logs, and watches over the event loop and the integrity of shared state."""
