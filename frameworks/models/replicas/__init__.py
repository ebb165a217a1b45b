"""Models of a server with several workers: the supervisor has them, and each worker has a replica of their state."""
