"""Kernels for this CPU, compiled when they are first needed: GEMM, attention and whole decoder steps.

In decode each activation of the few tokens is multiplied with every weight, so a step takes as long as reading the
weights. The libraries that torch calls read them at half the bandwidth of memory, or less. These GEMMs read packed
weights in one stream, for any number of tokens.

- `cpu_features`: the width of the CPU's SIMD vectors, VNNI and AMX. `jit`, `parallel`: numba, and torch's threads.
- `simd`: vectors in LLVM's language. `matmul`: GEMM, its formats and its epilogue. `amx`: GEMM by Intel's AMX.
- `dtypes`: one GEMM for the weights of each dtype; importing a module compiles it.
- `attention`: online softmax over a block table. `decoder_step`: a whole step. `cache`: compiled code in files.

numba compiles them. It is installed with the extra `compiled`; without it, torch's own matmul remains.

Sources: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008); Van Zee and van de Geijn,
BLIS (2015).
"""
