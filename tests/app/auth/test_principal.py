"""Check which models a principal may use."""

from hypothesis import given
from hypothesis import strategies as st

from app.auth.principal import ANONYMOUS, UNAUTHENTICATED, Principal, Scope
from frameworks.core.tenants import Tenant

TENANT = Tenant("search", 3.0)


def test_anonymous_principal_may_use_everything() -> None:
    assert ANONYMOUS.sees_all
    assert ANONYMOUS.may_use("any")
    assert ANONYMOUS.scopes == set(Scope)


def test_unauthenticated_principal_sees_nothing() -> None:
    assert not UNAUTHENTICATED.sees_all
    assert not UNAUTHENTICATED.may_use("any")
    assert UNAUTHENTICATED.counts_of == ""


def test_only_operators_see_all_counts() -> None:
    assert ANONYMOUS.counts_of is None
    assert Principal(TENANT, patterns=[("*",)]).counts_of == "search"
    assert Principal(TENANT, patterns=[("a*",)], is_operator=True).counts_of is None


def test_model_must_match_tenant_and_key() -> None:
    principal = Principal(TENANT, "k1", frozenset({Scope.INFER}), [("minilm*", "digits"), ("*-int8", "digits")])
    assert not principal.sees_all
    names = ("minilm", "minilm-int8", "digits", "digits-int8", "MiniLM-int8", "")
    assert [name for name in names if principal.may_use(name)] == ["minilm-int8", "digits"]


def test_remembered_names_are_bounded() -> None:
    principal = Principal(TENANT, patterns=[("a*",)])
    for number in range(10_000):
        assert principal.may_use(f"a{number}")
        assert not principal.may_use(f"b{number}")
    assert len(principal._by_name) <= 4096


def test_long_names_are_not_matched() -> None:
    principal = Principal(TENANT, patterns=[("a*",)])
    assert principal.may_use("a" * 128)
    assert not principal.may_use("a" * 129)


@given(st.text(max_size=300), st.lists(st.text(alphabet="ab*?", max_size=4), max_size=3))
def test_second_answer_equals_first(name: str, patterns: list[str]) -> None:
    principal = Principal(TENANT, patterns=[tuple(patterns)])
    assert principal.may_use(name) == principal.may_use(name)
    assert not Principal(TENANT, patterns=[()]).may_use(name)
