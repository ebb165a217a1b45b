"""Batching: queue, batch formation, cost model, dispatcher and worker threads.

In: a request's tensors. Out: its rows of the outputs. Begin with `dispatcher`; `batcher` chooses the next batch.
"""
