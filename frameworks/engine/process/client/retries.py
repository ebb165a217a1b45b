"""Order the requests that a crash interrupted: which fail, which run again concurrently, and which alone."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from frameworks.engine.process.client.poison_requests import PoisonRequests

MAX_BESIDE = 32
"""Maximum suspects that run concurrently. It bounds how many run alone after their crash, and the digests that are
computed at once."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request that had been sent to the process when it ended.

    `has_begun`: the process reported its run. `has_streamed`: a part of its response was delivered to the caller.
    """

    request_id: int
    has_begun: bool
    has_streamed: bool


class RetryQueue:
    """Requests that are held until the process runs again. Owned by the event loop.

    The requests that had begun are suspects: one of them may have caused the crash. All other requests are held until
    the suspects have outcomes. Most crashes have other causes, so the suspects of different contents first run
    concurrently. Where that crashes too, each of them runs alone, so that the next crash has one suspect. A crash costs
    its restart, and a run alone costs little: to halve the suspects would take more crashes.

    The crash of suspects that ran concurrently counts for none of them. A request has two counted runs, so it is
    interrupted at most three times: k requests that crash their process cause at most 3 k crashes.
    """

    def __init__(self, poison_requests: PoisonRequests, digest: Callable[[int], bytes]) -> None:
        """`digest(request_id)`: identifies the content of a request; see `digest_of`."""
        self._poison_requests = poison_requests
        self._contents = _Contents(digest)
        # Ordered sets of request ids: the suspects, and then those that no crash has interrupted in their run.
        self._beside: dict[int, None] = {}
        self._alone: dict[int, None] = {}
        self._together: dict[int, None] = {}
        self._round = _Round()
        self._runs: dict[int, int] = {}
        self.is_empty = True
        """Whether no request is held and no suspect runs. New requests may then be sent at once."""

    @property
    def num_suspects(self) -> int:
        """Number of requests that may have caused a crash, and have no outcome yet."""
        return len(self._beside) + len(self._alone) + len(self._round.running)

    @property
    def runs_beside(self) -> bool:
        """Whether suspects run concurrently: each may be interrupted by the crash of another one."""
        return self._round.is_joint

    def hold(self, request_id: int) -> None:
        """Hold a request that was not sent yet: it is sent when no suspect is left."""
        self._together[request_id] = None
        self.is_empty = False

    def holds(self, request_id: int) -> bool:
        """Whether the request waits to be sent."""
        return request_id in self._beside or request_id in self._alone or request_id in self._together

    def crashed(self, in_flight: Sequence[InFlight]) -> list[int]:
        """Note a crash of a process that served. `in_flight`: every request that was sent and not answered.

        Returns the ids of those that have to fail; the queue holds all others. Requests that it holds already had no
        part in the crash; they are ignored in `in_flight`, and stay held.
        """
        ended, self._round = self._round, _Round()
        in_flight = [each for each in in_flight if not self.holds(each.request_id)]
        if ended.is_joint:
            return self._crashed_beside(in_flight)
        # A process may end before it reports a run.
        begun = [each for each in in_flight if each.has_begun] or in_flight
        is_refused = len(begun) == 1 and self._note_crash(begun[0].request_id, ended)
        suspects = {each.request_id for each in begun}
        failed = []
        for each in in_flight:
            is_suspect = each.request_id in suspects
            if each.has_streamed or (is_suspect and (is_refused or not self._may_run_again(each))):
                failed.append(each.request_id)
            elif not is_suspect:
                self._together[each.request_id] = None
            else:
                (self._alone if len(begun) == 1 else self._beside)[each.request_id] = None
        return self._forget(failed)

    def stopped(self, in_flight: Sequence[InFlight]) -> list[int]:
        """Note the end of a process for a known reason: no further request is a suspect, and no run counts.

        `in_flight` and the returned ids: as of `crashed`.
        """
        ended, self._round = self._round, _Round()
        held_again = self._beside if ended.is_joint else self._alone
        failed = []
        for each in in_flight:
            if self.holds(each.request_id):
                continue
            if each.has_streamed:
                failed.append(each.request_id)
            else:
                (held_again if each.request_id in ended.running else self._together)[each.request_id] = None
        return self._forget(failed)

    def give_up(self) -> list[int]:
        """Return the ids of all requests that are held, which have to fail, and hold none."""
        held = [*self._beside, *self._alone, *self._together]
        for each in (self._beside, self._alone, self._together, self._runs):
            each.clear()
        self._round = _Round()
        self._update()
        return held

    def due(self) -> list[int]:
        """Return the ids of the requests to send now, which the queue holds no longer.

        The next round of suspects, where none runs; all others after the last suspect has ended.
        """
        if self._round.running:
            return []
        due = self._next_round()
        if due:
            self._round = _Round(due)
            return due
        due = list(self._together)
        self._together.clear()
        self._update()
        return due

    def ended(self, request_id: int, is_completed: bool) -> None:
        """Note that a request was answered, failed or was cancelled, and uses the process no longer.

        `is_completed`: it ran to its end.
        """
        if request_id in self._round.running:
            del self._round.running[request_id]
            if is_completed and (len(self._poison_requests) or self._beside):
                self._poison_requests.completed(self._contents.answered(request_id))
        self._contents.forget(request_id)
        for each in (self._runs, self._beside, self._alone, self._together):
            each.pop(request_id, None)
        self._update()

    def _next_round(self) -> list[int]:
        """Remove and return the suspects that run next: those that may run concurrently, then single ones.

        Of equal contents only one runs, until it was answered. One that has crashed runs alone.
        """
        while self._beside:
            candidates = list(islice(self._beside, MAX_BESIDE))
            chosen = candidates
            if len(candidates) > 1:
                for each in candidates:
                    if self._contents.has_crashed(each):
                        del self._beside[each]
                        self._alone[each] = None
                chosen = self._contents.distinct(each for each in candidates if each in self._beside)
            for each in chosen:
                del self._beside[each]
            if chosen:
                return chosen
        first = list(islice(self._alone, 1))
        for each in first:
            del self._alone[each]
        return first

    def _crashed_beside(self, in_flight: Sequence[InFlight]) -> list[int]:
        """Note a crash of suspects that ran concurrently: each of them runs alone, and no run counts."""
        failed = []
        for each in in_flight:
            self._contents.note_crash(each.request_id)
            if each.has_streamed:
                failed.append(each.request_id)
            else:
                self._alone[each.request_id] = None
        return self._forget(failed)

    def _note_crash(self, request_id: int, ended: "_Round") -> bool:
        """Return whether the only request of a crash is refused from now on. `ended`: the round of the crash."""
        digest = self._contents.note_crash(request_id)
        return self._poison_requests.crashed(digest, is_retry=request_id in ended.running)

    def _forget(self, failed: list[int]) -> list[int]:
        for request_id in failed:
            self._runs.pop(request_id, None)
            self._contents.forget(request_id)
        self._update()
        return failed

    def _may_run_again(self, request: InFlight) -> bool:
        """Count a run that was interrupted."""
        runs = self._runs[request.request_id] = self._runs.get(request.request_id, 0) + 1
        return runs < self._poison_requests.rule.crashes

    def _update(self) -> None:
        self.is_empty = not self.num_suspects and not self._together
        if self.is_empty:
            self._contents.clear()


class _Round:
    """Interrupted requests that run again at the same time. `is_joint`: several were sent, also where one is left."""

    __slots__ = ("is_joint", "running")

    def __init__(self, request_ids: Sequence[int] = ()) -> None:
        self.running = dict.fromkeys(request_ids)
        self.is_joint = len(request_ids) > 1


class _Contents:
    """The contents of the suspects since a crash, by digest: those that were answered, and those that crashed again."""

    def __init__(self, digest: Callable[[int], bytes]) -> None:
        self._digest = digest
        # By request: a content may be large.
        self._digests: dict[int, bytes] = {}
        self._answered: set[bytes] = set()
        self._crashed: set[bytes] = set()

    def distinct(self, request_ids: Iterable[int]) -> list[int]:
        """Return the first request of each content, and all requests of contents that were answered."""
        seen, found = set[bytes](), []
        for each in request_ids:
            digest = self._of(each)
            if digest not in seen or digest in self._answered:
                seen.add(digest)
                found.append(each)
        return found

    def has_crashed(self, request_id: int) -> bool:
        """Whether a crash interrupted a request of the same content in its run as a suspect, or as the only one."""
        return self._of(request_id) in self._crashed

    def answered(self, request_id: int) -> bytes:
        """Note that a request was answered; return its digest."""
        digest = self._of(request_id)
        self._answered.add(digest)
        self._crashed.discard(digest)
        return digest

    def note_crash(self, request_id: int) -> bytes:
        """Note that a crash interrupted a request; return its digest."""
        digest = self._of(request_id)
        self._answered.discard(digest)
        self._crashed.add(digest)
        return digest

    def forget(self, request_id: int) -> None:
        self._digests.pop(request_id, None)

    def clear(self) -> None:
        """Forget all contents: no request is held."""
        for each in (self._digests, self._answered, self._crashed):
            each.clear()

    def _of(self, request_id: int) -> bytes:
        if request_id not in self._digests:
            self._digests[request_id] = self._digest(request_id)
        return self._digests[request_id]
