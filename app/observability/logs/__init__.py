"""Log lines: structlog in, a bounded queue, one writer thread, standard error out. Begin with `logs.py`."""
