"""Create, list, revoke and rotate API keys: `roundhouse keys`. Changes the keys file; no server has to run."""

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.parser import add_command, config_file, print_table

if TYPE_CHECKING:
    from app.auth.keys import Key
    from app.auth.principal import Scope
    from app.config import AuthSettings

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MAX_DURATION_S = 36_500 * 86_400
_MAX_PATTERN_CHARACTERS = 256


class _Failed(Exception):
    """The command cannot do it; the message has the reason."""


def add_keys(commands: Any) -> None:
    """Add `roundhouse keys` with its four commands."""
    keys = add_command(
        commands,
        "keys",
        "Create, list, revoke and rotate the API keys of a server.",
        "roundhouse keys create --tenant search --scopes infer,read\n  roundhouse keys list",
    )
    actions = keys.add_commands("ACTION")
    _add_create(actions)
    listing = add_command(actions, "list", "List the keys, without their secrets.", "roundhouse keys list --json")
    listing.add_argument("--json", action="store_true", help="print a JSON array")
    revoke = add_command(
        actions, "revoke", "Remove keys at once.", "roundhouse keys revoke 4fk29sl0a8dj --file keys.toml"
    )
    revoke.add_argument("ids", nargs="+", metavar="ID", help="the 12 characters after rh_")
    rotate = add_command(
        actions,
        "rotate",
        "Print a new key with the same rights. The old key stays valid for a time.",
        "roundhouse keys rotate 4fk29sl0a8dj --overlap 24h",
    )
    rotate.add_argument("id", metavar="ID", help="the 12 characters after rh_")
    rotate.add_argument(
        "--overlap", type=_duration, default="24h", metavar="TIME", help="time until the old key ends; default: 24h"
    )
    for parser, run in ((listing, _list), (revoke, _revoke), (rotate, _rotate)):
        _add_file(parser, run)


def _add_create(actions: Any) -> None:
    create = add_command(
        actions,
        "create",
        "Print a new key, once. The file holds only its hash.",
        "roundhouse keys create --tenant search --scopes infer,read --models 'minilm*' --expires 90d",
    )
    create.add_argument("--tenant", required=True, help="name of the tenant, whose share and limits the key uses")
    create.add_argument(
        "--scopes", required=True, type=_scopes, metavar="LIST", help="of infer, read, write and manage"
    )
    create.add_argument(
        "--models", nargs="+", type=_pattern, default=["*"], metavar="PATTERN", help="glob patterns; default: all"
    )
    create.add_argument(
        "--collections", nargs="+", type=_pattern, default=["*"], metavar="PATTERN", help="the same of collections"
    )
    create.add_argument("--expires", type=_duration, metavar="TIME", help="lifetime, like 90d or 12h; default: no end")
    create.add_argument("--signed", action="store_true", help="each request with this key has to be signed (RFC 9421)")
    _add_file(create, _create)


def _add_file(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], None]) -> None:
    parser.add_argument("--file", type=Path, help="the keys file; default: auth.keys_file of the configuration")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="default: ROUNDHOUSE_CONFIG, else ./config.toml if it exists"
    )
    parser.set_defaults(run=_run, action=run)


def _run(options: argparse.Namespace) -> int:
    from app.auth.key_file import InvalidKeysFile
    from app.cli.client import failure, print_failure
    from app.config import ConfigError

    try:
        options.action(options)
    except (_Failed, InvalidKeysFile, ConfigError) as error:
        code = "invalid_config" if isinstance(error, ConfigError) else "invalid_keys"
        print_failure(failure(code, str(error)), getattr(options, "json", False))
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def _create(options: argparse.Namespace) -> None:
    from app.auth.keys import create_key

    file, settings = _file(options)
    _check_tenant(options.tenant, settings)
    key, text = create_key(
        options.tenant,
        options.scopes,
        _now_s(),
        tuple(options.models),
        options.expires,
        options.signed,
        tuple(options.collections),
    )
    with _editing(file) as keys:
        keys[key.key_id] = key
    _show(text, f"key {key.key_id} of tenant {key.tenant}, {_end(key)}, is in {file}; the key is shown only now")


def _list(options: argparse.Namespace) -> None:
    from app.auth.key_file import read_keys

    file, _ = _file(options)
    keys, version = read_keys(file)
    if version is None:
        print(f"{file}: no such file; `roundhouse keys create` makes it", file=sys.stderr)
    if options.json:
        print(json.dumps([_as_json(key) for key in keys.values()], indent=2))
        return
    rows = [("ID", "TENANT", "SCOPES", "MODELS", "COLLECTIONS", "CREATED", "EXPIRES", "STATE")]
    for key in keys.values():
        shown = _as_json(key)
        lists = (",".join(shown[name]) for name in ("scopes", "models", "collections"))
        rows.append((key.key_id, key.tenant, *lists, shown["created"], shown["expires"] or "-", _state(key)))
    print_table(rows)


