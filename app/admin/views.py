"""Give each handler the models and counts that the sender of its request may see."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from app.auth.principal import Principal
from app.inference.model_view import ManagedModelView
from app.observability.tallies import RequestTallies
from app.observability.visible_counts import Counts

if TYPE_CHECKING:
    from fastapi import Request


class View(NamedTuple):
    """The visible models, and the counts of their visible requests."""

    models: ManagedModelView
    counts: Counts


class Views:
    """Make views. Handlers have no other access to models and counts."""

    def __init__(self, models_of: Callable[[Principal], ManagedModelView], tallies: RequestTallies) -> None:
        """`models_of(principal)`: the models that a principal may use. `tallies`: of all requests to the server."""
        self._models_of = models_of
        self._tallies = tallies

    def of(self, principal: Principal) -> View:
        """Return the view of a principal."""
        return View(self._models_of(principal), Counts(self._tallies, principal))

    def for_request(self, request: "Request") -> View:
        """Return the view of the sender of an HTTP request."""
        principal: Principal = request.scope["record"].principal
        return self.of(principal)

    def forget(self, model: str) -> None:
        """Drop the counts of a deleted model."""
        self._tallies.forget(model)
