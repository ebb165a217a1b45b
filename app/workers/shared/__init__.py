"""State that all workers share by messages to the supervisor: nonces, cached responses, failures of keys."""
