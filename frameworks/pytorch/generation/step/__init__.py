"""The engine of a language model: a scheduled step in, a token for each sequence out.

`engine.py` runs the decoder, then samples. `kernel_switch.py` changes the kernels of a model that serves; `trial.py`
measures steps at load.
"""
