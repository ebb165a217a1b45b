"""Benchmarks: ``python -m tools.bench [PART ...]`` measures servers and prints the table of the manual.

``__main__.py`` lists the parts. Each is a function ``measure_...`` that yields rows of ``shared/table.py``.
``shared/servers.py`` starts a server, ``peers`` those of other projects. ``compare.py`` compares two checkouts.
"""
