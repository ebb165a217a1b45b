"""States of graphs: outputs that are inputs of the next step of a sequence. Begin with `states.py`."""
