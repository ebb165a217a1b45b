"""Serialize principals to plain values for messages between supervisor and workers, and deserialize them."""

from app.auth.principal import Principal, Scope
from app.workers.messages import Sender
from frameworks.engine.process.wire.serialization import tenant_from_plain, tenant_to_plain


def sender_of(principal: Principal) -> Sender:
    """Return the plain value of a principal."""
    return Sender(
        tenant_to_plain(principal.tenant),
        principal.key_id,
        [scope.value for scope in principal.scopes],
        [list(each) for each in principal.patterns],
        [list(each) for each in principal.collections],
        principal.counts_of is None,
    )


def principal_of(sender: Sender) -> Principal:
    """Return a principal that may do and see the same. Its requests were authenticated, so it has no signature."""
    return Principal(
        tenant_from_plain(sender.tenant),
        sender.key_id,
        frozenset(map(Scope, sender.scopes)),
        map(tuple, sender.patterns),
        sender.is_operator,
        collections=map(tuple, sender.collections),
    )
