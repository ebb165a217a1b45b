"""A generating model's step: schedule, compute, sample."""

import threading
import time
from collections.abc import Callable, Collection
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from frameworks.core.errors import InvalidModel, ModelFailed, RoundhouseError
from frameworks.generation.media import PromptMedia
from frameworks.generation.sequences import (
    GeneratedToken,
    SequenceRequest,
    StepResult,
    StepStats,
    TokenMatcher,
)
from frameworks.generation.types import AdapterSpec, Constraint, FinishReason, Sampling
from frameworks.pytorch.device_errors import RUN_ERRORS, empty_cache, map_device_error
from frameworks.pytorch.generation.decoders.adapters.set import AdapterSet
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS
from frameworks.pytorch.generation.sampling.beam_search import BeamSearcher, take_logits
from frameworks.pytorch.generation.sampling.prompt_scoring import PromptScorer
from frameworks.pytorch.generation.sampling.sampler import Sampled
from frameworks.pytorch.generation.sampling.state import SamplingState
from frameworks.pytorch.generation.sampling.top_k import TieCheck
from frameworks.pytorch.generation.speculation.speculating import states_of
from frameworks.pytorch.generation.step.parts import EndsWithModel, EngineParts, StepInFlight
from frameworks.pytorch.openmp import release_threads
from frameworks.scheduling.steps.sequence import Sequence, StepPlan
from frameworks.types import DEFAULT_PRIORITY, ModelSpec, ProductTrial, QuantizationReport

# Two prompts, prefilled together in parts, and a few decodes.
_WARM_UP_PROMPTS = (BLOCK_TOKENS + 3, 2)
_WARM_UP_TOKENS = 3
_NO_STATS = StepStats()
Computed = TypeVar("Computed")


