"""Show the running server: samples of 15 minutes, a stream of them to many viewers, requests, model files."""
