"""Measure requests: CPU time, latency and rate of each protocol, keys and signatures, texts, images and the page."""
