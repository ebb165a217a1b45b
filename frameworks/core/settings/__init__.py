"""Settings of models: an entry of the configuration in, frozen values out. Begin with `entries.py`."""
