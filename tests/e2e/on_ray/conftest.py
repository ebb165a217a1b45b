"""The cluster that all tests on Ray share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.configs import ALL_KINDS, EMBEDDED, onnx_entries, text_entries
from tests.e2e.on_ray.cluster import SHARED, DeployedServer, RayCluster

FOLDER = Path(__file__).parent


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """End the cluster before other tests run: its processes compute when they are idle, too."""
    try:
        return (yield)
    finally:
        if nextitem is None or FOLDER not in nextitem.path.parents:
            SHARED.close()


@pytest.fixture(scope="module")
def cluster() -> RayCluster:
    return SHARED.get()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> DeployedServer:
    """A deployment in place of the server that contract tests share: the embedded models, and those of texts."""
    folder = tmp_path_factory.mktemp("contract")
    models = EMBEDDED + onnx_entries(folder, {"slow": ALL_KINDS["slow"]}) + text_entries(folder)
    return SHARED.deployed("contract", folder, models)
