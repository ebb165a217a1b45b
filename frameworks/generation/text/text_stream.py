"""Build one choice's text as tokens arrive: whole characters, cut before the first stop string, with their tokens."""

from collections import deque

from frameworks.generation.sequences import NO_TOKEN, GeneratedToken
from frameworks.generation.text.marked_stream import ReasoningCount
from frameworks.generation.text.stop_strings import StopMatch, StopStrings
from frameworks.generation.text.tokenizer import TokenStream, TokenTexts, partial_bytes
from frameworks.generation.types import TextDelta, TokenText


class ChoiceText:
    """The part of a choice's text that can be delivered, token by token.

    Only text that may become a stop string is held back. The text ends before the first stop string, which is not
    delivered; its `finish_reason` is `stop` even where the model's own would be `length`. Used by one thread.
    """

    def __init__(
        self,
        index: int,
        stream: TokenStream,
        stops: StopStrings | None,
        texts: TokenTexts | None = None,
        min_tokens: int = 0,
        reasoning: ReasoningCount | None = None,
        lists_end: bool = False,
    ) -> None:
        """`index`: of the choice. `stops` None: none. `texts`: of single tokens; None: pieces carry no tokens.
        `min_tokens`: a stop string counts if it ends after so many tokens. `reasoning` None: the model does not think.
        `lists_end`: pieces also carry the token that ended the sequence and has no text.
        """
        self._index = index
        self._stream = stream
        self._stops = stops or None
        self._texts = texts
        self._min_tokens = min_tokens
        self._reasoning = reasoning
        self._lists_end = lists_end
        self._state = 0
        self._held = ""
        self._length = 0
        self._num_generated = 0
        self._waiting: deque[_Waiting] = deque()
        self._unended: list[_Waiting] = []
        self.is_over = False
        """Whether the finish_reason was delivered. The sequence may then be aborted."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Number of tokens of the model's thinking."""
        return 0 if self._reasoning is None else self._reasoning.num_tokens

    def push(self, token: GeneratedToken) -> TextDelta:
        """Return the piece that can be delivered now; it may be empty. A token after the end is ignored.

        A token is part of the piece with the last of its text; a token that only begins a character is part of the
        piece with that character. Of the tokens that a stop string cuts, those with some text left are delivered.
        """
        if self.is_over:
            return TextDelta(self._index, "")
        self._min_tokens -= 1
        self._num_generated += token.token_id != NO_TOKEN
        text = self._stream.push(token.token_id) if token.is_text else ""
        if self._reasoning is not None and token.is_text:
            self._reasoning.push(text)
        if token.finish_reason is not None:
            text += self._stream.flush()
        if self._texts is not None:
            self._note(token, len(text))
        self._length += len(text)
        held = 0
        if self._stops is not None:
            found = self._search(self._stops, text)
            if found.end is not None:
                return self._stopped(len(self._held) + found.end - found.length, found.length, text)
            held = self._stops.held(found.state) if token.finish_reason is None else 0
            text = self._held + text
            self._state = found.state
        sent = len(text) - held
        self._held = text[sent:]
        self.is_over = token.finish_reason is not None
        tokens = self._sent(self._length - held) if self._waiting else ()
        return TextDelta(self._index, text[:sent], token.finish_reason, tokens, num_generated=self._num_generated)

    def _search(self, stops: StopStrings, text: str) -> StopMatch:
        return stops.skip(self._state, text) if self._min_tokens >= 0 else stops.search(self._state, text)

    def _stopped(self, cut: int, stop_length: int, text: str) -> TextDelta:
        """Return the last piece: the first `cut` characters of the held and the new text. The stop string is next."""
        text = self._held + text
        self.is_over = True
        end = self._length - len(text) + cut
        tokens = tuple(waiting.token for waiting in self._waiting if waiting.begin < end)
        stop_string = text[cut : cut + stop_length]
        return TextDelta(self._index, text[:cut], "stop", tokens, stop_string, num_generated=self._num_generated)

    def _note(self, token: GeneratedToken, num_characters: int) -> None:
        """Keep a token until all of its text is delivered."""
        assert self._texts is not None
        text_of = self._texts.text_of
        if token.is_text or (self._lists_end and token.token_id != NO_TOKEN):
            top = tuple((i, text_of(i), logprob) for i, logprob in token.top_logprobs)
            text = text_of(token.token_id)
            parts = partial_bytes([(token.token_id, text), *(each[:2] for each in top)], self._texts)
            own = TokenText(token.token_id, text, token.logprob, top, has_text=token.is_text, parts=parts)
            waiting = _Waiting(own, self._length)
            self._waiting.append(waiting)
            self._unended.append(waiting)
        if num_characters or token.finish_reason is not None:
            for waiting in self._unended:
                waiting.end = self._length + num_characters
            self._unended.clear()

    def _sent(self, length: int) -> tuple[TokenText, ...]:
        """Return the tokens of the text up to `length`."""
        tokens = []
        while self._waiting and (end := self._waiting[0].end) is not None and end <= length:
            tokens.append(self._waiting.popleft().token)
        return tuple(tokens)


class _Waiting:
    """A token and the characters of the choice that its text lies between. `end` None: its text is not complete."""

    __slots__ = ("begin", "end", "token")

    def __init__(self, token: TokenText, begin: int) -> None:
        self.token = token
        self.begin = begin
        self.end: int | None = None
