"""Servers of other projects, each started in an environment of its own by ``start.py``."""
