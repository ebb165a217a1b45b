"""The entry of a path in the table of permissions."""

import pytest

from app.auth.permissions import EXEMPT, GRPC_ACCESS, INFER, READ, HttpAccess
from app.extension import http_access

HTTP_ACCESS = http_access()

FIND = HttpAccess(HTTP_ACCESS).find


@pytest.mark.parametrize("name", ["a", "org/a"])
@pytest.mark.parametrize("path", HTTP_ACCESS)
def test_every_entry_is_found(path: str, name: str) -> None:
    filled = path.replace("{rest:path}", "b/c").format(
        name=name, version="1", adapter="d", file="x.css", collection="c"
    )
    for given in (filled, f"{filled}/"):
        found = FIND(given)
        assert found is not None
        assert found.methods.items() >= HTTP_ACCESS[path].items()
        assert found.model == (name if "{name}" in path else "")


@pytest.mark.parametrize(
    "path",
    [
        "", "//models", "/models//", "/models/a//infer", "/models//infer", "/Models", "/health/live/x", "/health/livex",
        "/models\n", "/models/a/load\n", "/v2/health", "/./models", "/models/../models", "/v2/loggingx", "models",
    ],
)  # fmt: skip
def test_other_paths_have_no_entry(path: str) -> None:
    assert FIND(path) is None


def test_head_is_as_get() -> None:
    found = FIND("/models")
    assert found is not None
    assert found.methods["HEAD"] is READ
    infer = FIND("/infer")
    assert infer is not None
    assert dict(infer.methods) == {"POST": INFER}


def test_only_health_and_documents_are_exempt() -> None:
    exempt = [path for path, methods in HTTP_ACCESS.items() if EXEMPT in methods.values()]
    health = ["/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready"]
    assert exempt == [*health, "/docs", "/docs/{file}", "/openapi.json"]
    methods = [path for path, access in GRPC_ACCESS.items() if access is EXEMPT]
    assert methods == ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"]


def test_long_paths_are_not_kept() -> None:
    access = HttpAccess(HTTP_ACCESS)
    for number in range(10):
        assert access.find(f"/models/{'a' * 300}{number}/infer") is not None
        assert access.find("/models/a/infer") is not None
    assert access._find_cached.cache_info().currsize == 1
