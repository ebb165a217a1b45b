"""Schedule the steps of a language model: which sequences compute how many tokens in the next step. Pure.

`scheduler.py` takes sequences from `tenant_queues.py`, gives them blocks of the KV cache (`blocks.py`) and preempts
them when none is free. `frameworks/scheduling/steps` runs the steps. Begin with `scheduler.py`.
"""
