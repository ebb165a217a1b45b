"""Start text generation for a decoded request: tokenize its prompts, check the limits, submit its sequences."""

import asyncio
import itertools
import secrets
import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import NamedTuple

from frameworks.core.errors import DeadlineExceeded, InvalidInput
from frameworks.core.text_lengths import TextLimit
from frameworks.core.timings import Timings
from frameworks.engine.adapter_uses import AdapterUse
from frameworks.engine.contract import Run, TokenTimes
from frameworks.engine.generation_limits import (
    check_beams,
    check_options_of_source,
    check_prompt_logprobs,
    check_source,
    field_of,
    max_tokens_of,
    without_beams,
)
from frameworks.engine.images import ConversationImages, HeldImages
from frameworks.engine.prompt_echo import ShownPrompt
from frameworks.engine.stream import GenerationStream
from frameworks.engine.threads import EngineThreads, size_of_prompt
from frameworks.generation.media import PromptMedia
from frameworks.generation.sequences import SequenceRequest, TokenMatcher
from frameworks.generation.text.bad_words import TokenIds, bad_sequences, ngrams_of
from frameworks.generation.text.marked_stream import MarkedStream, ReasoningCount, ends_with_opening
from frameworks.generation.text.stop_strings import StopStrings
from frameworks.generation.text.text_stream import ChoiceText
from frameworks.generation.text.tokenizer import GenerationTokenizer, TokenStream
from frameworks.generation.tools.formats import THINK
from frameworks.generation.types import NOT_FORCED, Conversation, ForcedTokens, GenerateRequest, GenerationSpec, Prompt
from frameworks.runtime import StepModel
from frameworks.scheduling.steps.dispatcher import StepDispatcher
from frameworks.text.tokens import TokenizeAnswer, TokenizeRequest

# Up to these sizes, tokenizing costs less than a switch to a thread and back.
_MAX_SHORT_PROMPTS = 4
_MAX_SHORT_CHARACTERS = 1000
_MAX_SHORT_STOPS = 256
# A text may complete a character that the prompt begins. Special tokens between them have no text.
_MAX_TOKENS_BEFORE = 64
_SEEDS = 2**63

_sequence_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class _PreparedPrompts:
    """Token ids of each prompt, the compiled constraint, and the search for the stop strings. `is_opened`: the first
    prompt ends with `<think>`. `echoes`: the text of each prompt that is echoed. `bad_sequences`: the tokens of the bad
    words. `media`: the images of the only prompt.
    """

    prompts: list[tuple[int, ...]]
    matcher: TokenMatcher | None
    stops: StopStrings | None
    is_opened: bool = False
    echoes: tuple[str, ...] = ()
    bad_sequences: tuple[TokenIds, ...] = ()
    media: PromptMedia | None = None


