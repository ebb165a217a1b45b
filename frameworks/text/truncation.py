"""Read how many tokens of a text a model reads and which end is cut off, and truncate token ids as tokenizers does.

Sources: `max_position_embeddings` of config.json, `max_seq_length` of sentence-transformers, `model_max_length` and
`truncation_side` of tokenizer_config.json, and the truncation of tokenizer.json. The library's own truncation is state
of the tokenizer: calls with and without it would have to wait for each other.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# tokenizer_config.json writes about 1e30 for "no limit".
NO_LIMIT = 1_000_000


def stated_max_tokens(config: dict[str, Any], tokenizer: dict[str, Any], sentence: dict[str, Any]) -> int | None:
    """Return the limit of the sentence model, else of the tokenizer; at most the number of position embeddings.

    None where no file states a limit.
    """
    limits = []
    positions = integer_of(config.get("max_position_embeddings"), 0)
    if positions > 0:
        # A trial at load finds how many of them a text can use.
        limits.append(positions)
    stated = integer_of(sentence.get("max_seq_length"), 0)
    tokenizer_limit = tokenizer.get("model_max_length", tokenizer.get("max_len"))
    if stated > 0:
        limits.append(stated)
    elif isinstance(tokenizer_limit, int | float) and 0 < tokenizer_limit < NO_LIMIT:
        limits.append(int(tokenizer_limit))
    return min(limits, default=None)


def truncation_of(folder: Path) -> dict[str, Any]:
    """Return the truncation in tokenizer.json itself; empty where it has none."""
    truncation = read_json(folder / "tokenizer.json").get("truncation")
    return truncation if isinstance(truncation, dict) else {}


def truncation_limit(truncation: dict[str, Any]) -> int | None:
    """Return the length at which tokenizer.json itself truncates; None where it does not.

    Used only where no other file states a limit: the length is often that of the training, below the model's own.
    """
    length = integer_of(truncation.get("max_length"), 0)
    return length if 0 < length < NO_LIMIT else None


def truncates_left(tokenizer: dict[str, Any], truncation: dict[str, Any], folder: Path) -> bool:
    """Return the side of tokenizer_config.json, else that of tokenizer.json, as transformers does."""
    side = tokenizer.get("truncation_side", truncation.get("direction") or "right")
    if not isinstance(side, str) or side.lower() not in ("left", "right"):
        raise InvalidModel(
            f'{folder / "tokenizer_config.json"}: truncation_side: expected "left" or "right", got {str(side)[:100]}; '
            "correct it"
        )
    return side.lower() == "left"


def integer_of(value: object, default: int) -> int:
    """Return the value of a key where it is an integer."""
    return value if isinstance(value, int) and not isinstance(value, bool) else default


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
