"""Train the embedded models."""
