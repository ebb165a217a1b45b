"""Build the server from settings, and run it as a process."""
