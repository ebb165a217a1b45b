"""Models with an encoder and a decoder: the encoder reads the source, the decoder generates over its states.

Begin with `runner.py`. A sequence is its source, padded to whole blocks, then the tokens of its decoder: the blocks of
the source hold the keys and values of cross-attention, the others those of self-attention.
"""
