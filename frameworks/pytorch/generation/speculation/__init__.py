"""Speculative decoding: a draft model proposes tokens (`drafting.py`), the model verifies them (`speculating.py`)."""
