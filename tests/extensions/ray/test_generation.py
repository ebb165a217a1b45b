"""Texts that replicas generate: streams, cancellations, lost replicas, prefixes."""

import pytest

from extensions.ray.ingress.group import ReplicaGroup
from frameworks.core.errors import DeadlineExceeded, ModelFailed
from frameworks.core.timings import Timings
from frameworks.engine.contract import Run
from frameworks.generation.types import GenerateRequest, Generation, Stopping
from frameworks.scheduling.admission import Permit, RequestLimit
from tests.extensions.ray.replicas import serving
from tests.support.loops import in_loop, soon, task
from tests.support.step_models import EchoModel, StepGate


class Times:
    """Implement TokenTimes."""

    def observe_first(self, seconds: float) -> None:
        assert 0.0 <= seconds < 600.0

    def observe_next(self, seconds: float) -> None:
        assert 0.0 <= seconds < 600.0


class Gates:
    """Make models whose steps wait; `allowed`: steps of each before that."""

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self.gates: list[StepGate] = []

    def __call__(self, _: str) -> EchoModel:
        self.gates.append(StepGate(self._allowed))
        return EchoModel(self.gates[-1])

    def open(self) -> None:
        for gate in self.gates:
            gate.open()


async def begin(
    group: ReplicaGroup, prompt: str = "hello", tokens: int = 5, left_s: float | None = None, in_pieces: bool = True
) -> Generation:
    """Begin to generate a text, which repeats the prompt."""
    run = Run(Permit(RequestLimit("the server", None, None)), Timings())
    request = GenerateRequest((prompt,), stopping=Stopping(max_tokens=tokens))
    return await group.generate(run, request, Times(), left_s, in_pieces)


async def text_of(generation: Generation) -> str:
    """Read a generation to its end."""
    return "".join([piece.text async for piece in generation])


@in_loop
async def test_text_is_streamed() -> None:
    gates = Gates(2)
    async with serving(1, gates) as (there, group):
        generation = await begin(group)
        assert (await anext(generation)).text == "h"
        assert (await anext(generation)).text == "e"
        gates.open()
        assert await text_of(generation) == "llo"
        assert generation.usage.tokens_generated == 5
        await soon(lambda: there.counts.generated.tokens == 5)


@in_loop
async def test_stream_of_lost_replica_ends_with_error() -> None:
    gates = Gates(2)
    async with serving(2, gates) as (there, group):
        generation = await begin(group)
        assert (await anext(generation)).text == "h"
        lost = next(each for each in there.replicas.values() if each.versions.num_calls)
        there.withdraw(lost)
        lost.die()
        with pytest.raises(ModelFailed, match="was lost"):
            await text_of(generation)
        gates.open()
        assert await text_of(await begin(group)) == "hello"


@in_loop
async def test_unread_text_of_lost_replica_is_generated_again() -> None:
    gates = Gates(2)
    async with serving(2, gates) as (there, group):
        collecting = task((await begin(group, in_pieces=False)).collect())
        lost = next(each for each in there.replicas.values() if each.versions.num_calls)
        there.withdraw(lost)
        lost.die()
        gates.open()
        answer = await collecting
        assert answer.choices[0].text == "hello"


@in_loop
async def test_closed_generation_ends_in_replica() -> None:
    gates = Gates(1)
    async with serving(1, gates) as (there, group):
        (replica,) = there.replicas.values()
        generation = await begin(group, tokens=1000)
        assert replica.versions.num_calls == 1
        generation.close()
        await soon(lambda: replica.versions.num_calls == 0)
        gates.open()


@in_loop
async def test_generation_waits_for_cold_start() -> None:
    gates = Gates(100)
    async with serving(1, gates, may_be_empty=True) as (there, group):
        (replica,) = there.replicas.values()
        there.withdraw(replica)
        await soon(lambda: group.num_replicas == 0)
        with pytest.raises(DeadlineExceeded):
            await begin(group, left_s=0.05)
        waiting = task(begin(group))
        await there.start()
        assert await text_of(await waiting) == "hello"


@in_loop
async def test_prompts_with_one_prefix_share_replica() -> None:
    gates = Gates(100_000)
    async with serving(3, gates) as (there, group):
        system = "You are a helpful assistant. " * 40
        for number in range(12):
            assert await text_of(await begin(group, f"{system}{number}", tokens=1)) == "Y"
        await soon(lambda: there.counts.generated.texts == 12)
        assert there.counts.generated.prefix_hit_tokens == 0
        used = [each for each in there.replicas.values() if each.versions.all[0].host.num_done]
        assert len(used) == 1
