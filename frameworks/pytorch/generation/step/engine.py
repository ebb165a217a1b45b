"""A generating model's step: schedule, compute, sample."""

import threading
import time
from collections.abc import Collection
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from frameworks.core.errors import InvalidModel, ModelFailed, RoundhouseError
from frameworks.generation.sequences import GeneratedToken, SequenceRequest, StepResult, StepStats, TokenMatcher
from frameworks.generation.text.tokenizer import GenerationTokenizer
from frameworks.generation.types import AdapterSpec, Constraint, FinishReason, Sampling
from frameworks.pytorch.device_errors import RUN_ERRORS, empty_cache, map_device_error
from frameworks.pytorch.generation.decoders.adapters.set import AdapterSet
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS
from frameworks.pytorch.generation.decoders.runner import StepRunner
from frameworks.pytorch.generation.sampling.prompt_scoring import PromptScorer
from frameworks.pytorch.generation.sampling.sampler import Sampled, Sampler
from frameworks.pytorch.generation.sampling.state import SamplingState
from frameworks.pytorch.generation.sampling.token_masks import TokenMasks
from frameworks.pytorch.generation.sampling.top_k import TieCheck
from frameworks.pytorch.generation.speculation.speculating import Speculation, states_of
from frameworks.pytorch.generation.step.kernel_switch import KernelSwitch
from frameworks.pytorch.openmp import release_threads
from frameworks.scheduling.steps.scheduler import StepScheduler
from frameworks.scheduling.steps.sequence import Sequence, StepPlan
from frameworks.types import DEFAULT_PRIORITY, ModelSpec, ProductTrial, QuantizationReport

