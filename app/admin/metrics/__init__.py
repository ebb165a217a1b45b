"""Metrics for Prometheus: counts of all parts in, families of samples out, as text. Begin with `api.py`."""
