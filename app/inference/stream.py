"""Turn the tokens of the choices into pieces of text as they arrive."""

import asyncio
import time
from collections import deque

from app.observability.metrics import GenerationMetrics
from frameworks.errors import DeadlineExceeded
from frameworks.generation.text_stream import ChoiceText
from frameworks.generation.types import Choice, FinishReason, GenerateAnswer, Piece, TokenText, Usage
from frameworks.scheduling.steps.token_feed import ArrivedToken, TokenFeed
from frameworks.types import Timings


class GenerationStream:
    """A Generation, whose choices' pieces come in the order in which their tokens were generated.

    A reader that is cancelled, or hears of an error, leaves nothing running. Owned by the event loop.
    """

    def __init__(
        self,
        feed: TokenFeed,
        first_id: int,
        texts: list[ChoiceText],
        prompts: list[tuple[int, ...]],
        timings: Timings,
        metrics: GenerationMetrics,
    ) -> None:
        """`first_id`: of the sequence of choice 0, that of choice i being i more. `timings` and `metrics` are filled as
        tokens are read.
        """
        self._feed = feed
        self._first_id = first_id
        self._texts = texts
        self._num_choices = len(texts) // len(prompts)
        self._num_prompt_tokens = sum(map(len, prompts))
        self._num_generated = 0
        self._timings = timings
        self._metrics = metrics
        self._opened_s = time.perf_counter()
        self._last_of_choice_s: list[float | None] = [None] * len(texts)
        self._pieces: deque[Piece] = deque()
        self._deadline: asyncio.TimerHandle | None = None
        self._is_settled = False

    @property
    def usage(self) -> Usage:
        cached: dict[int, int] = {}
        for sequence_id, num_tokens in self._feed.cached_tokens.items():
            # Of a prompt's choices all but the first find it known.
            cached.setdefault((sequence_id - self._first_id) // self._num_choices, num_tokens)
        return Usage(self._num_prompt_tokens, self._num_generated, sum(cached.values()))

    def end_at(self, deadline_s: float, late: DeadlineExceeded) -> None:
        """Fail the stream with this error at a time of the loop's clock."""
        self._deadline = asyncio.get_running_loop().call_at(deadline_s, self._feed.fail, late)

    def __aiter__(self) -> "GenerationStream":
        return self

    async def __anext__(self) -> Piece:
        try:
            while not self._pieces:
                arrived = await self._feed.read()
                if not arrived:
                    raise StopAsyncIteration
                for each in arrived:
                    self._take(each)
        except BaseException:
            self.close()
            raise
        return self._pieces.popleft()

    def ready(self) -> list[Piece]:
        pieces = list(self._pieces)
        self._pieces.clear()
        return pieces

    async def whole(self) -> GenerateAnswer:
        texts: list[list[str]] = [[] for _ in self._texts]
        tokens: list[list[TokenText]] = [[] for _ in self._texts]
        reasons: list[FinishReason | None] = [None for _ in self._texts]
        async for piece in self:
            texts[piece.index].append(piece.text)
            tokens[piece.index] += piece.tokens
            reasons[piece.index] = piece.finish_reason
        choices = []
        for parts, own, reason in zip(texts, tokens, reasons, strict=True):
            assert reason is not None, "closed while it was waited for"
            choices.append(Choice("".join(parts), reason, tuple(own)))
        return GenerateAnswer(choices, self.usage)

    def close(self) -> None:
        self._pieces.clear()
        self._feed.close()
        if self._is_settled:
            return
        self._is_settled = True
        if self._deadline is not None:
            self._deadline.cancel()
        now_s = time.perf_counter()
        if self._feed.begun_s is None:
            self._timings.queue_s += now_s - self._opened_s
        else:
            # On a busy machine the worker begins the sequence before the event loop gets here.
            begun_s = max(self._feed.begun_s, self._opened_s)
            self._timings.queue_s += begun_s - self._opened_s
            self._timings.compute_s += now_s - begun_s

    def _take(self, arrived: ArrivedToken) -> None:
        at_s, token = arrived
        index = token.sequence_id - self._first_id
        text = self._texts[index]
        if text.is_over:
            return  # it came behind a stop string
        if not self._num_generated:
            self._metrics.time_to_first_token_seconds.observe(at_s - self._timings.started_s)
        self._num_generated += 1
        before_s = self._last_of_choice_s[index]
        self._last_of_choice_s[index] = at_s
        if before_s is not None:
            self._metrics.inter_token_seconds.observe(at_s - before_s)
        piece = text.push(token)
        if piece.finish_reason is not None and token.finish_reason is None:
            self._feed.abort(token.sequence_id)
        if piece.text or piece.tokens or piece.finish_reason is not None:
            self._pieces.append(piece)
