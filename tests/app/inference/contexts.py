"""Contexts of requests without a transport."""

from typing import Any

from app.auth.principal import ANONYMOUS, Principal
from app.inference.context import RequestContext
from frameworks.models.versions.contract import ServedModels
from frameworks.scheduling.admission import Permit, RequestLimit


class Context(RequestContext):
    """The context of an admitted request that is neither read nor answered."""

    def __init__(
        self, models: ServedModels, principal: Principal = ANONYMOUS, limit: RequestLimit | None = None
    ) -> None:
        super().__init__("id", "POST", "/", 0.0, principal=principal)
        self.served_models = models
        self.permit = Permit(limit or RequestLimit("the server", None, None), principal.tenant)

    def encode(self, decoded: Any, answer: Any) -> Any:
        raise AssertionError

    def open_stream(self, decoded: Any) -> None:
        raise AssertionError
