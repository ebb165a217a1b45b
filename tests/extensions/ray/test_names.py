"""Names of Serve deployments."""

import pytest

pytest.importorskip("ray")


def test_deployment_name_has_no_slash() -> None:
    from extensions.ray.deployment import deployment_name

    names = [deployment_name(name) for name in ("org/a", "org-a", "org.a", "org_a", "a")]
    assert not any("/" in name for name in names)
    assert len(set(names)) == len(names)
