"""Build and search the IVF index of a collection: k-means centroids and their inverted lists.

In: a snapshot of segments. Out: segments in the order of the lists, the number of probes, the measured recall.
Begin with `maintenance`, the background thread: it trains centroids (`kmeans`), sorts rows (`compaction`), measures
the recall and saves the index (`index_file`). `inverted_lists` answers a query from the nearest lists.
"""