class GeneratingModel:
    """A StepModel. One thread at a time uses it, except for `constrain`."""

    def __init__(
        self, parts: EngineParts, spec: ModelSpec, intra_op_threads: int, helpers: SequenceOf[EndsWithModel] = ()
    ) -> None:
        """`intra_op_threads`: CPU threads of a step. `helpers`: end with the model."""
        self.spec = spec
        # Adapters are listed by the event loop, and kernels noted by the thread that changes them.
        self._spec_lock = threading.Lock()
        self._helpers = helpers
        self.tokenizer = parts.tokenizer
        self.image_prompts = parts.image_prompts
        """Makes prompts of conversations with images; None: the model reads none. Thread-safe."""
        self.pipeline = parts.pipeline
        """Reads sounds, and finishes their texts; None for a model of texts. Thread-safe."""
        self._parts: EngineParts | None = parts
        self._masks = parts.masks
        self._block_bytes = parts.runner.block_bytes
        self._device = torch.device(spec.device.partition(",")[0])
        self._intra_op_threads = intra_op_threads
        self._sequences: dict[int, tuple[Sequence, SamplingState]] = {}
        self._failed: list[tuple[int, Exception]] = []
        self._in_flight: StepInFlight | None = None
        self._last_read_s = 0.0
        assert spec.decoder is not None
        self._vocabulary_size = spec.decoder.vocabulary_size
        self._scorer = PromptScorer(self._device, self._vocabulary_size)

    @property
    def has_work(self) -> bool:
        return bool(self._sequences or self._failed)

    def constrain(self, constraint: Constraint) -> TokenMatcher:
        """As StepModel.constrain."""
        return self._masks.compile(constraint)

    def adapter_bytes(self, folder: Path) -> int:
        """As StepModel.adapter_bytes."""
        return self._adapter_set.needed_bytes(folder)

    def load_adapter(self, name: str, folder: Path) -> AdapterSpec:
        """As StepModel.load_adapter."""
        return self._adapter_set.attach(name, folder)

    def list_adapters(self, adapters: tuple[AdapterSpec, ...]) -> None:
        """As StepModel.list_adapters."""
        with self._spec_lock:
            before = self.spec.generation
            assert before is not None
            bare_bytes = self.spec.memory_bytes - sum(each.memory_bytes for each in before.adapters)
            self.spec = replace(
                self.spec,
                generation=replace(before, adapters=adapters),
                memory_bytes=bare_bytes + sum(each.memory_bytes for each in adapters),
            )

    def note_products(self, products: tuple[ProductTrial, ...], report: QuantizationReport | None) -> None:
        """Note the kernels after the change to compiled ones. `report`: with them; None: as before. Any thread."""
        with self._spec_lock:
            quantization = report or self.spec.quantization
            self.spec = replace(self.spec, products=products, quantization=quantization, awaits_kernels=False)

    def unload_adapter(self, number: int) -> None:
        """As StepModel.unload_adapter."""
        self._adapter_set.detach(number)

    @property
    def _adapter_set(self) -> AdapterSet:
        adapters = self._open_parts.adapters
        if adapters is None:
            raise InvalidModel(
                "adapters: expected none for a model that runs with transformers' own caches; remove them"
            )
        return adapters

    def add(self, request: SequenceRequest) -> None:
        """As StepModel.add. An invalid request fails at the next step."""
        try:
            state = SamplingState(request, self._vocabulary_size)
        except RoundhouseError as error:
            self._failed.append((request.sequence_id, error))
            return
        self._sequences[request.sequence_id] = self._open_parts.scheduler.add(request), state
        if request.prompt_logprobs is not None:
            self._scorer.add(request)

    def abort(self, sequence_id: int) -> None:
        """As StepModel.abort."""
        known = self._sequences.pop(sequence_id, None)
        if known is not None:
            self._open_parts.scheduler.remove(known[0])
            if known[0].num_to_score:
                self._scorer.forget(sequence_id)
            if self._open_parts.speculation is not None:
                self._open_parts.speculation.forget(sequence_id)

    def step(self, held: Collection[str] = ()) -> StepResult:
        """As StepModel.step. On a device that samples, the next step is given to it before this one is read."""
        parts = self._open_parts
        if torch.get_num_threads() != self._intra_op_threads:
            # The number is a property of the calling thread, and every instance has a thread of its own.
            torch.set_num_threads(self._intra_op_threads)
        failed, self._failed = self._failed, []
        step, self._in_flight = self._in_flight or self._launch(parts, held), None
        if step is None:
            result = StepResult([], [], failed, _NO_STATS)
            self._work_on_image(parts, 0, result)
            result.stats = parts.scheduler.stats(self._block_bytes)
            return result
        plan = step.plan
        parts.scheduler.advance(plan)
        following = self._launch(parts, held) if self._expect_tokens(step) else None
        sampled = self._on_device(parts, plan, partial(step.read, parts.sampler))
        costs = tuple([(share.tenant, cost) for share, cost in plan.costs.items()])
        result = StepResult([], plan.begun, failed, _NO_STATS, len(plan.parts), costs)
        if plan.is_scored:
            result.scored = self._scorer.take_scored(plan.parts)
        self._take_all(parts, step, sampled, result)
        self._learn(parts, step, result)
        if parts.scheduler.wanted is not None:
            self._work_on_image(parts, sum(part.num_tokens == 1 for part in plan.parts), result)
        if self._sequences:
            self._in_flight = following
        result.stats = parts.scheduler.stats(self._block_bytes)
        return result

    def warm_up(self) -> None:
        """Run two short sequences to their ends, and read the vocabulary for constrained texts, which would delay the
        first of them and every response beside it. Raises InvalidModel, OutOfMemory.
        """
        spec, speech = self.spec.decoder, self.spec.speech
        assert spec is not None
        for number, wanted in enumerate(_WARM_UP_PROMPTS):
            length = max(1, min(wanted, spec.max_context_tokens - _WARM_UP_TOKENS))
            prompt = tuple((7 * number + position) % spec.vocabulary_size for position in range(length))
            # Kernels are compiled for each kind of sampling: the second text has a penalty.
            sampling = Sampling(top_p=0.9, presence_penalty=float(number), seed=number)
            media: PromptMedia | None = None
            if speech is not None:
                prompt, media = speech.example_prompt()
            elif spec.source is not None:
                prompt, media = spec.source.prompt_of(prompt)
            self.add(
                SequenceRequest(-1 - number, prompt, _WARM_UP_TOKENS, sampling, priority=DEFAULT_PRIORITY, media=media)
            )
        try:
            while self.has_work:
                for _, error in self.step().failed:
                    raise error
        except ModelFailed as error:
            raise InvalidModel(f"the model does not generate text: {error.message}") from error
        except RUN_ERRORS as error:
            raise InvalidModel(f"the model does not generate text: {error}") from error
        finally:
            for sequence_id in list(self._sequences):
                self.abort(sequence_id)
            self._open_parts.scheduler.clear_cache()
        self._masks.prepare()

    def on_idle(self) -> None:
        """As StepModel.on_idle."""
        if self._device.type == "cpu":
            release_threads()

    def close(self) -> None:
        """As StepModel.close."""
        for helper in self._helpers:
            helper.close()
        if self._parts is not None and self._parts.device_sampler is not None:
            self._parts.device_sampler.finish()
        if self._parts is not None and self._parts.tower is not None:
            self._parts.tower.close()
        # It holds the model, too.
        self._parts = self._in_flight = self.pipeline = None
        self._sequences.clear()
        empty_cache(self._device)

    def check_integrity(self) -> None:
        """Raise AssertionError if blocks of the KV cache are lost or held twice."""
        if self._parts is not None:
            self._parts.scheduler.check_integrity()
            if self._parts.speculation is not None:
                self._parts.speculation.check_integrity()

    @property
    def _open_parts(self) -> EngineParts:
        if self._parts is None:
            raise ModelFailed("the model is closed")
        return self._parts

    def _launch(self, parts: EngineParts, held: Collection[str]) -> StepInFlight | None:
        """Plan a step and give it to the device; None where there is nothing to compute."""
        if not self._sequences:
            return None
        started_s = time.perf_counter()
        plan = parts.scheduler.plan(held)
        if not plan.parts:
            # No copies either: with a device that samples, blocks that are released do not move.
            return None
        ties = None if parts.speculation is None else parts.speculation.propose(plan, self._sequences)
        return self._on_device(parts, plan, lambda: self._compute(parts, plan, ties, started_s))

    def _compute(self, parts: EngineParts, plan: StepPlan, ties: TieCheck | None, started_s: float) -> StepInFlight:
        logits = parts.runner.logits(plan)
        if parts.speculation is not None:
            states = states_of(plan, self._sequences, parts.speculation.draws)
        else:
            known = self._sequences
            completed = [part for part in plan.parts if part.completes and part.sequence.width == 1]
            states = [known[part.sequence.sequence_id][1] for part in completed]
        sampler = parts.device_sampler
        if sampler is not None:
            if not plan.is_scored and sampler.can_sample(states):
                rows = [part.sequence.unread_row for part in plan.parts if part.completes]
                return StepInFlight(plan, states, started_s, unread=sampler.launch(logits, states, rows))
            sampler.catch_up()
        if plan.is_scored:
            logits = self._scorer.score(plan.parts, logits)
        searches: dict[int, BeamSearcher | RoundhouseError | None] = {}
        if any([part.sequence.width > 1 for part in plan.parts]):  # noqa: C419 - a list is faster, for each step
            logits, searches = self._search(parts, plan, logits)
        return StepInFlight(plan, states, started_s, logits=logits, ties=ties, searches=searches)

    def _search(
        self, parts: EngineParts, plan: StepPlan, logits: torch.Tensor
    ) -> tuple[torch.Tensor, dict[int, BeamSearcher | RoundhouseError | None]]:
        """Continue the beam searches of a step. Return the logits of the others, and the searches that ended."""
        found: dict[int, BeamSearcher | RoundhouseError | None] = {}
        others: list[torch.Tensor] = []
        first = 0
        for part in plan.parts:
            sequence = part.sequence
            rows = part.num_logits if sequence.cache is None else sequence.width
            own = logits[first : first + rows]
            first += rows
            if sequence.width == 1:
                others.append(own)
            elif part.completes:
                try:
                    state = self._sequences[sequence.sequence_id][1]
                    found[sequence.sequence_id] = take_logits(part, state, own, parts.sampler.change_log_probs)
                except RoundhouseError as error:
                    found[sequence.sequence_id] = error
        return torch.cat(others) if others else logits[:0], found

    def _expect_tokens(self, step: StepInFlight) -> bool:
        """Continue the sequences of a step with tokens that the host has not read. Return False, and change nothing,
        where the next step depends on them.
        """
        if step.unread is None:
            return False
        row = 0
        for part in step.plan.parts:
            if not part.completes:
                continue
            known = self._sequences.get(part.sequence.sequence_id)
            if known is not None and part.sequence.expect(row):
                known[1].expect()
            row += 1
        return True

    def _on_device(self, parts: EngineParts, plan: StepPlan, compute: Callable[[], Computed]) -> Computed:
        """Return what `compute` returns. Its tensors live in its frame and below."""
        ours: RoundhouseError | None = None
        try:
            with torch.inference_mode():
                return compute()
        except Exception as error:
            # It is unknown now which blocks were copied and computed.
            parts.scheduler.clear_cache()
            ours = map_device_error(error, f"a step of {len(plan.parts)} texts", self._device)
            if ours is None:
                raise
        # The error is released here, and with it the frames that held the step's tensors.
        empty_cache(self._device)
        raise ours

    def _learn(self, parts: EngineParts, step: StepInFlight, result: StepResult) -> None:
        """Learn how long a step of its size takes."""
        ended_s = time.perf_counter()
        # The device began it after the step before.
        seconds = ended_s - max(step.started_s, self._last_read_s)
        self._last_read_s = ended_s
        num_tokens = [part.num_tokens - len(part.proposed) for part in step.plan.parts]
        decodes = num_tokens.count(1)
        prompt_tokens = sum(num_tokens) - decodes
        if parts.speculation is not None:
            seconds -= parts.speculation.unpriced_s
        if parts.speculation is not None and result.num_proposed:
            parts.speculation.learn_step(decodes, prompt_tokens, result.num_proposed, seconds)
        else:
            parts.scheduler.cost.learn(decodes, prompt_tokens, seconds, len(step.plan.parts) - decodes)

    def _work_on_image(self, parts: EngineParts, num_decodes: int, result: StepResult) -> None:
        """Compute the image that a prompt waits for, for as long as it may delay the decodes of the next step."""
        wanted, tower = parts.scheduler.wanted, parts.tower
        if wanted is None or tower is None or wanted[0].sequence_id not in self._sequences:
            return
        sequence, group = wanted
        started_s = time.perf_counter()
        try:
            tower.work(group, sequence.request.tenant.cache_scope, parts.scheduler.cost.image_seconds(num_decodes))
        except Exception as error:
            ours = map_device_error(error, "an image of a text", self._device)
            if ours is None and not isinstance(error, RUN_ERRORS):
                raise
            empty_cache(self._device)
            self.abort(sequence.sequence_id)
            result.failed.append((sequence.sequence_id, ours or ModelFailed(f"an image cannot be computed: {error}")))
            return
        ended_s = self._last_read_s = time.perf_counter()
        result.costs += (parts.scheduler.charge_image(sequence, ended_s - started_s),)

    def _take_all(
        self, parts: EngineParts, step: StepInFlight, sampled: list[Sampled | RoundhouseError], result: StepResult
    ) -> None:
        """Continue or end the sequences that the step completes. `sampled`: its tokens, and those after each of the
        proposed ones.
        """
        first = 0
        for part in step.plan.parts:
            if not part.completes:
                continue
            if part.sequence.width > 1:
                if part.sequence.sequence_id in self._sequences:
                    self._take_search(part.sequence, step.searches[part.sequence.sequence_id], result)
                continue
            if part.proposed and parts.speculation is not None:
                rows = sampled[first : first + 1 + len(part.proposed)]
                take = partial(self._take, parts, part.sequence, result=result)
                num_accepted = parts.speculation.take(part, rows, first, step.ties, take)
                result.num_accepted += num_accepted
                result.num_proposed += len(part.proposed)
                result.speculated.append((part.sequence.sequence_id, len(part.proposed), num_accepted))
            elif part.sequence.sequence_id in self._sequences:
                self._take(parts, part.sequence, sampled[first], result)
            first += 1 + len(part.proposed)

    def _take_search(
        self, sequence: Sequence, search: BeamSearcher | RoundhouseError | None, result: StepResult
    ) -> None:
        """Continue or end a sequence with beams. All its tokens are delivered at its end."""
        if search is None:
            sequence.add_beam_tokens()
            return
        self.abort(sequence.sequence_id)
        if isinstance(search, RoundhouseError):
            result.failed.append((sequence.sequence_id, search))
        else:
            result.tokens += search.tokens()

    def _take(
        self, parts: EngineParts, sequence: Sequence, chosen: Sampled | RoundhouseError, result: StepResult
    ) -> bool:
        """Continue or end a sequence as it was sampled. Return whether it continues."""
        if isinstance(chosen, Sampled) and sequence.request.max_tokens:
            result.tokens.append(self._accept_token(parts, sequence, chosen))
            return result.tokens[-1].finish_reason is None
        self.abort(sequence.sequence_id)
        if isinstance(chosen, Sampled):
            result.ended.append(sequence.sequence_id)
            if sequence.alignment is not None:
                result.aligned[sequence.sequence_id] = sequence.alignment
        else:
            result.failed.append((sequence.sequence_id, chosen))
        return False

    def _accept_token(self, parts: EngineParts, sequence: Sequence, chosen: Sampled) -> GeneratedToken:
        """Continue the sequence with the token, or end it."""
        request = sequence.request
        state = self._sequences[request.sequence_id][1]
        is_expected = sequence.is_unread
        sequence.receive(chosen.token_id)
        is_stop = chosen.token_id in request.stop_token_ids
        is_last = len(sequence.token_ids) - len(request.prompt_ids) >= request.max_tokens
        finish: FinishReason | None = None
        if is_stop and not (is_last and chosen.is_forced):
            finish = "stop"
        elif is_last:
            finish = "length"
        else:
            if not is_expected:
                state.expect()
            state.receive(chosen.token_id)
        if finish is not None:
            self.abort(request.sequence_id)
        return GeneratedToken(
            request.sequence_id, chosen.token_id, finish, not is_stop, chosen.logprob, chosen.top_logprobs
        )
