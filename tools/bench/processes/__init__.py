"""Measure models in processes of their own: rates, latency, memory, crashes, and isolation from other models."""
