"""GEMM for the weights of each dtype; importing a module compiles its kernel."""
