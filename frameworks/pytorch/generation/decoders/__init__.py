"""The forward pass of one step: tokens of all sequences in, logits of their last tokens out.

`step_layout.py` lays out the tokens of a batch, `llama.py` and `transformers_decoder.py` are decoders over the paged
`kv_cache.py`, `attention.py` reads it, `compiled_step.py` is a whole step in compiled code, `runner.py` calls either.
`adapters/` adds LoRA. Begin with `decoder.py` and `runner.py`.
"""
