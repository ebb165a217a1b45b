"""The states of tokens before the layers: sums of embeddings, and their norm."""

from typing import Any

from frameworks.pytorch.compiled.encoder_step.encoder_arguments import (
    CONSTANTS,
    EMBEDDINGS,
    HIDDEN,
    IDS,
    NORM_BIAS,
    NORM_WEIGHT,
    POSITIONS,
    POSITIONS_TABLE,
    ROWS,
    STATES,
    TYPES,
    TYPES_TABLE,
    WORDS_TABLE,
)
from frameworks.pytorch.compiled.encoder_step.layer_norm import layer_norm
from frameworks.pytorch.compiled.jit import compiled, pointer_to_floats, pointer_to_integers
from frameworks.pytorch.compiled.parallel import barrier


@compiled
def embed_rows(arguments: Any, thread: int, threads: int) -> None:
    """Write LayerNorm(word + position + type) of each token to the states, if there are tables."""
    if not arguments[EMBEDDINGS]:
        return
    tables = pointer_to_integers(arguments[EMBEDDINGS])
    ids, positions = pointer_to_integers(arguments[IDS]), pointer_to_integers(arguments[POSITIONS])
    types = pointer_to_integers(arguments[TYPES])
    size, epsilon = arguments[HIDDEN], pointer_to_floats(arguments[CONSTANTS])[2]
    for row in range(thread, arguments[ROWS], threads):
        target = arguments[STATES] + 4 * size * row
        out = pointer_to_floats(target)
        word = pointer_to_floats(tables[WORDS_TABLE] + 4 * size * ids[row])
        position = pointer_to_floats(tables[POSITIONS_TABLE] + 4 * size * positions[row])
        for index in range(size):
            out[index] = word[index] + position[index]
        if tables[TYPES_TABLE]:
            added = pointer_to_floats(tables[TYPES_TABLE] + 4 * size * types[row])
            for index in range(size):
                out[index] += added[index]
        layer_norm(target, target, (tables[NORM_WEIGHT], tables[NORM_BIAS]), size, epsilon)
    barrier(arguments)
