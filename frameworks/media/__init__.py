"""Decode files of sound and video within bounds: bytes in, samples or frames out. Begin with `containers.py`.

It needs the extra `media` (PyAV), which is imported with the first file.
"""
