"""Order the requests that a crash interrupted: which fail, which run again alone, and which run again together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frameworks.engine.process.suspects import Suspects


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request that had been sent to the process when it ended.

    `has_begun`: the process reported its run. `has_streamed`: a part of its response was delivered to the caller.
    """

    request_id: int
    has_begun: bool
    is_idempotent: bool
    has_streamed: bool


class RetryQueue:
    """Requests that are held until the process runs again. Owned by the event loop.

    The requests that had begun are suspects: one of them may have caused the crash. The suspects run again first, each
    alone, so that the next crash has one suspect. All other requests are held until then.
    """

    def __init__(self, suspects: Suspects, digest: Callable[[int], bytes]) -> None:
        """`digest(request_id)`: identifies the content of a request; see `digest_of`."""
        self._suspects = suspects
        self._digest = digest
        # Ordered sets of request ids.
        self._alone: dict[int, None] = {}
        self._together: dict[int, None] = {}
        self._running_alone: int | None = None
        self._runs: dict[int, int] = {}
        self.is_empty = True
        """Whether no request is held and no suspect runs. New requests may then be sent at once."""

    @property
    def num_suspects(self) -> int:
        """Number of requests that may have caused a crash, and have no outcome yet."""
        return len(self._alone) + (self._running_alone is not None)

    def hold(self, request_id: int) -> None:
        """Hold a request that was not sent yet: it is sent when no suspect is left."""
        self._together[request_id] = None
        self.is_empty = False

    def holds(self, request_id: int) -> bool:
        """Whether the request waits to be sent."""
        return request_id in self._alone or request_id in self._together

    def crashed(self, in_flight: Sequence[InFlight]) -> list[int]:
        """Note a crash of a process that served. `in_flight`: every request that was sent and not answered.

        Returns the ids of those that have to fail; the queue holds all others. Requests that it holds already had no
        part in the crash; they are ignored in `in_flight`, and stay held.
        """
        retried, self._running_alone = self._running_alone, None
        in_flight = [each for each in in_flight if not self.holds(each.request_id)]
        # A process may end before it reports a run.
        begun = [each for each in in_flight if each.has_begun] or in_flight
        is_refused = len(begun) == 1 and self._note_crash(begun[0].request_id, retried)
        suspects = {each.request_id for each in begun}
        failed = []
        for each in in_flight:
            is_suspect = each.request_id in suspects
            if each.has_streamed or (is_suspect and (is_refused or not self._may_run_again(each))):
                failed.append(each.request_id)
            else:
                (self._alone if is_suspect else self._together)[each.request_id] = None
        return self._forget(failed)

    def stopped(self, in_flight: Sequence[InFlight]) -> list[int]:
        """Note the end of a process for a known reason: no further request is a suspect, and no run counts.

        `in_flight` and the returned ids: as of `crashed`.
        """
        retried, self._running_alone = self._running_alone, None
        failed = []
        for each in in_flight:
            if self.holds(each.request_id):
                continue
            if each.has_streamed or (each.has_begun and not each.is_idempotent):
                failed.append(each.request_id)
            else:
                (self._alone if each.request_id == retried else self._together)[each.request_id] = None
        return self._forget(failed)

    def give_up(self) -> list[int]:
        """Return the ids of all requests that are held, which have to fail, and hold none."""
        held = [*self._alone, *self._together]
        self._alone.clear()
        self._together.clear()
        self._runs.clear()
        self._running_alone = None
        self._update()
        return held

    def due(self) -> list[int]:
        """Return the ids of the requests to send now, which the queue holds no longer.

        One suspect, where no other one runs; all others after the last suspect has ended.
        """
        if self._running_alone is not None:
            return []
        if self._alone:
            self._running_alone = next(iter(self._alone))
            del self._alone[self._running_alone]
            return [self._running_alone]
        due = list(self._together)
        self._together.clear()
        self._update()
        return due

    def ended(self, request_id: int, is_completed: bool) -> None:
        """Note that a request was answered, failed or was cancelled, and uses the process no longer.

        `is_completed`: it ran to its end.
        """
        if request_id == self._running_alone:
            self._running_alone = None
            if is_completed and len(self._suspects):
                self._suspects.completed(self._digest(request_id))
        self._runs.pop(request_id, None)
        self._alone.pop(request_id, None)
        self._together.pop(request_id, None)
        self._update()

    def _note_crash(self, request_id: int, retried: int | None) -> bool:
        """Return whether the only request of a crash is refused from now on. `retried`: the one that ran alone."""
        return self._suspects.crashed(self._digest(request_id), is_retry=request_id == retried)

    def _forget(self, failed: list[int]) -> list[int]:
        for request_id in failed:
            self._runs.pop(request_id, None)
        self._update()
        return failed

    def _may_run_again(self, request: InFlight) -> bool:
        """Count a run that was interrupted."""
        runs = self._runs[request.request_id] = self._runs.get(request.request_id, 0) + 1
        return request.is_idempotent and runs < self._suspects.rule.crashes

    def _update(self) -> None:
        self.is_empty = not self._alone and not self._together and self._running_alone is None
