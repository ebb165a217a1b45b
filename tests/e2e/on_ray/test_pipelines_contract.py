"""Run the tests of pipelines over every protocol unchanged against a deployment on Ray."""

from collections.abc import Iterator

import pytest

from tests.e2e.on_ray.cluster import DeployedServer, RayCluster, deployment
from tests.e2e.test_pipelines import PIPELINES, TestProtocols, model_entries

__all__ = ["TestProtocols"]

pytestmark = [pytest.mark.ray, pytest.mark.nightly]


@pytest.fixture(scope="module")
def server(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedServer]:
    folder = tmp_path_factory.mktemp("pipelines")
    with deployment(cluster, folder, PIPELINES + model_entries(folder), "pipelines") as deployed:
        yield deployed
