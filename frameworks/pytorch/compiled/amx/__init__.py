"""GEMM of bfloat16 by Intel's AMX.

In: packed bfloat16 weights and activations. Out: float32 sums, or the states of a layer after its feed-forward block.
Begin with `amx_gemm`; `amx_registers` has the instructions, `amx_feed_forward` fuses three GEMMs.
"""
