"""Decide which samples and requests a principal may see, by the rules of its counts and models on other routes."""

from typing import NamedTuple

from app.admin.monitoring.sample_cells import Cell
from app.admin.monitoring.sample_ring import Visible
from app.auth.principal import Principal
from app.observability.recent_requests import FinishedRequest


class ViewKey(NamedTuple):
    """Principals with equal keys see the same. `counts_of`: as in Principal. `patterns`, `key_id`: of a principal that
    may use some of the models only.
    """

    counts_of: str | None
    patterns: tuple[tuple[str, ...], ...] = ()
    key_id: str = ""


def view_key(principal: Principal) -> ViewKey:
    """Return the key of what a principal sees."""
    if principal.sees_all:
        return ViewKey(principal.counts_of)
    return ViewKey(principal.counts_of, principal.patterns, principal.key_id)


def visible_cells(principal: Principal) -> Visible:
    """Return the rows that a principal sees: of its tenant, or for an operator of all tenants; and of its models.

    A tenant sees the memory of its models, which no tenant owns.
    """
    counts_of, may_use = principal.counts_of, principal.may_use

    def shows(cell: Cell) -> bool:
        if counts_of is not None and cell.tenant is not None and cell.tenant != counts_of:
            return False
        return not cell.model or may_use(cell.model)

    return Visible(shows)


def shows_request(principal: Principal, request: FinishedRequest) -> bool:
    """Whether a principal sees a request, as it sees its count."""
    if principal.counts_of is not None and request.tenant != principal.counts_of:
        return False
    return not request.model or principal.may_use(request.model)


def shows_error(principal: Principal, request: FinishedRequest) -> bool:
    """Whether a principal sees the text of an error.

    The error of an unknown name lists similar names that its sender may use; another key may use fewer.
    """
    return bool(request.model) or principal.sees_all or request.key_id == principal.key_id
