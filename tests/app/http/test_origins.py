"""Hosts and origins: which requests a page in a browser may send."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.auth.errors import Forbidden
from app.http.origins import OriginPolicy, OriginRules
from frameworks.core.errors import InvalidInput

POLICY = OriginPolicy(
    OriginRules(("Models.example.org", "*.example.com"), ("https://app.example.org", "http://localhost:3000"))
)
DEFAULT = OriginPolicy(OriginRules())
VARY = (b"vary", b"Origin")


def check(policy: OriginPolicy, method: str = "POST", version: str = "1.1", **headers: Any) -> dict[bytes, bytes]:
    """Return the headers of the response. `host` may be a list of values."""
    hosts = headers.pop("host", "localhost:8080")
    hosts = hosts if isinstance(hosts, list) else [hosts]
    given = [(b"accept", b"*/*"), *((b"host", host.encode("latin-1")) for host in hosts)]
    given += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return dict(policy.check({"type": "http", "method": method, "http_version": version, "headers": given}))


class TestHost:
    @pytest.mark.parametrize(
        "host",
        [
            *(
                "localhost",
                "LOCALHOST:1",
                "localhost.",
                "127.0.0.1",
                "127.0.0.1:8080",
                "10.1.2.3:80",
                "[::1]",
                "[::1]:8080",
            ),
            *(
                "[::ffff:10.0.0.1]:1",
                "[fe80::1]",
                "testserver",
                "x",
                "roundhouse:8080",
                "host.docker.internal",
                "127.1",
            ),
            *("roundhouse.default.svc.cluster.local", "roundhouse.default.svc:8080", "machine.local", "a.localhost"),
        ],
    )
    def test_own_host_is_answered(self, host: str) -> None:
        assert check(DEFAULT, host=host) == {}

    @pytest.mark.parametrize(
        "host",
        [
            *(
                "evil.example",
                "evil.example:8080",
                "localhost.evil.example",
                "127.0.0.1.evil.example",
                "a.models.example.org",
            ),
            *("example.com", "evilexample.com", "xinternal.org", "1.2.3.4x.org"),
        ],
    )
    def test_foreign_host_is_refused(self, host: str) -> None:
        for _ in range(2):
            with pytest.raises(Forbidden, match=f'^host: expected .*, got "{host}"; add it to server.allowed_hosts'):
                check(POLICY, "GET", host=host)

    @pytest.mark.parametrize(
        "host", ["models.example.org", "MODELS.example.org:443", "a.example.com", "a.b.example.com."]
    )
    def test_allowed_host_is_answered(self, host: str) -> None:
        assert check(POLICY, host=host) == dict([VARY])
        with pytest.raises(Forbidden):
            check(DEFAULT, host=host)
        assert check(OriginPolicy(OriginRules(("*",))), host=host) == {}

    @pytest.mark.parametrize("host", [[], ["localhost", "localhost"], ["localhost", "evil.example"]])
    def test_one_host_is_expected(self, host: list[str]) -> None:
        check(DEFAULT)
        with pytest.raises(InvalidInput, match=f"^host: expected one Host header, got {len(host) or 'none'};"):
            check(DEFAULT, host=host)

    def test_host_is_absent_only_in_old_http(self) -> None:
        assert check(DEFAULT, version="1.0", host=[]) == {}
        for version, hosts in (("1.0", ["a", "b"]), ("1.1", []), ("1.0", ["evil.example"])):
            with pytest.raises((InvalidInput, Forbidden)):
                check(DEFAULT, version=version, host=hosts)

    @pytest.mark.parametrize(
        "host", ["", ":80", "a b", "a/b", "user@localhost", "[::1", "[x]:1", "a:b", "localhost:123456", "é"]
    )
    def test_invalid_host_is_refused(self, host: str) -> None:
        with pytest.raises(InvalidInput, match=r"^host: expected a name or an address"):
            check(OriginPolicy(OriginRules(("*",))), host=host)

    @given(st.binary(max_size=30))
    def test_any_bytes_are_answered_or_refused(self, host: bytes) -> None:
        scope = {"type": "http", "method": "GET", "headers": [(b"host", host)]}
        try:
            DEFAULT.check(scope)
        except (InvalidInput, Forbidden) as error:
            assert str(error).startswith("host: ")  # noqa: PT017 - either is right

    def test_accepted_hosts_are_remembered_within_a_bound(self) -> None:
        policy = OriginPolicy(OriginRules())
        for number in range(3000):
            check(policy, host=f"10.0.0.{number}")
        assert len(policy.known_hosts) == 1024


class TestOrigin:
    @pytest.mark.parametrize(
        "headers",
        [
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": "http://localhost:8081"},
            {"origin": "https://evil.example", "sec_fetch_site": "cross-site"},
            {"origin": "http://localhost:3001", "sec_fetch_site": "same-site"},
            {"origin": "http://localhost:8080", "sec_fetch_site": "cross-site"},
            {"sec_fetch_site": "cross-site"},
            {"origin": "https://app.example.org.evil.example"},
            {"origin": "https://app.example.org:444"},
        ],
    )
    @pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH"])
    def test_foreign_page_changes_nothing(self, headers: dict[str, str], method: str) -> None:
        for policy in (POLICY, DEFAULT):
            with pytest.raises(Forbidden, match=r"^origin: expected .*; add it to server\.cors_origins"):
                check(policy, method, **headers)
            for safe in ("GET", "HEAD", "OPTIONS"):
                assert b"access-control-allow-origin" not in check(policy, safe, **headers)

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"origin": "http://localhost:8080"},
            {"origin": "https://localhost:8080"},
            {"origin": "http://localhost:8080", "sec_fetch_site": "same-origin"},
            {"origin": "https://outer.example", "sec_fetch_site": "same-origin"},
            {"sec_fetch_site": "none"},
        ],
    )
    def test_own_page_and_other_clients_may_call(self, headers: dict[str, str]) -> None:
        assert check(DEFAULT, **headers) == {}

    @pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
    def test_allowed_page_may_call_and_read(self, method: str) -> None:
        for origin in ("https://app.example.org", "http://localhost:3000"):
            headers = check(POLICY, method, origin=origin, sec_fetch_site="cross-site")
            assert headers[b"access-control-allow-origin"] == origin.encode()
            assert headers[b"vary"] == b"Origin"
            assert b"x-request-id" in headers[b"access-control-expose-headers"]
            assert b"access-control-allow-credentials" not in headers

    def test_any_page_may_call_where_all_are_allowed(self) -> None:
        policy = OriginPolicy(OriginRules((), ("*",)))
        for origin in ("https://evil.example", "null"):
            assert check(policy, origin=origin)[b"access-control-allow-origin"] == b"*"
        with pytest.raises(Forbidden):
            check(policy, origin="https://evil.example", host="evil.example")


class TestPreflight:
    def test_allowed_page_gets_methods_and_headers(self) -> None:
        asked = [
            (b"origin", b"https://app.example.org"),
            (b"access-control-request-method", b"DELETE"),
            (b"access-control-request-headers", b"authorization,content-type,x-stainless-os"),
        ]
        headers = POLICY.preflight(asked)
        assert headers is not None
        assert [value for name, value in headers if name == b"vary"] == [
            b"Origin",
            b"Access-Control-Request-Method, Access-Control-Request-Headers",
        ]
        named = dict(headers)
        assert named[b"access-control-allow-origin"] == b"https://app.example.org"
        assert b"DELETE" in named[b"access-control-allow-methods"]
        assert named[b"access-control-allow-headers"] == b"authorization,content-type,x-stainless-os"

    def test_other_options_are_no_preflight(self) -> None:
        assert POLICY.preflight([(b"origin", b"https://app.example.org")]) is None
        assert POLICY.preflight([(b"access-control-request-method", b"POST")]) is None

    def test_foreign_page_is_refused(self) -> None:
        for policy in (POLICY, DEFAULT):
            with pytest.raises(Forbidden):
                policy.preflight([(b"origin", b"https://evil.example"), (b"access-control-request-method", b"POST")])
