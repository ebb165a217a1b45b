"""Generate texts for a request: its prompts become sequences of the scheduler, their tokens become its text.

Begin with `service.py`. `sequences.py` builds the sequences, `stream.py` reads their tokens.
"""
