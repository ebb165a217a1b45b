"""SIMD vectors in LLVM's language: loads, conversions of dtypes, elementwise functions.

Begin with `llvm_vectors`. Nothing here knows of a GEMM or of attention.
"""
