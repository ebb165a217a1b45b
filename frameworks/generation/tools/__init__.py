"""Tool calls in the text of a model: the formats of the families, their grammar and their parser. Pure."""
