"""Shadow traffic: copies of requests run on a shadow version, and differences between the responses are counted."""

import asyncio
from collections import Counter
from contextlib import suppress

import numpy as np
import structlog

from app.inference.context import InferenceService, RunContext
from app.inference.response_cache import CacheableRequest
from frameworks.core.errors import RoundhouseError
from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.core.timings import Timings
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.version import ModelVersion
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.text.tokens import TokenAnswer, TokenRequest
from frameworks.types import (
    LAST_PRIORITY,
    Answer,
    ClassifyAnswer,
    CombinedAnswer,
    EmbedAnswer,
    MultiVectorAnswer,
    ScoreAnswer,
    SparseAnswer,
    Value,
)

log = structlog.get_logger(__name__)

# Copies in flight: a shadow version that is slower than the active one drops copies instead of using more memory.
_MAX_COPIES = 64
# Two versions of a model that differ by less are equal for those who compare them.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4


class ShadowTraffic:
    """Owned by the event loop."""

    def __init__(self, service: InferenceService, outcomes: Counter[tuple[str, str, str]]) -> None:
        """`outcomes`: by model, version and outcome (`same`, `different`, `failed`, `dropped`), counted there."""
        self._service = service
        self._outcomes = outcomes
        self._copies: set[asyncio.Task[None]] = set()
        # A limit of its own: a copy takes no client's place.
        self._limit = RequestLimit("shadow copies", None, None)

    @property
    def copies(self) -> int:
        """Copies in flight."""
        return len(self._copies)

    def copy(
        self,
        slot: ModelSlot,
        request: CacheableRequest | TokenRequest,
        answer: Answer | TokenAnswer,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> None:
        """Run the request on the shadow version too, if it belongs to the shadow's share of the traffic.

        `tenant`: of the request; it is charged for the copy, and the copy's result is cached for it.
        """
        share = slot.shadow
        if share is None or not share.takes_next():
            return
        version = slot.versions.get(share.version)
        if version is None or not version.is_ready or len(self._copies) >= _MAX_COPIES:
            self._outcomes[slot.name, share.version, "dropped"] += 1
            return
        copy = asyncio.get_running_loop().create_task(self._run(version, request, answer, tenant))
        self._copies.add(copy)
        copy.add_done_callback(self._copies.discard)

    async def close(self) -> None:
        """Cancel the copies in flight."""
        for copy in self._copies:
            copy.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self._copies, return_exceptions=True)

    async def _run(
        self,
        version: ModelVersion,
        request: CacheableRequest | TokenRequest,
        answer: Answer | TokenAnswer,
        tenant: Tenant,
    ) -> None:
        permit = Permit(self._limit, tenant)
        outcome = "failed"
        try:
            permit.queue(self._limit)
            spec = version.spec
            if spec is None or not version.acquire(permit, spec):
                outcome = "dropped"
                return
            context = RunContext(permit, Timings(), LAST_PRIORITY)
            context.model_version = version
            theirs = await self._service.infer(context, request)
            # On a thread: responses may be long, and no client waits for the comparison.
            outcome = "same" if await asyncio.to_thread(is_same, answer, theirs) else "different"
        except RoundhouseError as error:
            log.debug("shadow failed", model=version.model.name, version=version.version, reason=error.message)
        except Exception:
            log.exception("shadow failed", model=version.model.name, version=version.version)
        finally:
            permit.release()
            self._outcomes[version.model.name, version.version, outcome] += 1


def is_same(one: Answer | TokenAnswer, other: Answer | TokenAnswer) -> bool:
    """Whether two responses are equal, numbers within a relative 1e-3 and an absolute 1e-4."""
    if isinstance(one, EmbedAnswer) and isinstance(other, EmbedAnswer):
        return _is_same_value(one.embeddings, other.embeddings)
    if isinstance(one, MultiVectorAnswer) and isinstance(other, MultiVectorAnswer):
        return _is_same_value(dict(enumerate(one.vectors)), dict(enumerate(other.vectors)))
    if isinstance(one, SparseAnswer) and isinstance(other, SparseAnswer):
        return _is_same_value(_by_index(one), _by_index(other))
    if isinstance(one, CombinedAnswer) and isinstance(other, CombinedAnswer):
        return len(one.answers) == len(other.answers) and all(map(is_same, one.answers, other.answers))
    if isinstance(one, ClassifyAnswer) and isinstance(other, ClassifyAnswer):
        return _is_same_value(_by_class(one), _by_class(other))
    if isinstance(one, ScoreAnswer) and isinstance(other, ScoreAnswer):
        return _is_same_value(np.array(one.scores), np.array(other.scores))
    if isinstance(one, dict) and isinstance(other, dict):
        return _is_same_value(one, other)
    return one == other


def _by_class(answer: ClassifyAnswer) -> list[dict[str | int, float]]:
    """Return the score of each label; equal labels by their index."""
    if answer.classes is None:
        return [dict(row) for row in answer.predictions]
    rows = zip(answer.predictions, answer.classes, strict=True)
    return [dict(zip(classes, (score for _, score in row), strict=True)) for row, classes in rows]


def _is_same_value(one: Value | object, other: Value | object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.shape != other.shape:
            return False
        if one.dtype.kind == "f" and other.dtype.kind == "f":
            return bool(np.allclose(one, other, _RELATIVE, _ABSOLUTE, equal_nan=True))
        return bool(np.array_equal(one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same_value(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same_value, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, _RELATIVE, _ABSOLUTE, equal_nan=True))
    return one == other


def _by_index(answer: SparseAnswer) -> dict[str, Value]:
    return {f"{side}{i}": each for side in ("indices", "values") for i, each in enumerate(getattr(answer, side))}
