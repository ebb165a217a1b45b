"""Texts of 4 to 130 words; any whole number of decks is the same amount of work."""

import random

import numpy as np

DECK = 128
"""Return texts with evenly spread lengths. A round of one deck costs a quarter of a round of four."""
_DECKS = 4
_WORDS_FROM, _WORDS_TO = 4, 130
WORDS = (
    *("engine", "track", "signal", "station", "freight", "passenger", "coal", "steam", "whistle", "bridge", "tunnel"),
    *("river", "mountain", "valley", "winter", "morning", "evening", "driver", "fireman", "ticket", "platform", "lamp"),
)


def mixed_texts() -> list[str]:
    """Return the same 512 texts each time: four decks, each in an order of its own."""
    chosen = random.Random(0)
    lengths = [round(float(length)) for length in np.linspace(_WORDS_FROM, _WORDS_TO, DECK)]
    texts = []
    for _ in range(_DECKS):
        chosen.shuffle(lengths)
        texts += [" ".join(chosen.choices(WORDS, k=length)) for length in lengths]
    return texts


def short_texts(count: int) -> list[str]:
    """Return texts of 2 to 6 words."""
    chosen = random.Random(0)
    return [" ".join(chosen.choices(WORDS, k=chosen.randint(2, 6))) for _ in range(count)]
