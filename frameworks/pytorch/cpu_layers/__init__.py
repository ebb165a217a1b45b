"""Layers of encoders and tasks on a CPU."""
