"""Sequences that join, leave, fail and die in whatever order: each reader gets its own tokens and one end."""

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

from frameworks.errors import Draining, InvalidInput, ModelFailed, OutOfMemory, Overloaded
from frameworks.generation.types import GeneratedToken
from frameworks.scheduling.steps import token_feed
from frameworks.scheduling.steps.dispatcher import StepDispatcher
from frameworks.scheduling.steps.token_feed import TokenFeed
from frameworks.scheduling.steps.worker import StepCounts, StepWorker
from tests.frameworks.scheduling.steps.stepping import asked
from tests.support.loops import lanes_end, soon
from tests.support.step_models import END, EchoModel, echo

PROMPTS = ["a", "ab", "xyz", "end\0", "\0", "abcd\1"]
LENGTHS = st.one_of(st.integers(1, 60), st.just(3000))
LONG = 1000
UNREAD = 25
CHOICES = st.integers(0, 1000)


@dataclass
class Opened:
    """A feed and what was read of it. `wanted`: by sequence what comes of it if nothing comes between."""

    feed: TokenFeed
    wanted: dict[int, bytes]
    begun: list[None]
    tokens: list[GeneratedToken] = field(default_factory=list)
    let_go: set[int] = field(default_factory=set)
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
        """Every sequence's tokens are its own, in order, and all of them where nothing came between."""
        assert self.ends == 1, "it ends exactly once, and nothing runs on"
        failing = any(text.endswith(b"\1") for text in self.wanted.values())
        expected = (OutOfMemory, ModelFailed, Overloaded, Draining, *([InvalidInput] if failing else []))
        assert self.error is None or isinstance(self.error, expected)
        for sequence_id, text in self.wanted.items():
            own = [token for token in self.tokens if token.sequence_id == sequence_id]
            came = bytes(token.token_id for token in own)
            assert text.startswith(came)
            assert [token.finish_reason for token in own[:-1]] == [None] * len(own[:-1])
            if self.error is None and sequence_id not in self.let_go:
                assert came == text
                assert own[-1].finish_reason == ("stop" if text.endswith(b"\0") else "length")
        if self.tokens:
            assert self.begun == [None]
        assert {token.sequence_id for token in self.tokens} <= self.wanted.keys()


