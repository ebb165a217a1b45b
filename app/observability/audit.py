"""The audit log: one line for each call that changes models."""

import structlog

from app.auth.permissions import MatchedPath
from app.observability.metrics import RequestRecord

log = structlog.get_logger("roundhouse.audit")


def log_action(record: RequestRecord, matched: MatchedPath | None) -> None:
    """Log a call over HTTP that has ended, unless it changes no model. `matched`: the entry of its path."""
    action = "" if matched is None else matched.action_of(record.method)
    if matched is not None and action:
        record.model = record.model or matched.model
        log_outcome(record, action)


def log_outcome(record: RequestRecord, action: str) -> None:
    """Log a call that has ended: its tenant and key, the action, the model, and the outcome.

    `[logging] requests` has no effect on these lines.
    """
    principal = record.principal
    log.info(
        "audit",
        request_id=record.request_id,
        tenant=principal.tenant.name or None,
        key_id=principal.key_id or None,
        action=action,
        model=record.model[:256] or None,
        outcome=record.code or "done",
        status=record.status,
    )
