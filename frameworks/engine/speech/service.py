"""Transcribe sounds with a model that generates text: its windows share the steps of those of other requests."""

from typing import Any

from frameworks.engine.contract import Run
from frameworks.engine.speech.windows import Windows
from frameworks.engine.tasks import TaskService, at_once
from frameworks.engine.threads import EngineThreads
from frameworks.generation.sequences import Alignment
from frameworks.generation.sources import SourcePrompt
from frameworks.generation.speech.spec import SpeechSound, SpeechSpec, SpeechText
from frameworks.generation.speech.transcription import Transcription, WindowText
from frameworks.runtime import StepModel
from frameworks.scheduling.steps.dispatcher import StepDispatcher
from frameworks.tasks.types import TaskAnswer, TaskItem, TaskRequest


class SpeechService(TaskService):
    """Answer the requests for a model with a SpeechSpec. Owned by the event loop."""

    def __init__(self, model: StepModel, spec: SpeechSpec, dispatcher: StepDispatcher, threads: EngineThreads) -> None:
        """`threads`: compute the features of sounds, and finish texts."""
        super().__init__(model, _no_rows, threads)
        self._spec = spec
        self._dispatcher = dispatcher

    async def answer(self, run: Run, request: TaskRequest) -> TaskAnswer:
        """As TaskService.answer. Raises also QuotaExceeded if the tenant has no tokens left."""
        budget = run.permit.token_budget
        if budget is not None:
            # Generated tokens are counted as they arrive; a sound has none of its own.
            await budget.start(0)
        return await super().answer(run, request)

    async def _outputs_of(self, run: Run, items: list[TaskItem]) -> list[Any]:
        """Return the SpeechText of each part of a sound, in order."""
        texts: list[SpeechText | None] = [None] * len(items)
        left = iter(range(len(items)))

        async def transcribe_some() -> None:
            for position in left:
                texts[position] = await self._transcribe(run, items[position].value)

        await at_once(transcribe_some, len(items))
        return texts

    async def _transcribe(self, run: Run, sound: SpeechSound) -> SpeechText:
        transcription = Transcription(self._spec, sound)
        windows = Windows(self._spec, self._dispatcher, run, sound.options)
        source = self._spec.source_of(transcription.window())
        if self._spec.detects_language and transcription.language_id is None:
            transcription.language_id = await windows.language_id(source)
        init_ids = transcription.init_ids()
        while True:
            decoder_prompt = transcription.decoder_prompt(init_ids)
            text = await self._attempt(windows, transcription, source, decoder_prompt, len(init_ids))
            if sound.options.needs_words and not transcription.is_silent(text):
                weights = await windows.alignment(source.followed_by(decoder_prompt), text.tokens[:-1])
                text = text._replace(times_s=await self._token_times(weights, transcription.heard_frames))
            transcription.take(text)
            if transcription.is_done:
                return transcription.text
            source = self._spec.source_of(transcription.window())

    async def _attempt(
        self,
        windows: Windows,
        transcription: Transcription,
        source: SourcePrompt,
        decoder_prompt: tuple[int, ...],
        num_init: int,
    ) -> WindowText:
        """Return the text of a window at the first temperature at which it is not rejected, or at the last one.

        `num_init`: the last tokens of the decoder's prompt, which begin the text.
        """
        options = transcription.options
        max_tokens = transcription.max_tokens(decoder_prompt)
        prompt, no_speech_prob = source.followed_by(decoder_prompt), None
        for temperature in options.temperatures:
            text = await windows.text(prompt, max_tokens, temperature)
            asks = options.needs_scores or (options.no_speech_threshold is not None and transcription.is_unlikely(text))
            if asks and no_speech_prob is None:
                # It does not depend on the text.
                no_speech_prob = await windows.no_speech_prob(source.followed_by(decoder_prompt[:-num_init]))
            text = text._replace(no_speech_prob=no_speech_prob)
            if not transcription.is_rejected(text):
                break
        return text

    async def _token_times(self, weights: Alignment | None, num_frames: int) -> tuple[float, ...]:
        """Return the second of each token of a window: of those with weights, and of the last one."""
        if weights is None:
            return (0.0,)
        pipeline: Any = getattr(self._model, "pipeline")  # noqa: B009 - only models of speech have this one
        times_s: tuple[float, ...] = await self._threads.run_task(None, pipeline.token_times, weights, num_frames)
        return (*times_s, times_s[-1])


def _no_rows(*_: object) -> Any:
    raise AssertionError("a sound has no rows of a batch")
