"""Benchmarks: ``python -m tools.bench [PART ...]`` measures servers and prints the table of the manual.

``__main__.py`` lists the parts. Each is a module whose ``measure_...`` yields rows of ``table.py``.
``servers.py`` starts a server, ``peers`` those of other projects; ``wrk.py`` and ``load.py`` send requests.
"""
