"""Features at the edge of the server, a folder each. app/extension.py is their contract."""
