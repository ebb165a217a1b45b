"""Decide how many tokens are proposed for a sequence, and propose them from its prompt. Pure.

`speculator.py` chooses the sequences of a step, `gain.py` weighs the gain against the cost. Begin with `speculator.py`.
"""
