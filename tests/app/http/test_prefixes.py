"""Prefixes of paths: what is taken off, whose header is believed, and what names paths for clients."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Scope

from app.auth.permissions import HTTP_ACCESS as CORE_ACCESS
from app.config.loading import ServerSettings
from app.config.web_names import OWN_FIRST_PARTS, first_parts
from app.extension import http_access
from app.http.prefixes import PathPrefixes, PrefixRules, prefix_of

HTTP_ACCESS = http_access()

PROXY = "10.1.2.3"
RULES = PrefixRules("/llm", ("10.0.0.0/8", "fd00::1"))


def seen(path: str, client: str = "192.0.2.1", forwarded: tuple[str, ...] = (), rules: PrefixRules = RULES) -> Scope:
    """Return the scope of a request after its prefix was taken off."""
    headers = [(b"x-forwarded-prefix", each.encode("latin-1")) for each in forwarded]
    scope = {"path": path, "raw_path": path.encode(), "headers": headers, "client": (client, 1)}
    PathPrefixes(rules).set_prefix(scope)
    return scope


@pytest.mark.parametrize(
    ("path", "left"),
    [("/llm/v1/models", "/v1/models"), ("/llm", "/"), ("/llm/", "/"), ("/v1/models", "/v1/models"), ("/llms", "/llms")],
)
def test_root_path_is_taken_off(path: str, left: str) -> None:
    scope = seen(path)
    assert (scope["path"], scope["raw_path"], prefix_of(scope)) == (left, path.encode(), "/llm")


@pytest.mark.parametrize(
    ("client", "prefix"),
    [(PROXY, "/team"), ("::ffff:10.1.2.3", "/team"), ("fd00::1", "/team"), ("fd00::2", ""), ("11.0.0.1", ""), ("", "")],
)
def test_only_proxies_name_a_prefix(client: str, prefix: str) -> None:
    scope = seen("/models", client, ("/team/",), RULES._replace(root_path=""))
    assert prefix_of(scope) == prefix
    assert (scope["path"], scope["raw_path"]) == ("/models", f"{prefix}/models".encode())


@pytest.mark.parametrize(
    ("forwarded", "prefix"),
    [
        (("/a", "/b"), "/a/b"),
        (("/a, /b/",), "/a/b"),
        (("/",), "/llm"),
        (("a",), "/llm"),
        (('/"><script>',), "/llm"),
        (("/../x",), "/llm"),
        (("//evil.example.org",), "/llm"),
        (("/" + "a" * 300,), "/llm"),
    ],
)
def test_unusable_prefix_is_ignored(forwarded: tuple[str, ...], prefix: str) -> None:
    assert prefix_of(seen("/models", PROXY, forwarded)) == prefix


@given(st.text(st.characters(max_codepoint=255), max_size=300))
def test_any_prefix_needs_no_escapes(text: str) -> None:
    prefix = prefix_of(seen("/models", PROXY, (text,), RULES._replace(root_path="")))
    assert prefix == "" or (prefix.startswith("/") and not prefix.startswith("//") and prefix.isascii())
    assert not set(prefix) & set("\"'<>&%?#\\ \r\n")


@pytest.mark.parametrize("path", ["llm", "/a b", "/a//b", "/v1", "/models/x", "/a/..", "/%61", "//a", "/generate"])
def test_wrong_root_path_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="expected a path"):
        ServerSettings(root_path=path)


def test_slash_behind_root_path_is_dropped() -> None:
    assert (ServerSettings(root_path="/llm/").root_path, ServerSettings(root_path="/").root_path) == ("/llm", "")


def test_wrong_proxy_is_refused() -> None:
    with pytest.raises(ValueError, match="expected an IP address or a network"):
        ServerSettings(trusted_proxies=("proxy.example.org",))


def test_first_parts_of_all_routes_are_known() -> None:
    assert {path.split("/")[1] for path in HTTP_ACCESS} | {"web"} == first_parts()


def test_core_names_parts_of_its_routes_only() -> None:
    assert {path.split("/")[1] for path in CORE_ACCESS} - {""} | {"web"} == OWN_FIRST_PARTS
