"""GEMM of bfloat16 by Intel's AMX."""
