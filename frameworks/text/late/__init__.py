"""Read queries and documents of models of late interaction (ColBERT): `tokenizer.py`.

`frameworks/text/late_interaction.py` has their settings.
"""
