"""A deployment with a model of every kind: some forty replicas."""

from collections.abc import Iterator

import pytest

from tests.e2e.configs import ALL_KINDS, EMBEDDED, onnx_entries, text_entries
from tests.e2e.on_ray.cluster import DeployedServer, RayCluster, deployment


@pytest.fixture(scope="session")
def server(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedServer]:
    """A deployment in place of the server that contract tests share."""
    folder = tmp_path_factory.mktemp("kinds")
    with deployment(cluster, folder, EMBEDDED + onnx_entries(folder, ALL_KINDS) + text_entries(folder), "kinds") as one:
        yield one
