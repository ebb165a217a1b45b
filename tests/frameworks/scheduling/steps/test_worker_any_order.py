"""Test random orders of sequences, aborts, failures and deaths: each reader gets its own tokens and one end."""

import asyncio
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from unittest.mock import patch

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from structlog.testing import capture_logs

from frameworks.core.errors import Draining, InvalidInput, ModelFailed, OutOfMemory, Overloaded
from frameworks.generation.sequences import GeneratedToken
from frameworks.scheduling.steps import token_feed
from frameworks.scheduling.steps.counts import StepCounts
from frameworks.scheduling.steps.dispatcher import StepDispatcher
from frameworks.scheduling.steps.token_feed import TokenFeed
from frameworks.scheduling.steps.worker import StepWorker
from tests.frameworks.scheduling.steps.harness import sequence_request
from tests.support.loops import soon, worker_threads_end
from tests.support.step_models import END, EchoModel, echo

PROMPTS = ["a", "ab", "xyz", "end\0", "\0", "abcd\1"]
LENGTHS = st.one_of(st.integers(1, 60), st.just(3000))
LONG = 1000
UNREAD = 25
CHOICES = st.integers(0, 1000)


@dataclass
class Opened:
    """A feed and the tokens read from it. `wanted`: sequence id → its text if it is not interrupted."""

    feed: TokenFeed
    wanted: dict[int, bytes]
    begun: list[None]
    tokens: list[GeneratedToken] = field(default_factory=list)
    aborted: set[int] = field(default_factory=set)
    error: Exception | None = None
    ends: int = 0
    reader: "asyncio.Task[None] | None" = None

    async def read_all(self) -> None:
        try:
            while arrived := await self.feed.read():
                self.tokens += [each.token for each in arrived]
        except Exception as error:  # noqa: BLE001 - looked at later
            self.error = error
        self.ends += 1
        assert self.feed.is_over

    def check(self) -> None:
        """Check that each sequence has its own tokens in order, and all of them if it was not interrupted."""
        assert self.ends == 1, "it ends exactly once"
        failing = any(text.endswith(b"\1") for text in self.wanted.values())
        expected = (OutOfMemory, ModelFailed, Overloaded, Draining, *([InvalidInput] if failing else []))
        assert self.error is None or isinstance(self.error, expected)
        for sequence_id, text in self.wanted.items():
            own = [token for token in self.tokens if token.sequence_id == sequence_id]
            came = bytes(token.token_id for token in own)
            assert text.startswith(came)
            assert [token.finish_reason for token in own[:-1]] == [None] * len(own[:-1])
            if self.error is None and sequence_id not in self.aborted:
                assert came == text
                assert own[-1].finish_reason == ("stop" if text.endswith(b"\0") else "length")
        started = {token.sequence_id for token in self.tokens}
        assert started <= self.wanted.keys()
        assert len(started) <= len(self.begun) <= len(self.wanted), "each sequence begins once"