class AnyOrder(RuleBasedStateMachine):
    """The loop turns only within a rule; the threads go on beside it unless they are hindered."""

    @initialize(slots=st.integers(1, 3), preempt_at=st.sampled_from([None, 1, 3]), hindered=st.booleans())
    def open_the_house(self, slots: int, preempt_at: int | None, hindered: bool) -> None:
        self.capture = capture_logs()
        self.logs = self.capture.__enter__()
        self.bound = patch.object(token_feed, "MAX_UNREAD_TOKENS", UNREAD)
        self.bound.__enter__()
        self.runner = asyncio.Runner()
        self.unhindered = threading.Event()
        self.unhindered.set()
        self.allowed = threading.Semaphore(0)
        self.troubles: list[BaseException] = []
        self.ids = count(1)
        self.opened: list[Opened] = []
        self.counts = StepCounts()
        self.read_tokens = 0
        self.is_over = False
        self.slots, self.preempt_at = slots, preempt_at
        self.raise_house()
        if hindered:
            self.hinder()

    def raise_house(self) -> None:
        """Two instances."""
        self.models = [EchoModel(self.behave, slots=self.slots, preempt_at=self.preempt_at) for _ in range(2)]

        async def workers() -> list[StepWorker]:
            return [StepWorker("m", model, self.counts) for model in self.models]

        self.workers = self.runner.run(workers())
        self.dispatcher = StepDispatcher("m", self.workers)

    def behave(self, prompts: list[str]) -> None:
        while not self.unhindered.is_set() and not self.allowed.acquire(timeout=0.005):
            pass
        if prompts and self.troubles:
            raise self.troubles.pop()

    def one(self, choice: int) -> Opened:
        """Of those that are open, if any is: what may be asked next must not depend on how quick the threads are."""
        return self.opened[choice % len(self.opened)] if self.opened else Opened(TokenFeed(lambda: None), {0: b""}, [])

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    @rule(
        sequences=st.lists(st.tuples(st.sampled_from(PROMPTS), LENGTHS), min_size=1, max_size=3),
        is_read_whole=st.booleans(),
    )
    def ask(self, sequences: list[tuple[str, int]], is_read_whole: bool) -> None:
        async def opening() -> None:
            requests = [
                asked(next(self.ids), prompt, max_tokens, is_read_whole=is_read_whole)
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
        """Somebody begins to read; others may never before the end."""
        opened = self.one(choice)

        async def reading() -> None:
            if opened.reader is None:
                opened.reader = asyncio.get_running_loop().create_task(opened.read_all())
            await asyncio.sleep(0)

        self.run(reading())

    @rule(choice=CHOICES, which=CHOICES)
    def let_go(self, choice: int, which: int) -> None:
        opened = self.one(choice)
        sequence_id = [*opened.wanted][which % len(opened.wanted)]

        async def aborting() -> None:
            opened.feed.abort(sequence_id)
            opened.feed.abort(sequence_id)

        opened.let_go.add(sequence_id)
        self.run(aborting())

    @rule(choice=CHOICES)
    def leave(self, choice: int) -> None:
        opened = self.one(choice)

        async def closing() -> None:
            opened.feed.close()

        opened.let_go |= opened.wanted.keys()
        self.run(closing())

    @rule(trouble=st.sampled_from([OutOfMemory, ModelFailed]))
    def fail_a_step(self, trouble: type[OutOfMemory] | type[ModelFailed]) -> None:
        self.troubles.append(trouble("a step failed"))

    @rule()
    def kill(self) -> None:
        self.troubles.append(SystemExit())

    @rule(gives_up=st.booleans())
    def end(self, gives_up: bool) -> None:
        """The workers end, at once or when their sequences have, and others take their place."""

        async def ending() -> None:
            self.is_over = True
            if gives_up:
                self.dispatcher.abort("the end")
                assert all(opened.feed.is_over for opened in self.opened)
            else:
                closing = asyncio.get_running_loop().create_task(self.dispatcher.close())
                await asyncio.sleep(0)
                self.closing.append(closing)

        self.closing: list[asyncio.Task[None]] = []
        self.run(ending())
        self.ask([("a", 3)], is_read_whole=True)
        self.settle()
        self.run(asyncio.wait_for(self.dispatcher.close(), 3))
        assert all(model.is_closed for model in self.models)
        assert all(task.done() for task in self.closing)
        self.is_over = False
        self.raise_house()

    @rule()
    def turn(self) -> None:
        self.run(asyncio.sleep(0.001))

    @rule()
    def hinder(self) -> None:
        self.unhindered.clear()

    @rule(steps=st.integers(1, 8))
    def go_on(self, steps: int) -> None:
        """So many steps, where they are hindered."""
        self.allowed.release(steps)
        self.turn()

    @rule()
    def settle(self) -> None:
        """Everybody reads to the end; nothing is left."""
        self.unhindered.set()
        for choice, opened in enumerate(self.opened):
            self.read(choice)
            for which, text in enumerate(opened.wanted.values()):
                if len(text) > LONG:
                    self.let_go(choice, which)
        readers = [opened.reader for opened in self.opened if opened.reader is not None]
        if readers:
            _, hanging = self.run(asyncio.wait(readers, timeout=3))
            assert not hanging, "nobody is left waiting"
        self.run(soon(lambda: not self.dispatcher.is_running))
        for opened in self.opened:
            opened.check()
            self.read_tokens += len(opened.tokens)
        assert self.read_tokens <= self.counts.tokens
        # Whatever failed here is of the domain; what is not is logged with its frames.
        assert [entry for entry in self.logs if entry["event"] == "sequences failed" and "exc_info" in entry] == []
        self.opened.clear()
        for worker, model in zip(self.workers, self.models, strict=True):
            assert worker.num_sequences == 0
            assert worker.is_dead or not model.has_work
            worker.check_integrity()

    @invariant()
    def what_waits_for_readers_is_bounded(self) -> None:
        for opened in self.opened if hasattr(self, "opened") else []:
            is_read = opened.feed._waiter is not None
            assert is_read or len(opened.feed._unread) <= UNREAD * len(opened.wanted) + 1

    def teardown(self) -> None:
        if not hasattr(self, "workers"):
            return
        try:
            self.settle()
            self.run(asyncio.wait_for(self.dispatcher.close(), 3))
            assert lanes_end()
            assert all(model.is_closed for model in self.models)
        finally:
            self.unhindered.set()
            self.runner.close()
            self.bound.__exit__(None, None, None)
            self.capture.__exit__(None, None, None)


def _text(prompt: str, max_tokens: int) -> bytes:
    """What comes of a sequence, up to the byte that ends it, or at which it fails."""
    text = echo(prompt, max_tokens)
    ends = [text.index(end) + 1 for end in (bytes([END]), b"\1") if end in text]
    return text[: min(ends, default=max_tokens)]


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    phases=(Phase.reuse, Phase.generate),  # to shrink an order in which somebody hangs takes for ever
)
