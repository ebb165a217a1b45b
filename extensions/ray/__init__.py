"""Deploy the server on a Ray cluster: an ingress with the whole server but its models, and replicas of the models.

Begin with `serve_application.py`, which binds the deployments; `deployment.py` makes them. `ingress/` and `replica/`
are the processes of both kinds. Discovery, placement, health checks and updates are those of Ray Serve. Requests travel
over one TCP connection from each ingress to each replica, as frames of `frameworks.engine.process.wire`: a frame takes
20 µs of CPU, a call of a Serve handle 4 ms. Manual: docs/ray.md.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from app.extension import Extension

if TYPE_CHECKING:
    from ray import serve

    from app.config.tables import ConfigTable


def application(arguments: dict[str, str]) -> "serve.Application":
    """Build the application for `serve run extensions.ray:application config=config.toml`, and for Serve's config
    files. Raises ConfigError.
    """
    from extensions.ray.serve_application import configured_application

    return configured_application(arguments)


def _tables() -> "Sequence[ConfigTable]":
    from extensions.ray.settings import TABLE

    return (TABLE,)


def _add_commands(commands: Any) -> None:
    from extensions.ray.command import add_deploy

    add_deploy(commands)


def _connect_to_cluster(option: str, where: str, **arguments: Any) -> None:
    from extensions.ray.cluster import connect

    connect(option, where, **arguments)


EXTENSION = Extension(tables=_tables, add_commands=_add_commands, connect_to_cluster=_connect_to_cluster)
