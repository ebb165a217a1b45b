"""The scripts that trained the embedded models."""
