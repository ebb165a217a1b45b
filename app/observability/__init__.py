"""Metrics, logs, and monitors of the event loop and of leased memory."""
