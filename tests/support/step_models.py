"""The second implementation of StepModel: a small one whose tokens are bytes and which repeats its prompt."""

import codecs
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from frameworks.core.devices import Device, ModelNeeds
from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.core.text_lengths import TextLimit
from frameworks.generation.prompt_scores import DEFAULT_OPTIONS, PromptOptions
from frameworks.generation.sequences import GeneratedToken, SequenceRequest, StepResult, StepStats, TokenMatcher
from frameworks.generation.types import AdapterSpec, Constraint, Conversation, FinishReason, GenerationSpec, Prompt
from frameworks.runtime import LoadedModel, ModelEntry
from frameworks.types import ModelSpec
from tests.support.loops import HANGS_AFTER_S

END = 0
"""The byte that ends a text."""
FAILING = 1
"""A sequence whose next token is this byte fails; the others continue."""
VOCABULARY_SIZE = 256
CONTEXT = 4096
KV_BYTES_PER_TOKEN = 8


class ByteStream:
    """Decode bytes to characters incrementally."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(bytes([token_id]))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class ByteTokenizer:
    """Encode a text as its UTF-8 bytes. `behaviour` is called with each prompt first."""

    def __init__(self, behaviour: Callable[[Prompt], None] | None = None) -> None:
        self.behaviour = behaviour
        self.threads: list[str] = []

    def limit(self, num_tokens: int) -> TextLimit:
        return TextLimit(num_tokens, num_tokens)

    @property
    def special_ids(self) -> frozenset[int]:
        return frozenset()

    def encode(
        self, prompt: Prompt, limit: TextLimit | None = None, options: PromptOptions = DEFAULT_OPTIONS
    ) -> tuple[int, ...]:
        self.threads.append(threading.current_thread().name)
        if self.behaviour:
            self.behaviour(prompt)
        if isinstance(prompt, Conversation):
            return tuple("".join(f"{turn.role}: {turn.content}\n" for turn in prompt.messages).encode())
        if isinstance(prompt, str):
            if limit is not None and limit.exceeds(prompt):
                raise limit.refusal("prompt", prompt)
            return tuple(prompt.encode())
        if strangers := [token_id for token_id in prompt if not 0 <= token_id < VOCABULARY_SIZE]:
            raise InvalidInput("prompt", f"no token has the id {strangers[0]}")
        return prompt

    def ids_of(self, text: str, add_special_tokens: bool) -> bytes:
        return text.encode()

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        return [f"{token_id:02x}" for token_id in token_ids]

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode(errors="replace")

    def text_of(self, token_id: int) -> str:
        return self.decode((token_id,))

    def bytes_of(self, token_id: int) -> bytes:
        return bytes([token_id])

    def special_tokens(self, names: Iterable[str]) -> dict[int, str]:
        return {}

    def stream(self, prompt_ids: tuple[int, ...]) -> ByteStream:
        return ByteStream()


@dataclass(slots=True)
class TextMatcher:
    """Allow only one text, and its end."""

    text: bytes
    position: int = 0

    def fill_mask(self, mask: "np.ndarray[Any, np.dtype[np.int32]]") -> None:
        token_id = self.text[self.position] if self.position < len(self.text) else END
        mask[:] = 0
        mask.view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)

    def accept(self, token_id: int) -> None:
        self.position += 1

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        rest = (*self.text[self.position :], END)
        return next((i for i, pair in enumerate(zip(token_ids, rest, strict=False)) if pair[0] != pair[1]), len(rest))

    def copy(self) -> "TextMatcher":
        return TextMatcher(self.text, self.position)


@dataclass(slots=True, eq=False)
class _Sequence:
    request: SequenceRequest
    num_tokens: int = 0
    has_begun: bool = False


class StepGate:
    """A behaviour that allows a number of steps with sequences, and holds the next one."""

    def __init__(self, allowed: int) -> None:
        self._allowed = threading.Semaphore(allowed)
        self._is_open = threading.Event()

    def __call__(self, prompts: list[str]) -> None:
        if prompts and not self._is_open.is_set():
            assert self._allowed.acquire(timeout=HANGS_AFTER_S), "no further step was allowed"

    def allow_one(self) -> None:
        self._allowed.release()

    def open(self) -> None:
        """Allow all steps."""
        self._is_open.set()
        self._allowed.release()


class EchoModel:
    """Repeat the prompt until its END byte or max_tokens.

    Up to `slots` sequences run at once; the others are queued by priority. `behaviour` is called before each step with
    the running prompts; it may wait or raise. A sequence with `preempt_at` tokens is preempted once, if others are
    queued. All tokens but the last of a repeated prompt are prefix cache hits.
    """

    def __init__(
        self,
        behaviour: Callable[[list[str]], None] | None = None,
        slots: int = 4,
        size_bytes: int = 0,
        context: int = CONTEXT,
        preempt_at: int | None = None,
    ) -> None:
        self.spec = ModelSpec(
            "fake",
            "generate",
            (),
            (),
            "cpu",
            "uint8",
            size_bytes,
            generation=GenerationSpec(context, VOCABULARY_SIZE, frozenset({END}), has_chat_template=True),
        )
        self.tokenizer = ByteTokenizer()
        self.behaviour = behaviour
        self.preempt_at = preempt_at
        self.slots = slots
        self.running: dict[int, _Sequence] = {}
        self.waiting: dict[int, _Sequence] = {}
        self.steps: list[list[int]] = []
        """The sequence IDs of each step that was not empty."""
        self.empty_steps = 0
        self.given: list[SequenceRequest] = []
        self.aborted: list[int] = []
        self.warm_ups = 0
        self.idle_calls: list[str] = []
        """The thread of each call."""
        self.is_closed = False
        self.adapter_numbers: list[int] = []
        self.unloaded_adapters: list[int] = []
        self._seen: set[tuple[int, ...]] = set()
        self._stats = StepStats()
        self._users = 0

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def constrain(self, constraint: Constraint) -> TokenMatcher:
        if constraint.kind != "choice":
            raise InvalidInput("constraint", "is no choice")
        return TextMatcher(constraint.definition.encode())

    def adapter_bytes(self, folder: Path) -> int:
        """The name of the folder."""
        return int(folder.name)

    def load_adapter(self, name: str, folder: Path) -> AdapterSpec:
        self.adapter_numbers.append(len(self.adapter_numbers) + 1)
        return AdapterSpec(name, self.adapter_numbers[-1], 1, int(folder.name))

    def list_adapters(self, adapters: tuple[AdapterSpec, ...]) -> None:
        assert self.spec.generation is not None
        self.spec = replace(self.spec, generation=replace(self.spec.generation, adapters=adapters))

    def unload_adapter(self, number: int) -> None:
        assert all(each.request.adapter_id != number for each in (*self.running.values(), *self.waiting.values()))
        self.unloaded_adapters.append(number)

    def add(self, request: SequenceRequest) -> None:
        assert not self.is_closed, "called after close"
        assert request.prompt_ids
        assert request.max_tokens >= 1
        assert len(request.prompt_ids) + request.max_tokens <= self._context
        assert request.sequence_id not in self.running.keys() | self.waiting.keys()
        self.given.append(request)
        self.waiting[request.sequence_id] = _Sequence(request)

    def abort(self, sequence_id: int) -> None:
        assert not self.is_closed, "called after close"
        self.aborted.append(sequence_id)
        self.running.pop(sequence_id, None)
        self.waiting.pop(sequence_id, None)

    def step(self, held: Collection[str] = ()) -> StepResult:
        self._users += 1
        try:
            assert self._users == 1, "one thread at a time uses a model"
            assert not self.is_closed, "called after close"
            return self._step(held)
        finally:
            self._users -= 1

    def _step(self, held: Collection[str]) -> StepResult:
        preempted = self._preempt()
        while self.waiting and len(self.running) < self.slots:
            first = min(self.waiting, key=lambda i: self.waiting[i].request.priority)
            self.running[first] = self.waiting.pop(first)
        computed = {i: each for i, each in self.running.items() if each.request.tenant.name not in held}
        computed = computed or dict(self.running)
        if computed:
            self.steps.append([*computed])
        else:
            self.empty_steps += 1
        if self.behaviour and self.given:
            self.behaviour([self.tokenizer.decode(each.request.prompt_ids) for each in computed.values()])
        begun = [(i, self._begin(each)) for i, each in computed.items() if not each.has_begun]
        costs = Counter(each.request.tenant for each in computed.values())
        tokens = []
        failed: list[tuple[int, Exception]] = []
        for sequence_id, sequence in computed.items():
            token = _next_token(sequence)
            if token.token_id == FAILING:
                failed.append((sequence_id, InvalidInput("prompt", "came to nothing")))
            else:
                tokens.append(token)
            if token.token_id == FAILING or token.finish_reason is not None:
                del self.running[sequence_id]
        self._stats = self._collect_stats(begun, preempted)
        return StepResult(tokens, begun, failed, self._stats, len(computed), tuple(costs.items()))

    def warm_up(self) -> None:
        self.warm_ups += 1
        self._stats = StepStats(prompt_tokens=100, prefix_hit_tokens=10, preemptions=1)

    def on_idle(self) -> None:
        self.idle_calls.append(threading.current_thread().name)

    def close(self) -> None:
        assert not self.is_closed, "closed twice"
        self.is_closed = True

    @property
    def _context(self) -> int:
        assert self.spec.generation is not None
        return self.spec.generation.max_context_tokens

    def _preempt(self) -> int:
        back = [i for i, each in self.running.items() if each.num_tokens == self.preempt_at and self.waiting]
        for sequence_id in back:
            self.waiting[sequence_id] = self.running.pop(sequence_id)
        return len(back)

    def _begin(self, sequence: _Sequence) -> int:
        sequence.has_begun = True
        prompt = sequence.request.prompt_ids
        cached = len(prompt) - 1 if prompt in self._seen else 0
        self._seen.add(prompt)
        return cached

    def _collect_stats(self, begun: list[tuple[int, int]], preempted: int) -> StepStats:
        before = self._stats
        requests = {request.sequence_id: request for request in self.given}
        held = sum(len(each.request.prompt_ids) + each.num_tokens for each in self.running.values())
        return StepStats(
            running=len(self.running),
            waiting=len(self.waiting),
            kv_used_bytes=KV_BYTES_PER_TOKEN * held,
            kv_cached_bytes=KV_BYTES_PER_TOKEN,
            kv_total_bytes=KV_BYTES_PER_TOKEN * self._context * self.slots,
            prefix_hit_tokens=before.prefix_hit_tokens + sum(cached for _, cached in begun),
            prompt_tokens=before.prompt_tokens + sum(len(requests[i].prompt_ids) for i, _ in begun),
            preemptions=before.preemptions + preempted,
        )


def _next_token(sequence: _Sequence) -> GeneratedToken:
    request, position = sequence.request, sequence.num_tokens
    sequence.num_tokens += 1
    token_id = request.prompt_ids[position % len(request.prompt_ids)]
    if request.matcher is not None:
        mask = np.zeros(VOCABULARY_SIZE // 32, np.int32)
        request.matcher.fill_mask(mask)
        token_id = next(i for i in range(VOCABULARY_SIZE) if int(mask.view(np.uint32)[i // 32]) >> i % 32 & 1)
        request.matcher.accept(token_id)
    ends = token_id in request.stop_token_ids and position >= request.min_tokens
    reason: FinishReason | None = "stop" if ends else "length" if position + 1 == request.max_tokens else None
    asked = request.sampling.top_logprobs
    top = tuple((i, -0.5 - i) for i in range(asked or 0))
    return GeneratedToken(request.sequence_id, token_id, reason, not ends, None if asked is None else -0.5, top)


class EchoRegistry:
    """Load EchoModels and keep them in `made`. `on_load` is called before each load; it may wait or raise."""

    framework = "fake"

    def __init__(
        self, behaviour: Callable[[list[str]], None] | None = None, on_load: Callable[[], None] | None = None
    ) -> None:
        self.behaviour = behaviour
        self.on_load = on_load
        self.made: list[EchoModel] = []

    def needs(self, entry: ModelEntry, path: Path) -> ModelNeeds:
        return ModelNeeds(0, 0)

    def prepare(self, device: Device) -> None: ...

    def load(self, entry: ModelEntry, path: Path, device: Device) -> LoadedModel:
        if self.on_load:
            self.on_load()
        if path.name == "broken":
            raise InvalidModel(f"{path}: broken")
        instances = [self.make() for _ in range(entry.instances)]
        self.made += instances
        return instances

    def make(self) -> EchoModel:
        """Return one instance."""
        return EchoModel(self.behaviour)


def echo(prompt: str, num_tokens: int) -> bytes:
    """Return the tokens that an EchoModel generates for a prompt."""
    text = prompt.encode()
    return (text * (num_tokens // len(text) + 1))[:num_tokens]
