"""Logits to tokens: penalties, masks of a grammar, temperature, top-k, top-p, and the choice of a token.

`sampler.py` samples for all sequences of a step, `multinomial.py` draws by the seed of each, `token_masks.py` computes
grammar masks. Begin with `sampler.py`.
"""
