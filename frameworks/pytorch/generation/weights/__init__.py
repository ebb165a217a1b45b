"""Linear layers of a decoder: weights of a file in, a layer with the fastest matmul of this CPU out.

`cpu_kernels.py` lists the kernels, `kernel_choice.py` measures them, `linear_makers.py` makes the layers. `packed/`
reads weights that their files have quantized.
"""
