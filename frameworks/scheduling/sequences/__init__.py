"""Sequences of requests for models with a state: the order of their steps, and the states between them.

In: steps of many sequences. Out: batches of the model's dispatcher, to which states are rows as other tensors are.
Begin with `sequences.py`; `state_store.py` holds the states.
"""
