"""Give each handler the models and counts that the sender of its request may see."""

from collections.abc import Callable
from typing import NamedTuple

from fastapi import Request

from app.auth.principal import Principal
from app.inference.model_view import ManagedModelView
from app.observability.counts import Counts
from app.observability.metrics import Observer


class View(NamedTuple):
    """The visible models, and the counts of their visible requests."""

    models: ManagedModelView
    counts: Counts


class Views:
    """Make views. Handlers have no other access to models and counts."""

    def __init__(self, models_of: Callable[[Principal], ManagedModelView], observer: Observer) -> None:
        """`models_of(principal)`: the models that a principal may use."""
        self._models_of = models_of
        self._observer = observer

    def of(self, principal: Principal) -> View:
        """Return the view of a principal."""
        return View(self._models_of(principal), Counts(self._observer, principal))

    def for_request(self, request: Request) -> View:
        """Return the view of the sender of an HTTP request."""
        principal: Principal = request.scope["record"].principal
        return self.of(principal)

    @property
    def inflight(self) -> int:
        """The number of requests to all models that are in progress, of all tenants."""
        return self._observer.inflight

    def forget(self, model: str) -> None:
        """Drop the counts of a deleted model."""
        self._observer.forget(model)
