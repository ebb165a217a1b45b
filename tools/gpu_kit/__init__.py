"""A folder that checks and measures a machine with a GPU and without a network.

``build.py`` makes the folder here. ``gpu-check.sh`` runs there: it installs the wheels and runs ``measure.py``, one
process for each part.
"""
