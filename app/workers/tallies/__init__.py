"""Counts of requests of all workers, merged in the supervisor."""