class AnyOrder(RuleBasedStateMachine):
    """The loop runs only within a rule; the threads run in parallel unless they are blocked."""

    @initialize(slots=st.integers(1, 3), preempt_at=st.sampled_from([None, 1, 3]), blocked=st.booleans())
    def open_workers(self, slots: int, preempt_at: int | None, blocked: bool) -> None:
        self.capture = capture_logs()
        self.logs = self.capture.__enter__()
        self.bound = patch.object(token_feed, "MAX_UNREAD_TOKENS", UNREAD)
        self.bound.__enter__()
        self.runner = asyncio.Runner()
        self.unblocked = threading.Event()
        self.unblocked.set()
        self.allowed = threading.Semaphore(0)
        self.errors: list[BaseException] = []
        self.ids = count(1)
        self.opened: list[Opened] = []
        self.counts = StepCounts()
        self.read_tokens = 0
        self.is_over = False
        self.slots, self.preempt_at = slots, preempt_at
        self.start_workers()
        if blocked:
            self.block()

    def start_workers(self) -> None:
        """Start two instances."""
        self.models = [EchoModel(self.behave, slots=self.slots, preempt_at=self.preempt_at) for _ in range(2)]

        async def workers() -> list[StepWorker]:
            return [StepWorker("m", model, self.counts) for model in self.models]

        self.workers = self.runner.run(workers())
        self.dispatcher = StepDispatcher("m", self.workers)

    def behave(self, prompts: list[str]) -> None:
        while not self.unblocked.is_set() and not self.allowed.acquire(timeout=0.005):
            pass
        if prompts and self.errors:
            raise self.errors.pop()

    def one(self, choice: int) -> Opened:
        """Choose an open feed, else an empty one: the available rules must not depend on the speed of the threads."""
        return self.opened[choice % len(self.opened)] if self.opened else Opened(TokenFeed(lambda: None), {0: b""}, [])

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    @rule(
        sequences=st.lists(st.tuples(st.sampled_from(PROMPTS), LENGTHS), min_size=1, max_size=3),
        is_read_whole=st.booleans(),
    )
    def open(self, sequences: list[tuple[str, int]], is_read_whole: bool) -> None:
        async def opening() -> None:
            requests = [
                sequence_request(next(self.ids), prompt, max_tokens, is_read_whole=is_read_whole)
                for prompt, max_tokens in sequences
            ]
            begun: list[None] = []
            try:
                feed = self.dispatcher.open(requests, lambda: begun.append(None))
            except ModelFailed:
                assert self.dispatcher.is_dead or self.is_over
                return
            texts = (_text(prompt, max_tokens) for prompt, max_tokens in sequences)
            self.opened.append(Opened(feed, dict(zip((r.sequence_id for r in requests), texts, strict=True)), begun))

        self.run(opening())

    @rule(choice=CHOICES)
    def read(self, choice: int) -> None:
        """Begin to read a feed; other feeds may be read only at the end."""
        opened = self.one(choice)

        async def reading() -> None:
            if opened.reader is None:
                opened.reader = asyncio.get_running_loop().create_task(opened.read_all())
            await asyncio.sleep(0)

        self.run(reading())

    @rule(choice=CHOICES, which=CHOICES)
    def aborted(self, choice: int, which: int) -> None:
        opened = self.one(choice)
        sequence_id = [*opened.wanted][which % len(opened.wanted)]

        async def aborting() -> None:
            opened.feed.abort(sequence_id)
            opened.feed.abort(sequence_id)

        opened.aborted.add(sequence_id)
        self.run(aborting())

    @rule(choice=CHOICES)
    def close(self, choice: int) -> None:
        opened = self.one(choice)

        async def closing() -> None:
            opened.feed.close()

        opened.aborted |= opened.wanted.keys()
        self.run(closing())

    @rule(error=st.sampled_from([OutOfMemory, ModelFailed]))
    def fail_a_step(self, error: type[OutOfMemory] | type[ModelFailed]) -> None:
        self.errors.append(error("a step failed"))

    @rule()
    def kill(self) -> None:
        self.errors.append(SystemExit())

    @rule(aborts=st.booleans())
    def end(self, aborts: bool) -> None:
        """End the workers, at once or after their sequences, and start new ones."""

        async def ending() -> None:
            self.is_over = True
            if aborts:
                self.dispatcher.abort("the end")
                assert all(opened.feed.is_over for opened in self.opened)
            else:
                closing = asyncio.get_running_loop().create_task(self.dispatcher.close())
                await asyncio.sleep(0)
                self.closing.append(closing)

        self.closing: list[asyncio.Task[None]] = []
        self.run(ending())
        self.open([("a", 3)], is_read_whole=True)
        self.settle()
        self.run(asyncio.wait_for(self.dispatcher.close(), 60))
        assert all(model.is_closed for model in self.models)
        assert all(task.done() for task in self.closing)
        self.is_over = False
        self.start_workers()

    @rule()
    def run_loop(self) -> None:
        self.run(asyncio.sleep(0.001))

    @rule()
    def block(self) -> None:
        self.unblocked.clear()

    @rule(steps=st.integers(1, 8))
    def allow_steps(self, steps: int) -> None:
        """Let blocked threads compute so many steps."""
        self.allowed.release(steps)
        self.run_loop()

    @rule()
    def settle(self) -> None:
        """Read every feed to its end, and check that nothing remains."""
        self.unblocked.set()
        for choice, opened in enumerate(self.opened):
            self.read(choice)
            for which, text in enumerate(opened.wanted.values()):
                if len(text) > LONG:
                    self.aborted(choice, which)
        readers = [opened.reader for opened in self.opened if opened.reader is not None]
        if readers:
            _, hanging = self.run(asyncio.wait(readers, timeout=60))
            assert not hanging, "every reader ends"
        self.run(soon(lambda: not self.dispatcher.is_running))
        for opened in self.opened:
            opened.check()
            self.read_tokens += len(opened.tokens)
        assert self.read_tokens <= self.counts.tokens
        # Only errors of the domain occurred; other errors are logged with their frames.
        assert [entry for entry in self.logs if entry["event"] == "sequences failed" and "exc_info" in entry] == []
        self.opened.clear()
        for worker, model in zip(self.workers, self.models, strict=True):
            assert worker.num_sequences == 0
            assert worker.is_dead or not model.has_work
            worker.check_integrity()

    @invariant()
    def unread_tokens_are_bounded(self) -> None:
        for opened in self.opened if hasattr(self, "opened") else []:
            is_read = opened.feed._waiter is not None
            assert is_read or len(opened.feed._unread) <= UNREAD * len(opened.wanted) + 1

    def teardown(self) -> None:
        if not hasattr(self, "workers"):
            return
        try:
            self.settle()
            self.run(asyncio.wait_for(self.dispatcher.close(), 60))
            assert worker_threads_end()
            assert all(model.is_closed for model in self.models)
        finally:
            self.unblocked.set()
            self.runner.close()
            self.bound.__exit__(None, None, None)
            self.capture.__exit__(None, None, None)


def _text(prompt: str, max_tokens: int) -> bytes:
    """Return the text of a sequence, up to the byte where it ends or fails."""
    text = echo(prompt, max_tokens)
    ends = [text.index(end) + 1 for end in (bytes([END]), b"\1") if end in text]
    return text[: min(ends, default=max_tokens)]


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=50,
    stateful_step_count=30,
    deadline=None,
    phases=(Phase.reuse, Phase.generate),  # shrinking an order that hangs would take too long
)
