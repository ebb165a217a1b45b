"""Check which tenants share cached results."""

from frameworks.core.tenants import DEFAULT_TENANT, Tenant


def test_cache_scope_is_own_unless_shared() -> None:
    assert Tenant("a").cache_scope == "a"
    assert Tenant("a", shares_caches=True).cache_scope == Tenant("b", 2.0, shares_caches=True).cache_scope == ""
    assert DEFAULT_TENANT.cache_scope == ""
