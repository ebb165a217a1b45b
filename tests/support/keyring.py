"""Make API keys, and the file that a server reads them from."""

import time
from dataclasses import dataclass
from pathlib import Path

from app.auth.key_file import format_keys
from app.auth.keys import Key, create_key
from app.auth.principal import Scope


@dataclass(frozen=True, slots=True)
class MadeKey:
    """A key and the text that clients send."""

    key: Key
    text: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.text}"}

    @property
    def metadata(self) -> tuple[tuple[str, str]]:
        return (("authorization", f"Bearer {self.text}"),)


def make_key(
    tenant: str,
    *scopes: Scope,
    lifetime_s: float | None = None,
    models: tuple[str, ...] = ("*",),
    is_signed: bool = False,
    collections: tuple[str, ...] = ("*",),
) -> MadeKey:
    """Return a new key. No scope: all scopes. `lifetime_s`: from ten seconds ago on."""
    created_s = int(time.time()) - 10  # the file holds whole seconds
    made = create_key(tenant, frozenset(scopes or Scope), created_s, models, lifetime_s, is_signed, collections)
    return MadeKey(*made)


def write_keys(file: Path, *keys: MadeKey) -> None:
    """Replace the keys file, so that a server that watches it sees the old or the new one."""
    draft = file.with_name(f"{file.name}.draft")
    draft.write_text(format_keys(each.key for each in keys), encoding="utf-8")
    draft.replace(file)
