"""The cluster that all tests on Ray share."""

from pathlib import Path

import pytest

from tests.e2e.configs import ALL_KINDS, EMBEDDED, onnx_entries, text_entries
from tests.e2e.on_ray.cluster import SHARED, DeployedServer, RayCluster
from tests.support.closing import closed_after

# The processes of the cluster compute when they are idle, too.
pytest_runtest_teardown = closed_after(Path(__file__).parent, SHARED.close)


@pytest.fixture(scope="module")
def cluster() -> RayCluster:
    return SHARED.get()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> DeployedServer:
    """A deployment in place of the server that contract tests share: the embedded models, and those of texts."""
    folder = tmp_path_factory.mktemp("contract")
    models = EMBEDDED + onnx_entries(folder, {"slow": ALL_KINDS["slow"]}) + text_entries(folder)
    return SHARED.deployed("contract", folder, models)
