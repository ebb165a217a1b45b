"""The authenticated sender of a request: its tenant, its key, and the permissions of the key."""

from collections.abc import Iterable
from enum import StrEnum
from fnmatch import fnmatchcase

from frameworks.core.tenants import DEFAULT_TENANT, Tenant

_MAX_REMEMBERED_NAMES = 4096
# No model has a longer one, and matching takes longer for long names.
_MAX_NAME_CHARACTERS = 128


class Scope(StrEnum):
    """The permissions of a key. `INFER`: inference and searches. `READ`: models, metrics, statistics. `WRITE`: change
    the records of collections. `MANAGE`: change models.
    """

    INFER = "infer"
    READ = "read"
    WRITE = "write"
    MANAGE = "manage"


class Principal:
    """The sender of requests with one key. Immutable, and shared by all requests with that key."""

    __slots__ = (
        "_by_name", "collections", "counts_of", "is_signed", "key_id", "patterns", "scopes", "sees_all", "sees_paths",
        "tenant",
    )  # fmt: skip

    def __init__(
        self,
        tenant: Tenant,
        key_id: str = "",
        scopes: frozenset[Scope] = frozenset(Scope),
        patterns: Iterable[tuple[str, ...]] = (),
        is_operator: bool = False,
        is_signed: bool = False,
        collections: Iterable[tuple[str, ...]] = (),
    ) -> None:
        """`patterns`: sets of glob patterns, of the tenant and of the key; a model has to match one of each set.

        `is_operator`: the tenant sees the counts of all tenants. `is_signed`: each request of the key has a signature.
        `collections`: the same of collections.
        """
        self.tenant = tenant
        self.key_id = key_id
        self.scopes = scopes
        self.is_signed = is_signed
        self.patterns = tuple(patterns)
        self.collections = tuple(collections)
        self.sees_all = all("*" in each for each in self.patterns)
        """Whether every model may be used. Code for all requests checks it before `may_use`."""
        self.sees_paths = Scope.MANAGE in scopes
        """Whether messages and descriptions may have paths of the machine."""
        self.counts_of = None if is_operator else tenant.name
        """The tenant whose requests are counted in statistics and metrics; None: all tenants."""
        # Names are the caller's: the number of remembered ones is bounded.
        self._by_name: dict[str, bool] = {}

    def may_use(self, model: str) -> bool:
        """Whether a model may be used and seen. Case-sensitive."""
        if self.sees_all:
            return True
        known = self._by_name.get(model)
        if known is None:
            if len(model) > _MAX_NAME_CHARACTERS:
                return False
            known = all(any(fnmatchcase(model, pattern) for pattern in each) for each in self.patterns)
            if len(self._by_name) < _MAX_REMEMBERED_NAMES:
                self._by_name[model] = known
        return known

    def may_search(self, collection: str) -> bool:
        """Whether a collection may be used and seen. Case-sensitive."""
        if all("*" in each for each in self.collections):
            return True
        if len(collection) > _MAX_NAME_CHARACTERS:
            return False
        return all(any(fnmatchcase(collection, pattern) for pattern in each) for each in self.collections)


ANONYMOUS = Principal(DEFAULT_TENANT, is_operator=True)
"""The sender of every request to a server without keys."""

UNAUTHENTICATED = Principal(DEFAULT_TENANT, scopes=frozenset(), patterns=[()], collections=[()])
"""The sender of a request without a key to a server that requires keys. It sees no model and no collection."""
