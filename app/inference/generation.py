"""Text generation between a decoded request and its answer in the making: prompts → tokens → sequences → pieces."""

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from app.inference.context import RunContext
from app.inference.stream import GenerationStream
from app.observability.metrics import GenerationMetrics
from frameworks.errors import DeadlineExceeded, InvalidInput
from frameworks.generation.stop_strings import StopStrings
from frameworks.generation.text_stream import ChoiceText
from frameworks.generation.types import (
    Conversation,
    GenerateRequest,
    GenerationSpec,
    Prompt,
    SequenceRequest,
    TokenMatcher,
)
from frameworks.runtime import StepModel

MOST_SEQUENCES = 128
"""Of one request: its prompts times the choices of each."""

# Tokenized in less time than the loop and a thread lose over handing it to and fro.
_FEW_PROMPTS = 4
_FEW_CHARACTERS = 1000
_SEEDS = 2**63

_sequence_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Token ids of each prompt, and what each text has to be."""

    prompts: list[tuple[int, ...]]
    matcher: TokenMatcher | None


class GenerationService:
    """Owned by the event loop."""

    def __init__(self, threads: ThreadPoolExecutor, metrics: Callable[[str], GenerationMetrics]) -> None:
        """`threads`: in which long prompts are tokenized. `metrics(model)`: where the times of tokens are added up."""
        self._threads = threads
        self._metrics = metrics

    async def begin(
        self, context: RunContext, request: GenerateRequest, left_s: float | None, in_pieces: bool
    ) -> GenerationStream:
        """As InferenceService.generate."""
        version, timings = context.version, context.timings
        context.permit.queue(version.model.requests)
        model, dispatcher = version.generating()
        _check(request)
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        deadline_s = None if left_s is None else started_s + left_s
        late = DeadlineExceeded(
            f'model "{version.model.name}" was not at the end of its text within timeout_ms; '
            "allow more time or ask for fewer tokens"
        )
        try:
            async with asyncio.timeout_at(deadline_s):
                prepared = await self._prepared(model, request)
        except TimeoutError:
            raise late from None
        finally:
            timings.decode_s += loop.time() - started_s
        if deadline_s is not None and loop.time() >= deadline_s:
            raise late
        assert model.spec.generation is not None
        sequences = _sequences(request, prepared, model.spec.generation, context.priority, in_pieces)
        answer = GenerationStream(
            dispatcher.open(sequences, context.permit.begin),
            sequences[0].sequence_id,
            _texts(request, prepared, model),
            prepared.prompts,
            timings,
            self._metrics(version.model.name),
        )
        if deadline_s is not None:
            answer.end_at(deadline_s, late)
        return answer

    async def _prepared(self, model: StepModel, request: GenerateRequest) -> _Prepared:
        """In a thread, unless it is soon done. Raises InvalidInput."""
        if request.constraint is None and _are_short(request.prompts):
            return _prepare(model, request)
        return await asyncio.get_running_loop().run_in_executor(self._threads, _prepare, model, request)


def _check(request: GenerateRequest) -> None:
    if request.constraint is not None and request.stopping.ignore_eos:
        raise InvalidInput("ignore_eos", "does not go with a constraint, whose end is the text's; leave it out")
    num_prompts = len(request.prompts)
    if not num_prompts:
        raise InvalidInput("prompt", "expected at least one prompt, got an empty list")
    if num_prompts * request.num_choices > MOST_SEQUENCES:
        raise InvalidInput(
            "n",
            f"{num_prompts} prompts with {request.num_choices} choices each are {num_prompts * request.num_choices} "
            f"texts; a request takes at most {MOST_SEQUENCES}, send several",
        )


def _are_short(prompts: tuple[Prompt, ...]) -> bool:
    if len(prompts) > _FEW_PROMPTS:
        return False
    characters = 0
    for prompt in prompts:
        if isinstance(prompt, Conversation):
            return False  # a template is a program
        characters += len(prompt)
    return characters <= _FEW_CHARACTERS


def _prepare(model: StepModel, request: GenerateRequest) -> _Prepared:
    prompts = [model.tokenizer.encode(prompt) for prompt in request.prompts]
    return _Prepared(prompts, None if request.constraint is None else model.constrain(request.constraint))


def _sequences(
    request: GenerateRequest, prepared: _Prepared, spec: GenerationSpec, priority: int, in_pieces: bool
) -> list[SequenceRequest]:
    """One for each choice, with ids in order of their index. Raises InvalidInput where one does not fit the context.

    Each choice of a prompt has a seed of its own. With a seed given it is that plus the choice's place among the
    prompt's: a prompt's texts are the same whatever others come with it.
    """
    stopping = request.stopping
    stop_token_ids = stopping.token_ids if stopping.ignore_eos else stopping.token_ids | spec.eos_token_ids
    arrived_s = time.perf_counter()
    sequences: list[SequenceRequest] = []
    for place, prompt_ids in enumerate(prepared.prompts):
        max_tokens = _max_tokens(request, place, prompt_ids, spec.max_context_tokens)
        seed = secrets.randbelow(_SEEDS) if request.sampling.seed is None else request.sampling.seed
        first = SequenceRequest(
            0,
            prompt_ids,
            max_tokens,
            request.sampling,
            stop_token_ids,
            stopping.min_tokens,
            priority=priority,
            arrived_s=arrived_s,
            # A stop string is to be found before much is computed behind it.
            is_read_whole=not (in_pieces or stopping.strings),
        )
        sequences += [
            replace(
                first,
                sequence_id=next(_sequence_ids),
                sampling=replace(request.sampling, seed=(seed + choice) % _SEEDS),
                matcher=prepared.matcher.copy() if prepared.matcher else None,
            )
            for choice in range(request.num_choices)
        ]
    return sequences


def _max_tokens(request: GenerateRequest, place: int, prompt_ids: tuple[int, ...], context: int) -> int:
    """How many tokens may follow the prompt at this place. Raises InvalidInput, with all lengths."""
    field = "messages" if isinstance(request.prompts[place], Conversation) else "prompt"
    if len(request.prompts) > 1:
        field += f"[{place}]"
    if not prompt_ids:
        raise InvalidInput(field, "expected a text to continue, got an empty one")
    left = context - len(prompt_ids)
    if left < 1:
        raise InvalidInput(
            field,
            f"{len(prompt_ids)} tokens, and the model's context holds {context}, prompt and text together; shorten it",
        )
    wanted = request.stopping.max_tokens
    if wanted is not None and request.stopping.may_be_fewer:
        wanted = min(wanted, left)
    if wanted is not None and not 1 <= wanted <= left:
        raise InvalidInput(
            "max_tokens",
            f"is {wanted}; the model's context holds {context} tokens, and {field} has {len(prompt_ids)} of them: ask "
            f"for 1 to {left}, or shorten it",
        )
    max_tokens = left if wanted is None else wanted
    if request.stopping.min_tokens > max_tokens:
        raise InvalidInput("min_tokens", f"is {request.stopping.min_tokens}, and at most {max_tokens} may come")
    return max_tokens


def _texts(request: GenerateRequest, prepared: _Prepared, model: StepModel) -> list[ChoiceText]:
    """The beginning of each choice's text, in order of their index."""
    stops = StopStrings(request.stopping.strings)
    text_of = None if request.sampling.top_logprobs is None else model.tokenizer.text_of
    return [
        ChoiceText(
            place * request.num_choices + choice,
            model.tokenizer.stream(prompt_ids),
            stops,
            text_of,
            request.stopping.min_tokens,
        )
        for place, prompt_ids in enumerate(prepared.prompts)
        for choice in range(request.num_choices)
    ]
