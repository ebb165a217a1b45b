"""The thread of a step worker: it alone uses the model, from its first sequence to its end."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import structlog

from frameworks.errors import OutOfMemory, RoundhouseError
from frameworks.generation.types import SequenceRequest, StepResult
from frameworks.runtime import StepModel
from frameworks.scheduling.batch.worker import without_frames
from frameworks.scheduling.idle import next_of

if TYPE_CHECKING:
    from frameworks.scheduling.steps.worker import StepWorker

log = structlog.get_logger(__name__)

# What nobody waits for is told at the latest after so long: by then a step's stats are old.
_LONGEST_SILENCE_S = 0.05

Message = SequenceRequest | int | None
"""A sequence that joins, the id of one that is let go, or that nothing more will come."""


class StepDone(NamedTuple):
    """A step and when it was computed (time.perf_counter). `num_heard`: the messages acted upon before it."""

    result: StepResult
    started_s: float
    ended_s: float
    num_heard: int


class StepThread:
    """Acts upon messages between the model's steps, and steps while the model has sequences; else it sleeps.

    Before the first sequence, and after the last was let go, there is one step without any: it says how the model
    stands then. The worker is told of each step at once where somebody reads a text in pieces, or something began or
    ended in it; else of several together, for it takes turns with this thread, and would hold up every step.
    """

    def __init__(self, name: str, model: StepModel, worker: "StepWorker") -> None:
        """Begins at once. `worker` is told, in its event loop, what has come of it."""
        self._name = name
        self._model = model
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._num_heard = 0
        # Sequences that the model was given and that have not ended.
        self._held: set[int] = set()
        # Those of them whose reader waits for each token.
        self._read_in_pieces: set[int] = set()
        self._untold: list[StepDone] = []
        self._owes_stats = False
        self._is_ending = False
        threading.Thread(target=self._work, name=f"worker-{name}", daemon=True).start()

    def send(self, message: Message) -> None:
        """Acted upon before the next step, in order."""
        self._messages.put(message)

    def _work(self) -> None:
        try:
            self._step()
            while self._act_upon_messages():
                self._step()
        except BaseException:
            # CancelledError, SystemExit and the like out of a model end the thread; the loop then fails the readers.
            log.exception("device thread ended", model=self._name)
        finally:
            self._tell_steps()
            try:
                self._model.close()
            except BaseException:
                log.exception("model did not close cleanly", model=self._name)
            self._tell(self._worker.ended)

    def _act_upon_messages(self) -> bool:
        """Those that have come; where there is nothing to do it waits for one. False: it is time to end."""
        while not self._messages.empty() or not (self._held or self._owes_stats or self._is_ending):
            message = next_of(self._messages, self._model.on_idle)
            self._num_heard += 1
            if message is None:
                self._is_ending = True
            elif isinstance(message, int):
                self._owes_stats = True
                self._drop({message})
                self._release_sequence(message)
            else:
                self._held.add(message.sequence_id)
                if not message.is_read_whole:
                    self._read_in_pieces.add(message.sequence_id)
                self._add(message)
        return bool(self._held) or (self._owes_stats and not self._is_ending)

    def _add(self, request: SequenceRequest) -> None:
        try:
            self._model.add(request)
        except Exception as error:  # noqa: BLE001 - handed to the reader
            self._fail([request.sequence_id], error)

    def _release_sequence(self, sequence_id: int) -> None:
        try:
            self._model.abort(sequence_id)
        except Exception:
            log.exception("sequence was not let go", model=self._name)

    def _step(self) -> None:
        self._owes_stats = False
        started_s = time.perf_counter()
        try:
            result = self._model.step()
            ended_s = time.perf_counter()
            ended = {token.sequence_id for token in result.tokens if token.finish_reason is not None}
            ended.update(sequence_id for sequence_id, _ in result.failed)
        except Exception as error:  # noqa: BLE001 - handed to the readers
            self._fail(list(self._held), error)
            return
        self._drop(ended)
        self._untold.append(StepDone(result, started_s, ended_s, self._num_heard))
        is_waited_for = self._read_in_pieces or ended or result.begun or not self._held
        if is_waited_for or ended_s - self._untold[0].ended_s > _LONGEST_SILENCE_S:
            self._tell_steps()
        if self._held and not self._model.has_work:
            self._fail(list(self._held), RuntimeError("the model has lost its sequences"))

    def _drop(self, sequence_ids: set[int]) -> None:
        """These are the model's no more."""
        self._held -= sequence_ids
        self._read_in_pieces -= sequence_ids

    def _fail(self, sequence_ids: list[int], error: Exception) -> None:
        """Sequences that end with an error, one of their own or a step's."""
        if isinstance(error, RoundhouseError | MemoryError):
            log.warning("sequences failed", model=self._name, sequences=len(sequence_ids), reason=str(error))
        else:
            log.error("sequences failed", model=self._name, sequences=len(sequence_ids), exc_info=error)
        for sequence_id in sequence_ids:
            self._release_sequence(sequence_id)
        self._drop(set(sequence_ids))
        self._owes_stats = bool(sequence_ids)
        self._tell_steps()
        # While a step is to follow the worker runs: its last message counts as unheard.
        self._tell(self._worker.failed, sequence_ids, _for_readers(error), self._num_heard - self._owes_stats)

    def _tell_steps(self) -> None:
        if self._untold:
            untold, self._untold = self._untold, []
            self._tell(self._worker.stepped, untold)

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # The loop is closed: the process is going down and nobody reads any more.
            log.debug("worker ended after its loop", model=self._name)


def _for_readers(error: Exception) -> Exception:
    """The same without its frames, which would keep a step's tensors until the last of its readers has heard of it."""
    if isinstance(error, OutOfMemory | MemoryError):
        return without_frames(error)
    if isinstance(error, RoundhouseError):
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)
    return RuntimeError(f"the model raised {type(error).__name__}; the log has it")
