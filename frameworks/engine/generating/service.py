"""Start text generation for a decoded request: tokenize its prompts, check the limits, submit its sequences."""

import asyncio
import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from frameworks.core.errors import DeadlineExceeded, InvalidInput
from frameworks.core.text_lengths import TextLimit
from frameworks.core.timings import Timings
from frameworks.engine.adapter_uses import AdapterUse
from frameworks.engine.contract import Run, TokenTimes
from frameworks.engine.generating.sequences import PreparedPrompts, choice_texts, sequences_of, shown_prompts
from frameworks.engine.generating.stream import GenerationStream
from frameworks.engine.generation_limits import (
    check_options_of_source,
    check_prompt_logprobs,
    field_of,
    without_beams,
)
from frameworks.engine.images import ConversationImages, HeldImages
from frameworks.engine.threads import EngineThreads, size_of_prompt
from frameworks.generation.media import PromptMedia
from frameworks.generation.sequences import TokenMatcher
from frameworks.generation.text.bad_words import TokenIds, bad_sequences
from frameworks.generation.text.marked_stream import ends_with_opening
from frameworks.generation.text.stop_strings import StopStrings
from frameworks.generation.text.tokenizer import GenerationTokenizer
from frameworks.generation.types import Conversation, GenerateRequest, Prompt
from frameworks.runtime import StepModel
from frameworks.scheduling.steps.dispatcher import StepDispatcher
from frameworks.text.tokens import TokenizeAnswer, TokenizeRequest

# Up to these sizes, tokenizing costs less than a switch to a thread and back.
_MAX_SHORT_PROMPTS = 4
_MAX_SHORT_CHARACTERS = 1000
_MAX_SHORT_STOPS = 256


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
        sequences = sequences_of(request, prepared, model.spec.generation, run, in_pieces, use.number if use else 0)
        budget = run.permit.token_budget
        if budget is not None:
            await budget.start(sum(map(len, prepared.prompts)))
        generation = GenerationStream(
            # The text that is still to be sent needs no model.
            self._dispatcher.open(sequences, run.permit.begin_text, ends.release),
            sequences[0].sequence_id,
            choice_texts(request, prepared, model),
            prepared.prompts,
            timings,
            times,
            request.sampling.top_logprobs,
        )
        options = request.prompt_options
        if options.is_echoed or options.top_logprobs is not None:
            generation.show_prompts(shown_prompts(request, prepared, model.tokenizer))
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
    ) -> PreparedPrompts:
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
        return PreparedPrompts(ids, matcher, search, is_opened, echoes, bad, media)

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
