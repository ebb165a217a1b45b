"""A whole decoder step in one compiled call.

In: token ids and positions, the KV cache with its block tables, the table of GEMMs. Out: logits, float32
[rows with logits, vocabulary]. Begin with `step`; `step_arguments` lists what it is given.
"""
