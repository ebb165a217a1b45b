"""Rows of token ids for the second stage of ``tiny-llama``: dialogues with tools, and texts as in the first stage."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tools.training import dialogues
from tools.training.prose import Document, Entry
from tools.training.tiny_llama_text import Batch, batches
from tools.training.tool_dialogues import Dialogue, with_tools

IGNORED = -100
"""Label of tokens that are not learnt."""
_POOL = 64
"""Dialogues among which the next one of a row is chosen by its length."""


def mixed_batches(
    texts: Sequence[Document], tokenizer: Any, context: int, text_rows: int, tool_rows: int, seed: int
) -> Iterator[Batch]:
    """Yield batches of `text_rows` rows of the first stage and `tool_rows` rows of dialogues with tools, endlessly."""
    asked_about = [entry for x in texts for entry in x.entries if dialogues.can_be_asked_about(entry)]
    plain = batches(texts, tokenizer, context, text_rows, seed)
    rows = _packed(asked_about, tokenizer, context, random.Random(seed))
    for text in plain:
        more = [next(rows) for _ in range(tool_rows)]
        yield Batch(*(torch.cat([one, *others]) for one, *others in zip(text, *more, strict=True)))


def encoded(dialogue: Dialogue, tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the ids of a dialogue and their labels: only what the assistant writes is learnt."""
    text = tokenizer.apply_chat_template(dialogue.messages, tools=dialogue.tools or None, tokenize=False)
    ids = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    begin, end = tokenizer.convert_tokens_to_ids([dialogues.ASSISTANT, dialogues.END_OF_TURN])
    labels, is_learnt = [], False
    for token in ids:
        labels.append(token if is_learnt else IGNORED)
        is_learnt = token == begin or (is_learnt and token != end)
    return ids, labels


def _packed(entries: Sequence[Entry], tokenizer: Any, context: int, chance: random.Random) -> Iterator[Batch]:
    """Yield rows of whole dialogues, int64 [1, context]. The positions of each begin at 0, so that they do not see each
    other.
    """
    pad = tokenizer.pad_token_id
    pool: list[tuple[list[int], list[int]]] = []
    while True:
        ids: list[int] = []
        labels: list[int] = []
        positions: list[int] = []
        while True:
            while len(pool) < _POOL:
                made = encoded(with_tools(entries, chance), tokenizer)
                if len(made[0]) <= context:
                    pool.append(made)
            fitting = [each for each in pool if len(each[0]) <= context - len(ids)]
            if not fitting:
                break
            chosen = fitting[0] if not ids else max(fitting, key=lambda each: len(each[0]))
            pool.remove(chosen)
            ids += chosen[0]
            labels += chosen[1]
            positions += range(len(chosen[0]))
        rest = context - len(ids)
        columns = (ids + [pad] * rest, labels + [IGNORED] * rest, [*positions, *range(rest)])
        yield Batch(*(torch.tensor([column]) for column in columns))
