"""Attention over a block table: scaled dot products, online softmax, weighted values.

In: queries, float32 [tokens, heads, head size], and the KV cache in blocks. Out: float32 of the shape of the queries.
Begin with `flash_attention`; `attention_tiles` has its inner loops. `amx_attention` and `amx_softmax_tiles` do the same
by AMX. `cache_rows` converts and writes rows of the KV cache.
"""
