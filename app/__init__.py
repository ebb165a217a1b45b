"""The doors: the wire, its protocols, and the people who call."""