def _revoke(options: argparse.Namespace) -> None:
    file, _ = _file(options)
    with _editing(file) as keys:
        for key_id in options.ids:
            _find(keys, key_id, file)
        for key_id in options.ids:
            keys.pop(key_id, None)
    print(f"{len(set(options.ids))} revoked in {file}", file=sys.stderr)


def _rotate(options: argparse.Namespace) -> None:
    from app.auth.keys import rotate_key

    file, _ = _file(options)
    with _editing(file) as keys:
        old = _find(keys, options.id, file)
        if _state(old) == "expired":
            raise _Failed(f"ID: expected a valid key, got {old.key_id}, which has expired; create a new key")
        if old.replaced_by:
            raise _Failed(f"ID: expected a key in use, got {old.key_id}; rotate {old.replaced_by}, which replaced it")
        old, new, text = rotate_key(old, _now_s(), options.overlap)
        keys |= {old.key_id: old, new.key_id: new}
    _show(text, f"key {new.key_id}, {_end(new)}, replaces {old.key_id}, {_end(old)}; the key is shown only now")


def _file(options: argparse.Namespace) -> "tuple[Path, AuthSettings | None]":
    """Return the keys file, and the settings that name it; no settings with --file."""
    if options.file is not None:
        return Path(os.path.expanduser(options.file)).absolute(), None
    from app.config import load_settings

    loaded = load_settings(config_file(options.config), os.environ)
    return loaded.resolve(loaded.settings.auth.keys_file), loaded.settings.auth


@contextmanager
def _editing(file: Path) -> "Iterator[dict[str, Key]]":
    from app.auth.key_file import editing

    with editing(file) as keys:
        yield keys


def _check_tenant(name: str, settings: "AuthSettings | None") -> None:
    from app.config.auth_settings import TENANT_NAME

    if not re.fullmatch(TENANT_NAME, name):
        raise _Failed(f'--tenant: expected 1 to 64 letters, digits, dots, dashes and underscores, got "{name}"')
    names = [] if settings is None else [tenant.name for tenant in settings.tenants]
    if names and name not in names:
        raise _Failed(f'--tenant: expected one of {", ".join(names)}, got "{name}"; add it to auth.tenants')


def _find(keys: "dict[str, Key]", key_id: str, file: Path) -> "Key":
    if key_id not in keys:
        raise _Failed(f'ID: expected a key of {file}, got "{key_id}"; see `roundhouse keys list`')
    return keys[key_id]


def _show(text: str, remark: str) -> None:
    """Print the key alone on standard output, so that a script can read it."""
    print(text)
    print(remark, file=sys.stderr)


def _as_json(key: "Key") -> dict[str, Any]:
    return {
        "id": key.key_id,
        "tenant": key.tenant,
        "scopes": sorted(key.scopes),
        "models": list(key.models),
        "collections": list(key.collections),
        "created": _time(key.created_s),
        "expires": None if key.expires_s is None else _time(key.expires_s),
        "signed": key.is_signed,
        "state": _state(key),
    }


def _state(key: "Key") -> str:
    if key.expires_s is not None and key.expires_s <= time.time():
        return "expired"
    if key.replaced_by:
        return f"replaced by {key.replaced_by}"
    return "valid, signed" if key.is_signed else "valid"


def _end(key: "Key") -> str:
    return "without an end" if key.expires_s is None else f"valid until {_time(key.expires_s)}"


def _time(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _now_s() -> float:
    """Return the time, truncated to a second as in the file."""
    return float(int(time.time()))


def _duration(text: str) -> int:
    """Return the seconds of `90d`, `24h`, `30m` or `10s`."""
    parts = re.fullmatch("([0-9]{1,10})([smhd])", text, re.ASCII)
    seconds = int(parts[1]) * _UNITS_S[parts[2]] if parts else -1
    if not 0 <= seconds <= _MAX_DURATION_S:
        raise argparse.ArgumentTypeError(f"expected a time like 90d, 24h, 30m or 10s, got {text!r}")
    return seconds


def _scopes(text: str) -> "frozenset[Scope]":
    from app.auth.principal import Scope

    try:
        return frozenset(Scope(name.strip()) for name in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected some of {','.join(Scope)}, got {text!r}") from None


def _pattern(text: str) -> str:
    if not 1 <= len(text) <= _MAX_PATTERN_CHARACTERS:
        raise argparse.ArgumentTypeError(f"expected 1 to {_MAX_PATTERN_CHARACTERS} characters, got {len(text)}")
    return text
