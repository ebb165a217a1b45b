"""JSON bodies: numbers are read into arrays and written from them, never as Python objects. Begin with `body.py`."""