# Two prompts, prefilled together in parts, and a few decodes.
_WARM_UP_PROMPTS = (BLOCK_TOKENS + 3, 2)
_WARM_UP_TOKENS = 3
_NO_STATS = StepStats()


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The components of a generating model. `speculation`: None where no tokens are proposed."""

    runner: StepRunner
    scheduler: StepScheduler
    sampler: Sampler
    masks: TokenMasks
    tokenizer: GenerationTokenizer
    adapters: AdapterSet | None
    speculation: Speculation | None = None


class GeneratingModel:
    """A StepModel. One thread at a time uses it, except for `constrain`."""

    def __init__(
        self, parts: EngineParts, spec: ModelSpec, intra_op_threads: int, switches: SequenceOf[KernelSwitch] = ()
    ) -> None:
        """`intra_op_threads`: CPU threads of a step. `switches`: to compiled kernels, which end with the model."""
        self.spec = spec
        # Adapters are listed by the event loop, and kernels noted by the thread that changes them.
        self._spec_lock = threading.Lock()
        self._switches = switches
        self.tokenizer = parts.tokenizer
        self._parts: EngineParts | None = parts
        self._masks = parts.masks
        self._block_bytes = parts.runner.block_bytes
        self._device = torch.device(spec.device)
        self._intra_op_threads = intra_op_threads
        self._sequences: dict[int, tuple[Sequence, SamplingState]] = {}
        self._failed: list[tuple[int, Exception]] = []
        assert spec.generation is not None
        self._scorer = PromptScorer(self._device, spec.generation.vocabulary_size)

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
        assert self.spec.generation is not None
        try:
            state = SamplingState(request, self.spec.generation.vocabulary_size)
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
        """As StepModel.step."""
        parts = self._open_parts
        if torch.get_num_threads() != self._intra_op_threads:
            # The number is a property of the calling thread, and every instance has a thread of its own.
            torch.set_num_threads(self._intra_op_threads)
        result, self._failed = StepResult([], [], self._failed, _NO_STATS), []
        if self._sequences:
            started_s = time.perf_counter()
            plan = parts.scheduler.plan(held)
            result.begun, result.num_sequences = plan.begun, len(plan.parts)
            num_tokens = [part.num_tokens for part in plan.parts]
            decodes = num_tokens.count(1)
            prompt_tokens = sum(num_tokens) - decodes
            ties = None if parts.speculation is None else parts.speculation.propose(plan, self._sequences)
            sampled = self._compute(parts, plan, ties)
            parts.scheduler.advance(plan)
            if plan.is_scored:
                result.scored = self._scorer.take_scored(plan.parts)
            self._take_all(parts, plan, sampled, ties, result)
            seconds = time.perf_counter() - started_s
            if parts.speculation is not None:
                seconds -= parts.speculation.unpriced_s
            if parts.speculation is not None and result.num_proposed:
                parts.speculation.learn_step(decodes, prompt_tokens, result.num_proposed, seconds)
            else:
                prompts = len(plan.parts) - decodes
                parts.scheduler.cost.learn(decodes, prompt_tokens, seconds, prompts)
            result.costs = tuple([(share.tenant, cost) for share, cost in plan.costs.items()])
        result.stats = parts.scheduler.stats(self._block_bytes)
        return result

    def warm_up(self) -> None:
        """Run two short sequences to their ends, and read the vocabulary for constrained texts, which would delay the
        first of them and every response beside it. Raises InvalidModel, OutOfMemory.
        """
        spec = self.spec.generation
        assert spec is not None
        for number, wanted in enumerate(_WARM_UP_PROMPTS):
            length = max(1, min(wanted, spec.max_context_tokens - _WARM_UP_TOKENS))
            prompt = tuple((7 * number + position) % spec.vocabulary_size for position in range(length))
            sampling = Sampling(top_p=0.9, seed=number)
            self.add(SequenceRequest(-1 - number, prompt, _WARM_UP_TOKENS, sampling, priority=DEFAULT_PRIORITY))
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
        for switch in self._switches:
            switch.close()
        self._parts = None
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

    def _compute(self, parts: EngineParts, plan: StepPlan, ties: TieCheck | None) -> list[Sampled | RoundhouseError]:
        """Return the next token of each sequence that the plan completes, and those after each of its proposed tokens.
        Its tensors live in this frame and below.
        """
        ours: RoundhouseError | None = None
        try:
            with torch.inference_mode():
                logits = parts.runner.logits(plan)
                if plan.is_scored:
                    logits = self._scorer.score(plan.parts, logits)
                if parts.speculation is not None:
                    states = states_of(plan, self._sequences, parts.speculation.draws)
                else:
                    known = self._sequences
                    states = [known[part.sequence.sequence_id][1] for part in plan.parts if part.completes]
                return parts.sampler.sample(logits, states, ties) if states else []
        except Exception as error:
            # It is unknown now which blocks were copied and computed.
            parts.scheduler.clear_cache()
            ours = map_device_error(error, f"a step of {len(plan.parts)} texts", self._device)
            if ours is None:
                raise
        # The error is released here, and with it the frames that held the step's tensors.
        empty_cache(self._device)
        raise ours

    def _take_all(
        self,
        parts: EngineParts,
        plan: StepPlan,
        sampled: list[Sampled | RoundhouseError],
        ties: TieCheck | None,
        result: StepResult,
    ) -> None:
        """Continue or end the sequences that the plan completes. `sampled`: as `_compute` returns it."""
        first = 0
        for part in plan.parts:
            if not part.completes:
                continue
            if part.proposed and parts.speculation is not None:
                rows = sampled[first : first + 1 + len(part.proposed)]
                take = partial(self._take, parts, part.sequence, result=result)
                num_accepted = parts.speculation.take(part, rows, first, ties, take)
                result.num_accepted += num_accepted
                result.num_proposed += len(part.proposed)
                result.speculated.append((part.sequence.sequence_id, len(part.proposed), num_accepted))
            else:
                self._take(parts, part.sequence, sampled[first], result)
            first += 1 + len(part.proposed)

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
        else:
            result.failed.append((sequence.sequence_id, chosen))
        return False

    def _accept_token(self, parts: EngineParts, sequence: Sequence, chosen: Sampled) -> GeneratedToken:
        """Continue the sequence with the token, or end it."""
        request = sequence.request
        state = self._sequences[request.sequence_id][1]
        sequence.token_ids.append(chosen.token_id)
        is_stop = chosen.token_id in request.stop_token_ids
        is_last = len(sequence.token_ids) - len(request.prompt_ids) >= request.max_tokens
        finish: FinishReason | None = None
        if is_stop and not (is_last and chosen.is_forced):
            finish = "stop"
        elif is_last:
            finish = "length"
        else:
            state.accept(chosen.token_id)
        if finish is not None:
            self.abort(request.sequence_id)
        return GeneratedToken(
            request.sequence_id, chosen.token_id, finish, not is_stop, chosen.logprob, chosen.top_logprobs
        )
