"""The log probabilities of a response's messages."""

from collections.abc import Sequence
from typing import Any

import orjson

from app.protocols.openai.generation import finite
from app.protocols.shared.chat_turns import TurnText
from frameworks.generation.tools.events import Event, TextPart
from frameworks.generation.types import TokenText


class ContentTokens:
    """Assign the tokens of a text to its messages; tokens of reasoning, calls and marks belong to none.

    The texts of the tokens are parsed one by one. Thus the result does not depend on the pieces of the text.
    """

    def __init__(self, turn: TurnText) -> None:
        """`turn`: an empty text of the same kind."""
        self._turn = turn
        self._waiting: list[TokenText] = []
        self._messages: list[list[orjson.Fragment]] = []
        self._is_content = False

    def push(self, tokens: Sequence[TokenText]) -> None:
        """Assign some more tokens."""
        if not self._turn.format.marks:
            self._is_content = True
            self._messages = self._messages or [[]]
            self._messages[0] += map(_shown, tokens)
            return
        for token in tokens:
            self._waiting.append(token)
            self._assign(self._turn.push(token.text))

    def finish(self, finish_reason: str) -> None:
        """Assign the last tokens. `finish_reason`: of the text."""
        self._assign(self._turn.finish(finish_reason))

    def take(self, message: int) -> list[orjson.Fragment]:
        """Return the new log probabilities of a message, as JSON. `message`: from 0, in order of the output."""
        if message >= len(self._messages):
            return []
        found, self._messages[message] = self._messages[message], []
        return found

    def _assign(self, parts: Sequence[Event]) -> None:
        for part in parts:
            is_content = isinstance(part, TextPart) and part.kind == "content"
            if isinstance(part, TextPart) and is_content:
                if not self._is_content:
                    self._messages.append([])
                self._messages[-1] += map(_shown, self._last_with(len(part.text)))
            self._is_content = is_content
            # The last token may have text of the next part too.
            del self._waiting[:-1]
        if parts:
            self._waiting.clear()

    def _last_with(self, num_characters: int) -> list[TokenText]:
        """Return the fewest last tokens that have so many characters: those before them are of a mark."""
        start = len(self._waiting)
        while start and num_characters > 0:
            start -= 1
            num_characters -= len(self._waiting[start].text)
        return self._waiting[start:]


def _shown(token: TokenText) -> orjson.Fragment:
    def shown(token_id: int, text: str, logprob: float | None) -> dict[str, Any]:
        return {"token": text, "logprob": finite(logprob), "bytes": list(token.bytes_of(token_id, text))}

    own = shown(token.token_id, token.text, token.logprob)
    return orjson.Fragment(orjson.dumps({**own, "top_logprobs": [shown(*each) for each in token.top]}))