class GenerationService:
    """Begin the texts of one model. Owned by the event loop."""

    def __init__(self, model: StepModel, dispatcher: StepDispatcher, name: str, threads: EngineThreads) -> None:
        """`threads`: prepare long prompts, and compile constraints."""
        self._model = model
        self._dispatcher = dispatcher
        self._name = name
        self._threads = threads
        self._images = ConversationImages(model, threads)

    async def begin(
        self,
        run: Run,
        request: GenerateRequest,
        times: TokenTimes,
        left_s: float | None,
        in_pieces: bool,
        use: AdapterUse | None = None,
    ) -> GenerationStream:
        """Begin to generate text for a request that `check_request` accepted, see Engine.generate. `use`: of its
        adapter; it is released when the last sequence has ended; where this raises, by the caller.
        """
        prompt = request.prompts[0]
        if not isinstance(prompt, Conversation) or not prompt.has_images:
            return await self._begin(run, request, times, left_s, in_pieces, _Ends(run, use, None))
        held = self._images.held()
        try:
            return await self._begin(run, request, times, left_s, in_pieces, _Ends(run, use, held))
        except BaseException:
            held.release()
            raise

    async def tokenize(self, run: Run, request: TokenizeRequest) -> TokenizeAnswer:
        """Return the tokens that a text after a conversation with images would follow; the model does not run.

        Raises InvalidInput, Overloaded.
        """
        model, conversation = self._model, request.prompt
        assert isinstance(conversation, Conversation)
        assert model.spec.generation is not None
        run.permit.begin()
        max_tokens = model.spec.generation.max_context_tokens
        held = self._images.held()
        started_s = time.perf_counter()
        try:
            limit = model.tokenizer.limit(max_tokens).to_list()
            ids, _ = await self._images.prepare(conversation, limit, max_tokens, held, run.timings)
        finally:
            held.release()
            run.timings.computed(started_s, time.perf_counter())
        strings = model.tokenizer.token_strings(ids) if request.with_strings else None
        return TokenizeAnswer(ids, strings, max_tokens)

    async def _begin(
        self,
        run: Run,
        request: GenerateRequest,
        times: TokenTimes,
        left_s: float | None,
        in_pieces: bool,
        ends: "_Ends",
    ) -> GenerationStream:
        model, timings, use = self._model, run.timings, ends.use
        loop = asyncio.get_running_loop()
        begun_s = time.perf_counter()
        deadline_s = None if left_s is None else loop.time() + left_s
        try:
            async with asyncio.timeout_at(deadline_s):
                prepared = await self._prepare(model, request, ends.images, timings)
        except TimeoutError:
            raise self._too_late() from None
        finally:
            timings.decoded(begun_s, time.perf_counter())
        if deadline_s is not None and loop.time() >= deadline_s:
            raise self._too_late()
        assert model.spec.generation is not None
        if model.spec.generation.source is not None:
            request = without_beams(request)
        sequences = _sequences(request, prepared, model.spec.generation, run, in_pieces, use.number if use else 0)
        budget = run.permit.token_budget
        if budget is not None:
            await budget.start(sum(map(len, prepared.prompts)))
        generation = GenerationStream(
            # The text that is still to be sent needs no model.
            self._dispatcher.open(sequences, run.permit.begin_text, ends.release),
            sequences[0].sequence_id,
            _choice_texts(request, prepared, model),
            prepared.prompts,
            timings,
            times,
            request.sampling.top_logprobs,
        )
        options = request.prompt_options
        if options.is_echoed or options.top_logprobs is not None:
            generation.show_prompts(_shown_prompts(request, prepared, model.tokenizer))
        if budget is not None and sequences[0].max_tokens:
            generation.set_budget(budget)
        if deadline_s is not None:
            generation.set_deadline(deadline_s, self._too_late())
        return generation

    def _too_late(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            f'model "{self._name}" did not complete the text within timeout_ms; allow more time or ask for fewer tokens'
        )

    async def _prepare(
        self, model: StepModel, request: GenerateRequest, held: HeldImages | None, timings: Timings
    ) -> _PreparedPrompts:
        """Tokenize short prompts at once, all others on threads. Raises InvalidInput, Overloaded."""
        tokenizer, prompts, constraint = model.tokenizer, request.prompts, request.constraint
        assert model.spec.generation is not None
        # The text needs a token too.
        source = model.spec.generation.source
        max_tokens = model.spec.generation.max_context_tokens - (request.stopping.max_tokens != 0)
        if source is not None:
            max_tokens = source.max_tokens
            check_options_of_source(request)
        limit = tokenizer.limit(max_tokens)
        stops = request.stopping.strings
        suffix = request.prompt_options.suffix or ""
        media: PromptMedia | None = None
        if held is not None:
            if request.prompt_options.top_logprobs is not None:
                raise InvalidInput(
                    "prompt_logprobs", "expected none for a prompt with images, got some; omit the field"
                )
            assert isinstance(prompts[0], Conversation)
            prompt_ids, media = await self._images.prepare(prompts[0], limit, max_tokens, held, timings)
            ids = [prompt_ids]
        elif len(suffix) * len(prompts) <= _MAX_SHORT_CHARACTERS and _are_short(prompts):
            ids = _encode(tokenizer, request, limit, 0, len(prompts))
        else:
            _refuse_long(prompts, limit)
            encode = partial(_encode, tokenizer, request, limit)
            sizes = [size_of_prompt(prompt) + len(suffix) for prompt in prompts]
            ids = list(chain.from_iterable(await self._threads.tokenizers.run_pieces(sizes, encode)))
        if request.prompt_options.top_logprobs is not None:
            check_prompt_logprobs(request, request.prompt_options.top_logprobs, sum(map(len, ids)))
        echoes = await self._echoes(tokenizer, prompts) if request.prompt_options.is_echoed else ()
        is_opened = request.text_format.thinks and ends_with_opening(tokenizer, ids[0], request.text_format)
        matcher: TokenMatcher | None = None
        if constraint is not None:
            constraint = replace(constraint, after_opening=is_opened)
            loop = asyncio.get_running_loop()
            matcher = await loop.run_in_executor(self._threads.constraints, model.constrain, constraint)
        search: StopStrings | None = None
        if stops and sum(map(len, stops)) <= _MAX_SHORT_STOPS:
            search = StopStrings(stops)
        elif stops:
            search = await self._threads.tokenizers.run(0, StopStrings, stops)
        words = request.sampling.bad_words
        bad: tuple[TokenIds, ...] = ()
        if words:
            bad = await self._threads.tokenizers.run(sum(map(len, words)), bad_sequences, words, tokenizer)
        return _PreparedPrompts(ids, matcher, search, is_opened, echoes, bad, media)

    async def _echoes(self, tokenizer: GenerationTokenizer, prompts: tuple[Prompt, ...]) -> tuple[str, ...]:
        """Return the text of each prompt: as it was sent, or of its token ids."""

        def decoded() -> tuple[str, ...]:
            return tuple(tokenizer.decode(each) if isinstance(each, tuple) else str(each) for each in prompts)

        sizes = [len(each) if isinstance(each, tuple) else 0 for each in prompts]
        if sum(sizes) <= _MAX_SHORT_CHARACTERS:
            return decoded()
        return await self._threads.tokenizers.run(sum(sizes), decoded)


