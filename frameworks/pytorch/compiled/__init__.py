"""Products that are compiled for this CPU when they are first needed.

One number of a decode step's few rows is multiplied with every weight, so the step takes as long as reading the weights
does. The libraries that torch calls read them at half the bandwidth of memory, or less. These products read them in one
stream, in an order made for it, for any number of rows.

- `vectors`: the width of the CPU's vectors.
- `tiles`: the inner loops, in LLVM's language.
- `formats`: the orders of weights and rows. `float32`, `float16`, `bfloat16`, `int8`, `int4` and `int8_groups` have one
  each; importing one compiles it.
- `dots`, `integer_tiles`, `rounded_rows`: products of whole numbers, and the rows for them.
- `interleave`: the words of a tile's rows side by side.
- `products`: the loops around the tiles. `finishing`: what is done with their sums.
- `parallel`: run them on torch's threads.
- `linear`: the layers.
- `step`: a whole step of a decoder. `attention`, `attention_tiles` and `rows`: its parts between the products.

numba compiles them. It is installed with the extra `compiled`; without it, torch's own products remain.

Sources: Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008); Van Zee and van de Geijn,
BLIS (2015).
"""
