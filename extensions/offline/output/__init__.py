"""Results to files: parts while the run goes on, merged at its end, and records of a collection."""
