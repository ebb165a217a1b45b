"""Kernels for this CPU, compiled by numba (the extra `compiled`) when they are first needed.

In decode the activations of few tokens meet every weight: a step takes as long as reading the weights. The libraries
of torch read them at half of the memory's bandwidth; these GEMMs read packed weights in one stream, for any batch.

- `cpu_features`: SIMD width, VNNI, AMX. `jit`, `parallel`: numba, torch's threads. `cache`: compiled code in files.
- `simd`: vectors in LLVM's language. `matmul`: GEMM, its formats, its epilogue. `amx`: GEMM by Intel's AMX.
- `dtypes`: a GEMM for each dtype. `attention`: softmax over a block table. `decoder_step`: a whole step.
Sources: Goto and van de Geijn (2008); Van Zee and van de Geijn, BLIS (2015).
"""
