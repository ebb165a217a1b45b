"""Serve the routes that describe or change the server: models, health, metrics, statistics."""
