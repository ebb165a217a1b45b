"""The contract of an extension: the parts that a folder below `extensions` adds to the core.

The core imports no extension: it finds each by the name of its folder. The package of an extension has EXTENSION. Its
`__init__.py` imports nothing but this module; the functions of an Extension import what they need when they are called.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from frameworks.core.extras import found_extensions

if TYPE_CHECKING:
    from app.admin.extension_part import ExtensionPart
    from app.auth.permissions import Access
    from app.config import LoadedSettings
    from app.config.tables import ConfigTable
    from app.inference.pipeline import Pipeline
    from app.protocols.shared.routes import Route
    from frameworks.core.addresses import Scheme, SourceAddress
    from frameworks.core.vector_search import LocalCollections
    from frameworks.models.replicas.control import ControlLink, Workers
    from frameworks.models.residency.ledger import MemoryLedger
    from frameworks.models.residency.loader import CompositeLoader
    from frameworks.models.residency.subrequests import SubRequests
    from frameworks.models.versions.slot import ModelSlot
    from frameworks.sources.contract import OpenRemote, Remote


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """The process in which an extension opens its part: a single server, a supervisor or a worker.

    `models`: runs models for a part of a request. `slots`: all models by name and alias. `composites`: the loaders of
    composite models by framework; the extension that has their table adds one. `ledger`: None in a worker. `workers`:
    only of a supervisor. `link`: to the supervisor, not yet open; only of a worker. `keeps_files`: whether what is
    created at run time is kept for the next start. `offers`: what extensions give to the core and to each other, by its
    class.
    """

    loaded: "LoadedSettings"
    pipeline: "Pipeline"
    models: "SubRequests"
    slots: "Mapping[str, ModelSlot]"
    composites: "dict[str, CompositeLoader]"
    ledger: "MemoryLedger | None" = None
    workers: "Workers | None" = None
    link: "ControlLink | None" = None
    keeps_files: bool = True
    offers: dict[type[Any], Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """The parts that an extension adds; a field that is left out adds nothing.

    `tables()`: tables of config.toml.
    `add_commands(commands)`: adds commands to the command line, by `app.cli.parser.add_command(commands, …)`.
    `routes()`: inference routes with their codecs; requests find them after those of the core.
    `open(process)`: its part in one process of a server; None: this process has none. Operations, routes that describe
    or change the server, metrics, start and stop are those of the part.
    `access()`: the scope that each path of these routes needs, as in app/auth/permissions.py. A `server.root_path` may
    not begin as one of these paths.
    `messages()`: classes of messages to a worker, and from a worker, beside those of app/workers/messages.py. Each has
    a name that no other message has.
    `sources()`: for each scheme of a model's address, the function that opens a remote; the core opens `hf` itself.
    `local_collections(loaded)`: opens collections of the settings without a server.
    `connect_to_cluster(option, where, **arguments)`: connects this process to a cluster of other machines, for a
    command. `option`, `where`: that of the command and the address, for messages. Raises ConnectionError with one.
    """

    tables: "Callable[[], Sequence[ConfigTable]]" = tuple
    add_commands: Callable[[Any], None] = lambda _: None
    routes: "Callable[[], Sequence[Route]]" = tuple
    open: "Callable[[ServerProcess], ExtensionPart | None]" = lambda _: None
    access: "Callable[[], Mapping[str, Mapping[str, Access]]]" = dict
    messages: "Callable[[], tuple[Iterable[type[Any]], Iterable[type[Any]]]]" = lambda: ((), ())
    sources: "Callable[[], Mapping[Scheme, OpenRemote]]" = dict
    local_collections: "Callable[[LoadedSettings], LocalCollections] | None" = None
    connect_to_cluster: Callable[..., None] | None = None


def extensions() -> tuple[Extension, ...]:
    """Return the extensions of this installation in the order of their names; none if it has no such folder."""
    return cast("tuple[Extension, ...]", found_extensions())


def open_parts(process: ServerProcess) -> "tuple[ExtensionPart, ...]":
    """Open the parts of all extensions in a process, in the order of their names."""
    parts = [extension.open(process) for extension in extensions()]
    return tuple(part for part in parts if part is not None)


def open_remote(address: "SourceAddress") -> "Remote":
    """Open the source of an address, of the core or of an extension. Raises InvalidModel."""
    from frameworks.sources import remotes

    added = {scheme: open_added for each in extensions() for scheme, open_added in each.sources().items()}
    return remotes.open_remote(address, added)


def http_access() -> "Mapping[str, Mapping[str, Access]]":
    """Return the table of permissions of all HTTP routes. Two parts of the server can have methods of one path.

    Raises ValueError for a method of a path that two of them have.
    """
    from app.auth.permissions import HTTP_ACCESS

    table = {path: dict(methods) for path, methods in HTTP_ACCESS.items()}
    for extension in extensions():
        for path, methods in extension.access().items():
            known = table.setdefault(path, {})
            if twice := known.keys() & methods.keys():
                raise ValueError(f"{path}: expected one entry of {min(twice)}, got two; remove one")
            known.update(methods)
    return table
