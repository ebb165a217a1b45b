"""Read text models' configuration files, tokenise texts, and compute embeddings and scores."""
