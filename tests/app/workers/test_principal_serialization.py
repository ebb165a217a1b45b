"""Principals that are sent to the supervisor."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from app.auth.principal import ANONYMOUS, UNAUTHENTICATED, Principal, Scope
from app.workers.messages import Sender
from app.workers.principal_serialization import principal_of, sender_of
from frameworks.core.tenants import DEFAULT_TENANT, Tenant

MODELS = ("a", "ab", "b-1", "")
patterns = st.lists(st.sampled_from(["*", "a*", "b-?", "[ab]", "none"]), max_size=3).map(tuple)
principals = st.builds(
    Principal,
    st.builds(Tenant, st.sampled_from(["", "search"]), st.floats(0.1, 9.0), st.booleans()),
    st.text(max_size=12),
    st.frozensets(st.sampled_from(Scope)),
    st.lists(patterns, max_size=2),
    st.booleans(),
    collections=st.lists(patterns, max_size=2),
)


def sent(principal: Principal) -> Principal:
    """Return the principal as the supervisor gets it."""
    return principal_of(msgspec.msgpack.decode(msgspec.msgpack.encode(sender_of(principal)), type=Sender))


@given(principals)
def test_sent_principal_may_do_the_same(principal: Principal) -> None:
    received = sent(principal)
    for name in ("tenant", "key_id", "scopes", "sees_all", "counts_of"):
        assert getattr(received, name) == getattr(principal, name)
    assert [received.may_use(model) for model in MODELS] == [principal.may_use(model) for model in MODELS]
    assert [received.may_search(each) for each in MODELS] == [principal.may_search(each) for each in MODELS]


def test_sender_without_key_stays_the_same() -> None:
    assert sent(ANONYMOUS).tenant is DEFAULT_TENANT
    assert sent(ANONYMOUS).sees_all
    assert not sent(UNAUTHENTICATED).may_use("a")
    assert not sent(UNAUTHENTICATED).may_search("a")
    assert not sent(UNAUTHENTICATED).scopes
