"""Step 3 of a request's way: who is next, and with whom. Policy here is pure; the lanes own the threads."""
