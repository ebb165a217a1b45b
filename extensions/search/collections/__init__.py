"""Collections: embeddings with metadata, durable on disk, searched exactly or by an IVF index.

In: records (vector, text, metadata) and query vectors. Out: hits, the best first. Begin with `contract`, then
`collection` (`../operations/collections.py` opens each): it connects `batch_search` and `transactions` to `store`
(rows), `scan` (exact top-k) and `index` (IVF).
"""
