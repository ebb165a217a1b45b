"""Tokens that a model's files force at the begin or at the end of each text. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ForcedTokens:
    """The token ids of which one is forced, as in transformers' `generate`. Empty: no token is forced.

    `first`: after a prompt of one token (`forced_bos_token_id`). `last`: where the text reaches its limit of tokens
    (`forced_eos_token_id`).
    """

    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.first or self.last)

    def of_token(self, index: int, prompt_tokens: int, max_tokens: int) -> tuple[int, ...]:
        """Return the ids that may be token `index` of the text, counted from 0; empty: it is sampled."""
        if self.last and index == max_tokens - 1:
            return self.last
        return self.first if index == 0 and prompt_tokens == 1 else ()


NOT_FORCED = ForcedTokens()
