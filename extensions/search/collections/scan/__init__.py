"""Score rows against queries and keep the top-k: exact search, and the inner loop of the IVF index.

In: query vectors and segments. Out: row numbers and scores, the best first. Begin with `exact_scan`.
`scoring` computes the inner products by GEMM and applies the top-k threshold; `compiled_gemm` and `gemm_tiles` are
its kernels for this CPU, with numpy as the fallback; `top_k` holds the best rows of one query.
"""
