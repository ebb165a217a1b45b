"""Generate the tokens of the windows of one sound, each as a sequence of a generating model."""

import itertools
import math
import secrets
import time
from dataclasses import replace

from frameworks.core.errors import InvalidInput
from frameworks.engine.contract import Run
from frameworks.generation.sequences import NO_TOKEN, Alignment, GeneratedToken, SequenceRequest
from frameworks.generation.sources import SourcePrompt
from frameworks.generation.speech.spec import Features, SpeechSound, SpeechSpec
from frameworks.generation.speech.transcription import WindowText
from frameworks.generation.types import NOT_FORCED, BeamSearch, Sampling, TimestampRules
from frameworks.scheduling.steps.dispatcher import StepDispatcher
from frameworks.scheduling.steps.token_feed import TokenFeed

_SEEDS = 2**63
_sequence_ids = itertools.count(1)


class Windows:
    """Generate the tokens of windows of one sound: a sequence each."""

    def __init__(self, spec: SpeechSpec, dispatcher: StepDispatcher, run: Run, sound: SpeechSound) -> None:
        self._spec = spec
        self._dispatcher = dispatcher
        self._run = run
        self._source_tokens = sound.source_tokens
        self._options = sound.options
        self._seed = secrets.randbelow(_SEEDS) if sound.options.seed is None else sound.options.seed

    async def language_id(self, window: Features) -> int:
        """Return the token of the most likely language."""
        ids = tuple(sorted(self._spec.language_ids.values()))
        [token] = await self._tokens(window, self._spec.start_ids, 1, Sampling(temperature=0, allowed_ids=ids))
        return token.token_id

    async def no_speech_prob(self, window: Features, before: tuple[int, ...]) -> float | None:
        """Return the probability of no speech. `before`: the tokens before those that begin the text."""
        timestamps = self._spec.timestamps
        if timestamps is None:
            return None
        sampling = Sampling(temperature=0, allowed_ids=(timestamps.no_speech_id,), top_logprobs=0)
        [token] = await self._tokens(window, (*before, *self._spec.start_ids), 1, sampling)
        assert token.logprob is not None
        return math.exp(token.logprob)

    async def text(
        self, window: Features, decoder_prompt: tuple[int, ...], max_tokens: int, temperature: float
    ) -> WindowText:
        """Return the text of a window."""
        spec, options = self._spec, self._options
        sampling = replace(spec.generation.sampling, temperature=temperature, seed=self._seed)
        if spec.timestamps is not None:
            end_id = min(spec.generation.eos_token_ids)
            rules = TimestampRules(spec.timestamps.first_id, end_id, spec.timestamps.max_initial, options.is_timed)
            sampling = replace(sampling, timestamps=rules)
        if options.num_beams is not None:
            sampling = replace(sampling, beams=BeamSearch(options.num_beams) if options.num_beams > 1 else None)
        if temperature > 0 or options.logprob_threshold is not None:
            sampling = replace(sampling, beams=None)
        if sampling.beams is not None:
            self._check_beams(sampling.beams.num_beams, len(decoder_prompt) + max_tokens)
        elif options.needs_scores or options.logprob_threshold is not None:
            sampling = replace(sampling, top_logprobs=0)
        tokens = await self._tokens(window, decoder_prompt, max_tokens, sampling)
        logprobs = [token.logprob for token in tokens if token.logprob is not None]
        mean = sum(logprobs) / len(logprobs) if logprobs else None
        return WindowText(tuple(token.token_id for token in tokens), temperature, mean)

    def _check_beams(self, num_beams: int, num_tokens: int) -> None:
        """Raise InvalidInput for beams that do not fit the KV cache alone: such a search would never end."""
        spec = self._spec
        source, text = (-(-each // spec.block_tokens) for each in (self._source_tokens, num_tokens))
        if source + num_beams * text > spec.num_blocks:
            raise InvalidInput(
                "parameters.num_beams",
                f"expected beams that take at most {spec.num_blocks} blocks of the KV cache, got {num_beams} of "
                f"{num_tokens} tokens, which take {source + num_beams * text}; ask for fewer beams or tokens",
            )

    async def alignment(
        self, window: Features, decoder_prompt: tuple[int, ...], tokens: tuple[int, ...]
    ) -> Alignment | None:
        """Return the attention of the tokens of a text to the states of its window; None without tokens.

        As in transformers, the last token has none: it was not read by the model.
        """
        if not tokens:
            return None
        prompt = (*decoder_prompt, *tokens)
        feed = await self._read(window, prompt, 0, Sampling(temperature=0), is_aligned=True)
        [alignment] = feed.alignments.values()
        return alignment[:, len(decoder_prompt) :]

    async def _tokens(
        self, window: Features, decoder_prompt: tuple[int, ...], max_tokens: int, sampling: Sampling
    ) -> list[GeneratedToken]:
        """Return the tokens after a prompt of the decoder, with the one that ends them."""
        found: list[GeneratedToken] = []
        await self._read(window, decoder_prompt, max_tokens, sampling, found)
        return found

    async def _read(
        self,
        window: Features,
        decoder_prompt: tuple[int, ...],
        max_tokens: int,
        sampling: Sampling,
        found: list[GeneratedToken] | None = None,
        *,
        is_aligned: bool = False,
    ) -> TokenFeed:
        """Compute a sequence, and return its feed at its end. `found`: where its tokens are added."""
        run, spec = self._run, self._spec
        prompt: SourcePrompt = spec.prompt_of(window, self._source_tokens, decoder_prompt)
        request = SequenceRequest(
            next(_sequence_ids),
            prompt.token_ids,
            max_tokens,
            sampling,
            frozenset() if sampling.allowed_ids else spec.generation.eos_token_ids,
            priority=run.priority,
            arrived_s=time.perf_counter(),
            is_read_whole=True,
            tenant=run.permit.tenant,
            is_seeded=self._options.seed is not None,
            forced_tokens=NOT_FORCED if sampling.allowed_ids else spec.generation.forced_tokens,
            media=prompt.media,
            is_aligned=is_aligned,
        )
        feed = self._dispatcher.open([request], run.permit.begin)
        opened_s = time.perf_counter()
        try:
            while arrived := await feed.read():
                if found is not None:
                    found += [each.token for each in arrived if each.token.token_id != NO_TOKEN]
                if run.permit.token_budget is not None:
                    run.permit.token_budget.use(len(arrived))
        finally:
            feed.close()
            now_s = time.perf_counter()
            begun_s = now_s if feed.begun_s is None else max(feed.begun_s, opened_s)
            run.timings.queued(opened_s, begun_s)
            run.timings.computed(begun_s, now_s)
        return feed
