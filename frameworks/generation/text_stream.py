"""One choice's text as it grows: whole characters, cut before the first stop string, and the tokens that it is of."""

from collections import deque
from collections.abc import Callable

from frameworks.generation.stop_strings import Found, StopStrings
from frameworks.generation.tokenizer import TokenStream
from frameworks.generation.types import GeneratedToken, Piece, TokenText

_NOTHING_FOUND = Found(0)


class ChoiceText:
    """What of a choice's text may be sent, token by token.

    What may yet become a stop string is held back, and nothing else. The text ends before the first stop string, as
    StopStrings says which that is; it is not shown, and `finish_reason` is `stop` also where the model's own would be
    `length`. Used by one thread.
    """

    def __init__(
        self,
        index: int,
        stream: TokenStream,
        stops: StopStrings,
        text_of: Callable[[int], str] | None = None,
        min_tokens: int = 0,
    ) -> None:
        """`index`: of the choice. `text_of`: one token's own text, where pieces are to have their tokens; else None.

        `min_tokens`: a stop string counts if it ends behind so many tokens.
        """
        self._index = index
        self._stream = stream
        self._stops = stops
        self._text_of = text_of
        self._min_tokens = min_tokens
        self._place = 0
        self._held = ""
        self._length = 0
        self._waiting: deque[_Waiting] = deque()
        self._unended: list[_Waiting] = []
        self.is_over = False
        """After the piece with the finish_reason: nothing comes any more, and the sequence may be let go."""

    def push(self, token: GeneratedToken) -> Piece:
        """What may be sent now; it may be nothing. A token that comes when all is over is passed over.

        A token is in the piece with the last of its text, one that only begins a character in the piece with that
        character; of those that a stop string cuts off, the ones of which some text is left.
        """
        if self.is_over:
            return Piece(self._index, "")
        self._min_tokens -= 1
        text = self._stream.push(token.token_id) if token.is_text else ""
        if token.finish_reason is not None:
            text += self._stream.flush()
        if self._text_of is not None:
            self._note(token, len(text))
        self._length += len(text)
        found = self._search(text)
        if found.end is not None:
            return self._stopped(len(self._held) + found.end - found.length, text)
        held = self._stops.held(found.place) if token.finish_reason is None else 0
        text = self._held + text
        sent = len(text) - held
        self._held = text[sent:]
        self._place = found.place
        self.is_over = token.finish_reason is not None
        tokens = self._sent(self._length - held) if self._waiting else ()
        return Piece(self._index, text[:sent], token.finish_reason, tokens)

    def _search(self, text: str) -> Found:
        if not self._stops:
            return _NOTHING_FOUND
        return self._stops.skip(self._place, text) if self._min_tokens >= 0 else self._stops.search(self._place, text)

    def _stopped(self, cut: int, text: str) -> Piece:
        """The last piece: of what was held back and of the new text, `cut` characters."""
        text = self._held + text
        self.is_over = True
        end = self._length - len(text) + cut
        tokens = tuple(waiting.token for waiting in self._waiting if waiting.begin < end)
        return Piece(self._index, text[:cut], "stop", tokens)

    def _note(self, token: GeneratedToken, num_characters: int) -> None:
        """Keeps a token until the text up to the end of its own has been sent."""
        assert self._text_of is not None
        if token.is_text:
            top = tuple((i, self._text_of(i), logprob) for i, logprob in token.top_logprobs)
            own = TokenText(token.token_id, self._text_of(token.token_id), token.logprob, top)
            waiting = _Waiting(own, self._length)
            self._waiting.append(waiting)
            self._unended.append(waiting)
        if num_characters or token.finish_reason is not None:
            for waiting in self._unended:
                waiting.end = self._length + num_characters
            self._unended.clear()

    def _sent(self, length: int) -> tuple[TokenText, ...]:
        """The tokens of the text up to `length`."""
        tokens = []
        while self._waiting and (end := self._waiting[0].end) is not None and end <= length:
            tokens.append(self._waiting.popleft().token)
        return tuple(tokens)


class _Waiting:
    """A token whose text lies between two characters of the choice's. `end` None: that text has not come yet."""

    __slots__ = ("begin", "end", "token")

    def __init__(self, token: TokenText, begin: int) -> None:
        self.token = token
        self.begin = begin
        self.end: int | None = None
