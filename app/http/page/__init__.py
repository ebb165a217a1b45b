"""Serve the files of the web page: `page.py` answers a browser at `/`, `files.py` reads the files and their types."""