@dataclass(frozen=True, slots=True)
class _Ends:
    """Whose references end with the sequences of a generation. `use`: of an adapter. `images`: None for texts."""

    run: Run
    use: AdapterUse | None
    images: HeldImages | None

    def release(self) -> None:
        """End the references of a generation whose sequences have ended."""
        if self.images is not None:
            self.images.release()
        if self.use is not None:
            self.use.release()
        self.run.permit.release_version()


def _are_short(prompts: tuple[Prompt, ...]) -> bool:
    if len(prompts) > _MAX_SHORT_PROMPTS:
        return False
    characters = 0
    for prompt in prompts:
        if isinstance(prompt, Conversation):
            return False  # a chat template is a program of unknown cost
        characters += len(prompt)
    return characters <= _MAX_SHORT_CHARACTERS


def _refuse_long(prompts: tuple[Prompt, ...], limit: TextLimit) -> None:
    """Raise InvalidInput for a text that surely has too many tokens, before any prompt is tokenized."""
    if limit.ignores_space:
        return  # counted on a thread
    for index, prompt in enumerate(prompts):
        if isinstance(prompt, str) and limit.exceeds(prompt):
            raise limit.refusal(field_of(prompts, index), prompt)


def _encode(
    tokenizer: GenerationTokenizer, request: GenerateRequest, limit: TextLimit, start: int, stop: int
) -> list[tuple[int, ...]]:
    """Return the token ids of a part of the prompts. Raises InvalidInput; its field has the index of the prompt."""
    prompts = request.prompts
    encoded = []
    for index in range(start, stop):
        try:
            encoded.append(tokenizer.encode(prompts[index], limit, request.prompt_options))
        except InvalidInput as error:
            field = error.field if error.field == "suffix" else field_of(prompts, index)
            raise InvalidInput(field, error.reason) from error
    return encoded


