"""An owner and further clients of one host: requests, ends of sessions, and the death of either side, in any order."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from structlog.testing import capture_logs

from frameworks.engine.process.wire.messages import (
    Answer,
    Cancel,
    Close,
    Closed,
    EndRequests,
    Failed,
    Free,
    Load,
    ToEngine,
)
from frameworks.engine.process.wire.serialization import answer_from_plain
from tests.support.engine_hosts import CPU, SETTINGS, ArrayModel, FakeSource, HostLink, array_rows, attached, hosted
from tests.support.loops import settle, soon, worker_threads_end

MAX_CLIENTS = 3
DAMAGED: list[Any] = [Free([10**6]), Load(CPU, SETTINGS), Answer(1, None, 0.0, 0.0)]

_choices = st.integers(0, 1000)


class Client:
    """One client, and what it expects. `open`: first number of the rows of its requests by their number."""

    def __init__(self, link: HostLink) -> None:
        self.link = link
        self.served = link.process._clients[-1]
        """Its side of the host."""
        self.open: dict[int, float] = {}
        self.cancelled: set[int] = set()
        self.is_refused = False
        """Whether it has ended its requests."""

    def read(self) -> None:
        """Check the answers; keep none of their tensors."""
        for message in self.link.messages:
            if isinstance(message, Failed):
                assert self.is_refused
                assert "was unloaded" in message.error.message
                self._end(message.id)
            elif isinstance(message, Answer):
                outputs: Any = answer_from_plain(message.answer)
                expected = self._end(message.id)
                assert expected is None or outputs["y"][0, 0] == 2 * expected
                del outputs
        self.link.frames.clear()

    def _end(self, number: int) -> float | None:
        """Note the only answer to a request. Its end may have been asked for meanwhile."""
        assert number in self.open or number in self.cancelled
        return self.open.pop(number, None)


class SharedHost(RuleBasedStateMachine):
    """Each request of a client that lives gets one answer, its own. A client that dies leaves nothing behind."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.model = ArrayModel(runs_by_shape=False)
        self.value = 0.0

    @initialize()
    def start(self) -> None:
        """Load the model."""
        self.logs = self.stack.enter_context(capture_logs())
        owner = self._run(self.stack.enter_async_context(hosted(FakeSource(self.model))))
        self._run(owner.load())
        self.owner = Client(owner)
        self.clients = [self.owner]
        self.num_tasks = self._run(_num_tasks())

    @precondition(lambda self: len(self.clients) <= MAX_CLIENTS)
    @rule()
    def attach(self) -> None:
        """Connect a further client."""
        self.clients.append(Client(self._run(attached(self.owner.link))))

    @rule(choice=_choices, rows=st.sampled_from([1, 2, 64, 200]), columns=st.sampled_from([4, 256]))
    def infer(self, choice: int, rows: int, columns: int) -> None:
        """Send a request, with or without shared memory."""
        client = self._client(choice)
        self.value += 1.0
        number = self._run(_call(lambda: client.link.infer(array_rows(rows, columns, self.value))))
        client.open[number] = self.value

    @rule(choice=_choices, which=_choices)
    def cancel(self, choice: int, which: int) -> None:
        """Cancel a request."""
        client = self._client(choice)
        if client.open:
            number = sorted(client.open)[which % len(client.open)]
            del client.open[number]
            client.cancelled.add(number)
            self._send(client, Cancel(number))

    @rule(rounds=st.integers(1, 20))
    def run(self, rounds: int) -> None:
        """Run some rounds of the loop."""
        for _ in range(rounds):
            self._run(asyncio.sleep(0))

    @rule()
    def wait(self) -> None:
        """All requests of clients that live are answered."""
        self._run(soon(self._is_answered))

    @precondition(lambda self: len(self.clients) > 1)
    @rule(choice=_choices)
    def end_requests(self, choice: int) -> None:
        """End the requests of a client."""
        client = self._further_client(choice)
        client.is_refused = True
        self._send(client, EndRequests())

    @precondition(lambda self: len(self.clients) > 1)
    @rule(choice=_choices)
    def close(self, choice: int) -> None:
        """Close a client in order: its requests are answered first."""
        client = self._further_client(choice)
        client.is_refused = True
        self._send(client, Close())
        self._run(soon(lambda: client.link.lost is not None))
        assert client.link.of(Closed)
        client.read()
        assert not client.open
        self._end(client)

    @precondition(lambda self: len(self.clients) > 1)
    @rule(choice=_choices, how=st.sampled_from(["client", "host", "damaged"]), damaged=st.sampled_from(DAMAGED))
    def kill(self, choice: int, how: str, damaged: Any) -> None:
        """Kill a client, or its side of the host, or let it send a damaged message."""
        client = self._further_client(choice)
        if how == "client":
            client.link.channel.fail("killed")
        elif how == "damaged":
            self._send(client, damaged)
        else:
            self._run(_call(lambda: client.served.channel.fail("killed")))
        self._run(soon(lambda: client.link.lost is not None))
        self._end(client)

    @invariant()
    def answers_are_right(self) -> None:
        """Each answer belongs to a request of its client."""
        for client in self.__dict__.get("clients", ()):
            client.read()

    def teardown(self) -> None:
        """The clients that live get their answers; no call, tensor or task is left, and every run was counted."""
        if "clients" in self.__dict__:
            self._run(soon(self._is_answered))
            process = self.owner.link.process
            for client in self.clients[1:]:
                self._run(_call(client.link.channel.close))
                client.link.tensors.close()
            self._run(soon(lambda: not any(each.calls for each in process._host.clients)))
            rows = [sum(sizes) for sizes in self.model.executed]  # type: ignore[arg-type]
            self._run(soon(lambda: sum(self.owner.link.counts.batches.sizes.elements()) == sum(rows)))
            self._run(soon(lambda: process.num_tensors_in_use == 0))
            self._run(soon(lambda: len(process._host.clients) == 1))
            assert self._run(_num_tasks()) == self.num_tasks
        self._run(self.stack.aclose())
        self._run(settle())
        assert worker_threads_end()
        self.loop.close()

    def _client(self, choice: int) -> Client:
        return self.clients[choice % len(self.clients)]

    def _further_client(self, choice: int) -> Client:
        return self.clients[1 + choice % (len(self.clients) - 1)]

    def _send(self, client: Client, message: ToEngine) -> None:
        self._run(_call(lambda: client.link.send(message)))

    def _end(self, client: Client) -> None:
        client.read()
        client.link.tensors.close()
        self.clients.remove(client)

    def _is_answered(self) -> bool:
        for client in self.clients:
            client.read()
        return not any(client.open for client in self.clients)

    def _run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)


async def _call(work: Any) -> Any:
    return work()


async def _num_tasks() -> int:
    return len(asyncio.all_tasks())


TestSharedHost = SharedHost.TestCase
TestSharedHost.settings = settings(max_examples=40, stateful_step_count=30)
