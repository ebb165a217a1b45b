"""The table of permissions has each route and each method of the server, and no other."""

from pathlib import Path
from typing import Any

import pytest

from app.auth.authenticator import Authenticator
from app.auth.key_store import KeyStore
from app.auth.permissions import GRPC_ACCESS
from app.auth.principal import ANONYMOUS, Principal
from app.config import AuthSettings, LoadedSettings, Settings
from app.extension import http_access
from app.grpc.authorization import CallAuthorization
from app.grpc.call import GrpcError
from app.grpc.management import management_methods
from app.grpc.services import build_methods
from app.http.endpoint import Endpoint
from app.observability.metrics import Observer
from app.server.build import Host, build, build_routes
from frameworks.core.tenants import Tenant
from tests.support.fake_probe import FakeProbe

HTTP_ACCESS = http_access()


@pytest.fixture
def endpoint() -> Endpoint:
    return build(LoadedSettings(Settings(), Path.cwd()), "all", Host(FakeProbe())).app


def test_table_equals_the_routes(endpoint: Endpoint) -> None:
    """A route without an entry is refused for every key: add it to HTTP_ACCESS with the scope that it needs."""
    middleware: Any = endpoint._admin
    application = middleware._app.built()._admin  # below the page
    routes = {(route.path, "POST") for route in build_routes().routes}
    routes |= {(route.path, method) for route in application.state.routes for method in route.methods}
    # An adapter may be called predict: /v1/models/{name} describes it.
    routes |= {("/v1/models/{name}:predict", "GET")}
    renamed = {(path.replace("{name:model}", "{name}"), method) for path, method in routes}
    assert renamed == {(path, method) for path, methods in HTTP_ACCESS.items() for method in methods}


def test_table_equals_the_methods(endpoint: Endpoint) -> None:
    answer: Any = None
    unary, streams = build_methods(endpoint._pipeline, management_methods(answer, Observer("none", 1000)), None)
    assert unary.keys() | streams.keys() == GRPC_ACCESS.keys()


def test_method_without_entry_is_denied(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keys.toml", AuthSettings(mode="required"))
    gate = CallAuthorization(Authenticator(store), Observer("none", 1000))
    unary: dict[str, Any] = {"/a.Service/Later": lambda request, call: request}
    streams: dict[str, Any] = {"/grpc.health.v1.Health/Watch": lambda requests, call: requests}
    gate.with_scopes(unary, streams)

    class Call:
        principal = Principal(Tenant("search"))

    with pytest.raises(GrpcError, match=r"expected a key with a scope of /a\.Service/Later") as raised:
        unary["/a.Service/Later"](b"", Call())
    assert raised.value.code == "PERMISSION_DENIED"
    Call.principal = ANONYMOUS
    assert streams["/grpc.health.v1.Health/Watch"]("requests", Call()) == "requests"