def _sequences(
    request: GenerateRequest,
    prepared: _PreparedPrompts,
    spec: GenerationSpec,
    run: Run,
    in_pieces: bool,
    adapter_id: int,
) -> list[SequenceRequest]:
    """Return one sequence for each choice, with ids in order of their index.

    Choice i of each prompt has the seed of the request plus i, or a random seed plus i if the request has none. The
    texts of a prompt thus do not depend on the other prompts. Raises InvalidInput if a prompt exceeds the context.
    """
    stopping = request.stopping
    stop_token_ids = stopping.token_ids if stopping.ignore_eos else stopping.token_ids | spec.eos_token_ids
    # A constraint, or a text that no end token ends, decides itself which tokens it has.
    is_free = prepared.matcher is None and not stopping.ignore_eos
    arrived_s = time.perf_counter()
    sequences: list[SequenceRequest] = []
    for i in range(len(prepared.prompts)):
        prompt = _prompt_of(request, prepared, i, spec)
        max_tokens = max_tokens_of(request, i, prompt.text_ids, spec.max_context_tokens)
        if spec.source is not None:
            check_beams(request, spec.source, len(prepared.prompts[i]), max_tokens)
        seed = secrets.randbelow(_SEEDS) if request.sampling.seed is None else request.sampling.seed
        first = SequenceRequest(
            0,
            prompt.token_ids,
            max_tokens,
            request.sampling,
            stop_token_ids,
            stopping.min_tokens,
            priority=run.priority,
            arrived_s=arrived_s,
            # A stop string is found in time only if each token is delivered at once.
            is_read_whole=not (in_pieces or stopping.strings),
            tenant=run.permit.tenant,
            prompt_logprobs=request.prompt_options.top_logprobs,
            adapter_id=adapter_id,
            bad_sequences=(*prepared.bad_sequences, *prompt.ngrams),
            forced_tokens=_forced_tokens(request, spec) if is_free else NOT_FORCED,
            media=prompt.media,
        )
        sequences += [
            replace(
                first,
                sequence_id=next(_sequence_ids),
                sampling=replace(request.sampling, seed=(seed + choice) % _SEEDS),
                is_seeded=request.sampling.seed is not None,
                matcher=prepared.matcher.copy() if prepared.matcher else None,
            )
            for choice in range(request.num_choices)
        ]
    return sequences


class _SequencePrompt(NamedTuple):
    """The prompt of a sequence. `text_ids`: the tokens that its text follows. `ngrams`: that it must not have."""

    token_ids: tuple[int, ...]
    text_ids: tuple[int, ...]
    media: PromptMedia | None
    ngrams: tuple[TokenIds, ...] = ()


def _prompt_of(
    request: GenerateRequest, prepared: _PreparedPrompts, index: int, spec: GenerationSpec
) -> _SequencePrompt:
    """Return a prompt as the model reads it. Raises InvalidInput for one that its encoder does not read."""
    ids, source = prepared.prompts[index], spec.source
    if source is None:
        return _SequencePrompt(ids, ids, prepared.media)
    check_source(request, index, ids, source.max_tokens)
    token_ids, media = source.prompt_of(ids)
    return _SequencePrompt(token_ids, source.decoder_prompt, media, ngrams_of(ids, request.sampling.source_ngram_size))


def _forced_tokens(request: GenerateRequest, spec: GenerationSpec) -> ForcedTokens:
    """Return the forced tokens of a text: its language is the first one, where the request names it."""
    target = request.prompt_options.target_language
    if spec.source is None or target is None or target not in spec.source.target_ids:
        return spec.forced_tokens
    return replace(spec.forced_tokens, first=(spec.source.target_ids[target],))


def _choice_texts(request: GenerateRequest, prepared: _PreparedPrompts, model: StepModel) -> list[ChoiceText]:
    """Return the empty text of each choice, in order of their index."""
    texts = None if request.sampling.top_logprobs is None else model.tokenizer
    marks = request.text_format.marks
    shown = model.tokenizer.special_tokens(marks) if marks else {}
    beginning = THINK if prepared.is_opened else ""
    assert model.spec.generation is not None
    has_source = model.spec.generation.source is not None

    def stream(prompt_ids: tuple[int, ...]) -> TokenStream:
        # The text of a model with an encoder continues none.
        own = model.tokenizer.stream(() if has_source else prompt_ids[-_MAX_TOKENS_BEFORE:])
        return MarkedStream(own, shown, beginning) if marks else own

    return [
        ChoiceText(
            i * request.num_choices + choice,
            stream(prompt_ids),
            prepared.stops,
            texts,
            request.stopping.min_tokens,
            ReasoningCount() if request.text_format.thinks else None,
            lists_end=request.prompt_options.is_echoed,
        )
        for i, prompt_ids in enumerate(prepared.prompts)
        for choice in range(request.num_choices)
    ]


def _shown_prompts(
    request: GenerateRequest, prepared: _PreparedPrompts, tokenizer: GenerationTokenizer
) -> dict[int, ShownPrompt]:
    """Return the prompt of each choice, for a response that shows it, by the index of the choice."""
    return {
        i * request.num_choices + choice: ShownPrompt(
            prompt_ids, prepared.echoes[i] if prepared.echoes else "", request.prompt_options.top_logprobs, tokenizer
        )
        for i, prompt_ids in enumerate(prepared.prompts)
        for choice in range(request.num_choices)
    }
