"""Measure language models: tokens per second, prefill, speculation, adapters, quantization, and peers."""
