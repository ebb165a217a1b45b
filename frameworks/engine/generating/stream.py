"""Turn the tokens of a running request into pieces of text, in the order in which they were generated."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

from frameworks.core.errors import DeadlineExceeded
from frameworks.core.timings import Timings
from frameworks.engine.contract import TokenTimes
from frameworks.engine.generating.prompt_echo import ShownPrompt
from frameworks.generation.sequences import NO_TOKEN
from frameworks.generation.text.text_stream import ChoiceText
from frameworks.generation.types import Choice, GenerateAnswer, TextDelta, Usage
from frameworks.scheduling.admission import TokenBudget
from frameworks.scheduling.steps.token_feed import ArrivedToken, TokenFeed


@asynccontextmanager
async def read_in_time(deadline_s: float | None) -> AsyncIterator[None]:
    """Send the pieces of a response within the block. Raises DeadlineExceeded if the reader is slow.

    `deadline_s`: the time of the loop; None: without one.
    """
    try:
        async with asyncio.timeout_at(deadline_s):
            yield
    except TimeoutError:
        raise DeadlineExceeded(
            "the text was not generated and read within timeout_ms; allow more time or ask for fewer tokens"
        ) from None


# Texts of tokens that are looked up in one iteration of the event loop.
_TEXTS_AT_ONCE = 512


def join_pieces(pieces: Iterable[TextDelta], num_choices: int) -> list[Choice]:
    """Return the whole text of each choice, in order of their index. `pieces`: all of a generation that has ended."""
    by_choice: list[list[TextDelta]] = [[] for _ in range(num_choices)]
    for piece in pieces:
        by_choice[piece.index].append(piece)
    return [_join(each) for each in by_choice]


def _join(pieces: list[TextDelta]) -> Choice:
    reason = pieces[-1].finish_reason if pieces else None
    assert reason is not None, "the generation ended before the choice did"
    of_prompt = [piece for piece in pieces if piece.is_prompt]
    of_text = pieces[len(of_prompt) :]
    return Choice(
        "".join(piece.text for piece in of_text),
        reason,
        [token for piece in of_text for token in piece.tokens],
        pieces[-1].stop_string,
        "".join(piece.text for piece in of_prompt),
        [token for piece in of_prompt for token in piece.tokens],
    )


class GenerationStream:
    """Implement Generation over a token feed. Owned by the event loop.

    The sequences end when the reader is cancelled or gets an error.
    """

    def __init__(
        self,
        feed: TokenFeed,
        first_id: int,
        texts: list[ChoiceText],
        prompts: list[tuple[int, ...]],
        timings: Timings,
        times: TokenTimes,
        top_logprobs: int | None = None,
    ) -> None:
        """`first_id`: sequence id of choice 0; choice i has `first_id` + i. `prompts`: token ids. Reading tokens
        fills `timings` and `times`. `top_logprobs`: alternatives to each token, whose texts are looked up.
        """
        self._feed = feed
        self._first_id = first_id
        self._texts = texts
        self._num_choices = len(texts) // len(prompts)
        self._num_prompt_tokens = sum(map(len, prompts))
        self._shown_prompts: dict[int, ShownPrompt] = {}
        self._num_generated = 0
        self._budget: TokenBudget | None = None
        self._timings = timings
        self._times = times
        self._opened_s = time.perf_counter()
        self._last_token_s: list[float | None] = [None] * len(texts)
        self._pieces: deque[TextDelta] = deque()
        # Tokens that have arrived. So many are read that the event loop is blocked for about a millisecond.
        self._unread: deque[ArrivedToken] = deque()
        self._at_once = max(1, _TEXTS_AT_ONCE // (1 if top_logprobs is None else 2 + top_logprobs))
        self._deadline: asyncio.TimerHandle | None = None
        self.deadline_s: float | None = None
        self._is_closed = False

    @property
    def usage(self) -> Usage:
        cached: dict[int, int] = {}
        for sequence_id, num_tokens in self._feed.cached_tokens.items():
            # The first choice of a prompt computes it, so only its cached tokens count.
            cached.setdefault((sequence_id - self._first_id) // self._num_choices, num_tokens)
        num_reasoning = sum(text.num_reasoning_tokens for text in self._texts)
        feed = self._feed
        # A stop string may end the text before tokens that were right.
        accepted = min(feed.accepted_tokens, self._num_generated)
        rejected = feed.proposed_tokens - accepted
        return Usage(
            self._num_prompt_tokens, self._num_generated, sum(cached.values()), num_reasoning, accepted, rejected
        )

    def set_deadline(self, deadline_s: float, late: DeadlineExceeded) -> None:
        """End the sequences at `deadline_s`, by the clock of the loop; the reader then gets `late`."""
        self.deadline_s = deadline_s
        self._deadline = asyncio.get_running_loop().call_at(deadline_s, self._feed.fail, late)

    def set_budget(self, budget: TokenBudget) -> None:
        """Count all generated tokens in this budget, also after a stop string, or after the reader has disconnected."""
        self._budget = budget

    def show_prompts(self, prompts: Mapping[int, ShownPrompt]) -> None:
        """Begin the response of these choices with their prompt. `prompts`: by the index of the choice."""
        self._shown_prompts = dict(prompts)

    def __aiter__(self) -> "GenerationStream":
        return self

    async def __anext__(self) -> TextDelta:
        try:
            while not self._pieces:
                if self._unread:
                    await asyncio.sleep(0)
                    arrived = [self._unread.popleft() for _ in range(min(self._at_once, len(self._unread)))]
                else:
                    arrived = await self._feed.read()
                    if not arrived:
                        raise StopAsyncIteration
                    if self._budget is not None:
                        self._budget.use(len(arrived))
                    if len(arrived) > self._at_once:
                        self._unread.extend(arrived[self._at_once :])
                        del arrived[self._at_once :]
                for each in arrived:
                    if self._shown_prompts:
                        await self._show_prompt(each.token.sequence_id)
                    self._add_token(each)
        except BaseException:
            self.close()
            raise
        return self._pieces.popleft()

    def ready(self) -> list[TextDelta]:
        pieces = list(self._pieces)
        self._pieces.clear()
        return pieces

    async def collect(self) -> GenerateAnswer:
        choices = join_pieces([piece async for piece in self], len(self._texts))
        return GenerateAnswer(choices, self.usage)

    def close(self) -> None:
        self._pieces.clear()
        self._unread.clear()
        if self._budget is not None and self._feed.num_unread:
            self._budget.use(self._feed.num_unread)
        self._feed.close()
        if self._is_closed:
            return
        self._is_closed = True
        if self._deadline is not None:
            self._deadline.cancel()
        now_s = time.perf_counter()
        if self._feed.begun_s is None:
            self._timings.queued(self._opened_s, now_s)
        else:
            # On a busy machine the worker begins the sequence before the event loop gets here.
            begun_s = max(self._feed.begun_s, self._opened_s)
            self._timings.queued(self._opened_s, begun_s)
            self._timings.computed(begun_s, now_s)

    async def _show_prompt(self, sequence_id: int) -> None:
        """Add the prompt of a sequence whose first token has arrived, a part in each iteration of the event loop."""
        index = sequence_id - self._first_id
        shown = self._shown_prompts.pop(index, None)
        if shown is None:
            return
        scores = self._feed.prompt_scores.pop(sequence_id, None)
        for piece in shown.pieces(index, scores):
            self._pieces.append(piece)
            await asyncio.sleep(0)

    def _add_token(self, arrived: ArrivedToken) -> None:
        generated_s, token = arrived
        index = token.sequence_id - self._first_id
        text = self._texts[index]
        if text.is_over:
            return  # a stop string ended the text before this token
        if token.token_id != NO_TOKEN:
            self._note_times(index, generated_s)
        piece = text.push(token)
        if piece.finish_reason is not None and token.finish_reason is None:
            self._feed.abort(token.sequence_id)
        if piece.text or piece.tokens or piece.finish_reason is not None:
            self._pieces.append(piece)

    def _note_times(self, index: int, generated_s: float) -> None:
        """Count a token of choice `index`, and record its time."""
        if not self._num_generated:
            self._times.observe_first(generated_s - self._timings.started_s)
        self._num_generated += 1
        previous_s = self._last_token_s[index]
        self._last_token_s[index] = generated_s
        if previous_s is not None:
            self._times.observe_next(generated_s - previous_s)
