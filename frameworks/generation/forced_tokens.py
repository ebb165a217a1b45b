"""Tokens that a model's files force at a place of each text. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ForcedTokens:
    """The token ids of which one is forced, as by transformers' `generate`. Empty: any token may be sampled.

    `first`: after a prompt of one token (`forced_bos_token_id`). `last`: where the text reaches its limit of tokens
    (`forced_eos_token_id`).
    """

    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.first or self.last)

    def of_token(self, number: int, prompt_tokens: int, max_tokens: int) -> tuple[int, ...]:
        """Return the ids of which the token of this number is one, counted from 0; empty: it is sampled."""
        if self.last and number == max_tokens - 1:
            return self.last
        return self.first if number == 0 and prompt_tokens == 1 else ()


NOT_FORCED = ForcedTokens()
