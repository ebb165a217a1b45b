"""Text generation without torch: step scheduler, key/value blocks, detokenization, and the types of both sides."""
