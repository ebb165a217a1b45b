"""Traces: spans of requests and batches, their queue, and the export by OTLP. Begin with `traces.py`."""
