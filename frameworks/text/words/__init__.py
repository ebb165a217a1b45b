"""Read texts as whole words (WordEmbeddings, BoW): `vocabulary.py` has their files, `tokenizer.py` splits texts."""
