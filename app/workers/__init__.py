"""Several worker processes behind one address: the supervisor starts them, and each answers requests."""
