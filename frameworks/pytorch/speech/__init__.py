"""Speech: read the sounds of a model that writes their texts token by token, and finish the texts."""
