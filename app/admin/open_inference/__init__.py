"""Serve the management part of the Open Inference Protocol: metadata, configuration, statistics, model repository."""
