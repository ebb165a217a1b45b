"""Choose the replica for a request: the one with the least queued seconds, or one that has the prefix of the prompt."""

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from extensions.ray.ingress.prefix_affinity import PrefixAffinity, blocks_of
from frameworks.engine.group_queue import GroupMember, Job
from frameworks.generation.types import GenerateRequest
from frameworks.images.spec import ImageRequest
from frameworks.types import ImagePairRequest, PairRequest, TensorBatch, TextRequest, TokenBatch

_NEWEST_WEIGHT = 0.05
_CHARACTERS_PER_TOKEN = 4
_DEFAULT_TOKENS = 256
"""Expected tokens of a text without `max_tokens`."""
_UNKNOWN_CALL_S = 1e-3
"""Cost of a request before the replica has reported one; all replicas then compare by their numbers of requests."""


def units_of(request: Any) -> float:
    """Return how large a request is, to be compared with others of the same model: about its tokens, or its rows."""
    if isinstance(request, TensorBatch):
        return float(max(1, request.rows))
    if isinstance(request, TokenBatch):
        return float(1 + sum(map(len, request.token_ids)))
    if isinstance(request, ImageRequest | ImagePairRequest):
        return float(max(1, len(request.images)))
    if isinstance(request, TextRequest):
        tokens = sum(map(len, request.token_ids or ()))
        return 1.0 + tokens + sum(map(len, request.texts)) / _CHARACTERS_PER_TOKEN
    if isinstance(request, PairRequest):
        return 1.0 + sum(len(one) + len(other) for one, other in request.pairs) / _CHARACTERS_PER_TOKEN
    if isinstance(request, GenerateRequest):
        most = request.stopping.max_tokens
        return float(len(request.prompts) * request.num_choices * (_DEFAULT_TOKENS if most is None else most))
    return 1.0


class LeastSeconds:
    """Implement Choose. Owned by the event loop.

    The seconds of a member: its requests here, by their size and the learned cost of a mean one, and those of other
    ingresses. A prompt is sent to the member with its longest prefix unless that one is behind by more than a request.
    """

    def __init__(self, others_s: Callable[[GroupMember], float] = lambda _: 0.0) -> None:
        """`others_s`: the seconds that requests for other models will take there."""
        self._others_s = others_s
        self._mean_units = 1.0
        self._prefixes: WeakKeyDictionary[Any, PrefixAffinity] = WeakKeyDictionary()

    def __call__(self, members: Sequence[GroupMember], capacity: int, job: Job) -> GroupMember | None:
        """Return the member; None while none has room."""
        if not job.units:
            job.units = units_of(job.request)
            self._mean_units += _NEWEST_WEIGHT * (job.units - self._mean_units)
        best, least_s = None, 0.0
        free = []
        for member in members:
            if member.work < capacity and member.is_available:
                seconds = self.seconds(member)
                free.append((member, seconds))
                if best is None or seconds < least_s:
                    best, least_s = member, seconds
        if best is not None and isinstance(job.request, GenerateRequest):
            return self._with_prefix(job.request, best, least_s, free)
        return best

    def seconds(self, member: GroupMember) -> float:
        """Return the seconds that the requests of a member will take."""
        state = member.engine.queue_state
        return self._others_s(member) + (state.call_s or _UNKNOWN_CALL_S) * (
            member.units / self._mean_units + state.others
        )

    def waits_s(self, members: Sequence[GroupMember], waiting: int) -> float:
        """Return the seconds until a further request begins, beside so many that have no member yet."""
        call_s = sum(member.engine.queue_state.call_s for member in members) / len(members)
        return min(map(self.seconds, members)) + waiting * call_s / len(members)

    def _with_prefix(
        self, request: GenerateRequest, best: GroupMember, least_s: float, free: Sequence[tuple[GroupMember, float]]
    ) -> GroupMember:
        blocks = blocks_of(request)
        if not blocks:
            return best
        most = self._matched(best, blocks)
        chosen = best
        for member, seconds in free:
            matched = self._matched(member, blocks)
            one_s = member.engine.queue_state.call_s or _UNKNOWN_CALL_S
            if matched > most and seconds <= least_s + one_s:
                chosen, most = member, matched
        self._prefixes.setdefault(chosen.engine, PrefixAffinity()).add(blocks)
        return chosen

    def _matched(self, member: GroupMember, blocks: Sequence[int]) -> int:
        seen = self._prefixes.get(member.engine)
        return 0 if seen is None else seen.matched(blocks)
