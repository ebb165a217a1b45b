"""All layers of an encoder by one compiled function, on a CPU.

In: transformers' model. Out: the same model, whose layers compute the tokens of texts without padding.
"""
