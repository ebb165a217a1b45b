"""Truncate token ids as the tokenizers library does, on either side and the longer text of a pair first.

The library's own truncation is state of the tokenizer: calls with and without it would have to wait for each other.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def count_special_tokens(tokenizer: "Tokenizer") -> tuple[int, int]:
    """Return the number of special tokens before and after a text.

    Tested on a text with a token, to tell them from each other.
    """
    added = tokenizer.get_added_tokens_decoder().values()
    for text in (*(token.content for token in added), "a"):
        mask = tokenizer.encode(text).special_tokens_mask
        if 0 in mask:
            return mask.index(0), mask[::-1].index(0)
    return tokenizer.num_special_tokens_to_add(False), 0


def truncated_ids(ids: list[int], max_tokens: int, num_before: int, num_after: int, keeps_end: bool) -> list[int]:
    """Return the first ids of a text, or its last ones, with the special tokens before and after it.

    `num_before`, `num_after`: of special tokens.
    """
    if keeps_end:
        return ids[:num_before] + ids[len(ids) - (max_tokens - num_before) :]
    return ids[: max_tokens - num_after] + ids[len(ids) - num_after :]


def truncated_pair(
    sequence_ids: Sequence[int | None], budget: int, first_is_longer: bool | None = None, keeps_end: bool = False
) -> list[int]:
    """Return the positions that are kept of a pair of texts: the beginning of each text, or its end.

    `sequence_ids`: for each token the number of its text, 0 or 1; None for a special token. `budget`: number of tokens
    of both texts that are kept. `first_is_longer`: where the tokens are not those of the whole texts.
    """
    firsts, seconds = sequence_ids.count(0), sequence_ids.count(1)
    shorter, longer = sorted((firsts, seconds))
    longer = shorter if shorter > budget else max(shorter, budget - shorter)
    if shorter + longer > budget:
        shorter, longer = budget // 2, budget // 2 + budget % 2
    if first_is_longer is None:
        first_is_longer = firsts > seconds
    left = [longer, shorter] if first_is_longer else [shorter, longer]
    positions = range(len(sequence_ids))
    kept = []
    for position in reversed(positions) if keeps_end else positions:
        text = sequence_ids[position]
        if text is not None:
            left[text] -= 1
            if left[text] < 0:
                continue
        kept.append(position)
    return kept[::-1] if keeps_end else kept
