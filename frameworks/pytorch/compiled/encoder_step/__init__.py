"""All layers of an encoder in one call.

In: a table of layers, and states float32 [tokens, hidden size]. Out: the states after the last layer, in place.
"""
