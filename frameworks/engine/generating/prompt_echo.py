"""Echo a prompt as the first pieces of a response: its text, and its tokens with their log probabilities."""

from collections.abc import Iterator
from dataclasses import dataclass

from frameworks.generation.prompt_scores import PromptScores
from frameworks.generation.text.tokenizer import GenerationTokenizer
from frameworks.generation.types import TextDelta, TokenText

# Texts of tokens that are looked up, and written by a protocol, in one iteration of the event loop.
_TEXTS_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class ShownPrompt:
    """A prompt that its responses show. `text`: empty unless it is echoed. `num_top` None: without tokens."""

    token_ids: tuple[int, ...]
    text: str
    num_top: int | None
    tokenizer: GenerationTokenizer

    def pieces(self, index: int, scores: PromptScores | None) -> Iterator[TextDelta]:
        """Return the pieces of choice `index`, the text in the first. `scores` None: a prompt of one token."""
        if self.num_top is None:
            yield TextDelta(index, self.text, is_prompt=True)
            return
        at_once = max(1, _TEXTS_AT_ONCE // (2 + self.num_top))
        text = self.text
        for start in range(0, len(self.token_ids), at_once):
            tokens = self._tokens(range(start, min(start + at_once, len(self.token_ids))), scores)
            yield TextDelta(index, text, tokens=tuple(tokens), is_prompt=True)
            text = ""

    def _tokens(self, positions: range, scores: PromptScores | None) -> Iterator[TokenText]:
        text_of = self.tokenizer.text_of
        special = self.tokenizer.special_ids
        for position in positions:
            token_id = self.token_ids[position]
            has_text = token_id not in special
            if position == 0 or scores is None:
                yield TokenText(token_id, text_of(token_id), has_text=has_text)
                continue
            row = position - 1
            top = tuple(
                (each, text_of(each), logprob)
                for each, logprob in zip(scores.top_ids[row].tolist(), scores.top_logprobs[row].tolist(), strict=True)
            )
            logprob, rank = float(scores.logprobs[row]), int(scores.ranks[row])
            yield TokenText(token_id, text_of(token_id), logprob, top, rank, has_text)
