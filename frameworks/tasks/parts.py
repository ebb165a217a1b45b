"""Bound the parts into which a long text is cut before a tokenizer cuts it."""

from frameworks.core.errors import InvalidInput

MAX_READ_TOKENS = 1 << 19
"""Tokens of all parts of a text. Parts that share all but one token are as many as the tokens of the text."""


def check_parts(tokens: int, available: int, shared: int, size: int, *, field: str, shared_field: str) -> None:
    """Raise InvalidInput where a text has too many parts, or none that the tokenizer can form.

    `available`: tokens of the text in a part, at least 1. `shared`: tokens that neighbouring parts have in common.
    `size`: tokens of a part with its question and special tokens. `field`, `shared_field`: the names of the text and
    of `shared` in the request.
    """
    if tokens <= available:
        return
    if shared >= available:
        # The tokenizer would end with a panic, which is no Exception.
        raise InvalidInput(
            shared_field, f"expected less than {available}, the tokens of a text in a part, got {shared}; lower it"
        )
    parts = -(-(tokens - available) // (available - shared)) + 1
    if parts * size > MAX_READ_TOKENS:
        raise InvalidInput(
            field,
            f"expected parts of up to {MAX_READ_TOKENS} tokens in all, got {parts} of {size}; shorten it, or lower "
            f"{shared_field}",
        )
