"""Batching: queue, batch formation, cost model, dispatcher and worker threads."""
