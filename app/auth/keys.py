"""API keys: their text, and the members that the keys file holds."""

import re
import secrets
import string
from dataclasses import dataclass, replace
from hashlib import sha256

from app.auth.principal import Scope

ENVIRONMENT_ID = "environment"
"""Id of the key of ROUNDHOUSE_API_KEY, unless its text is like that of `roundhouse keys create`."""
ENVIRONMENT_TENANT = "default"
"""Tenant of the key of ROUNDHOUSE_API_KEY. Where it is not configured, it is the operator's, with default settings."""
MIN_ENVIRONMENT_KEY_CHARACTERS = 16
MAX_ENVIRONMENT_KEY_CHARACTERS = 512

_KEY = re.compile(rb"rh_([a-z0-9]{12})_([A-Za-z0-9_-]{43})")
_ID_CHARACTERS = string.ascii_lowercase + string.digits
_ID_LENGTH = 12
_SECRET_BYTES = 32
_VISIBLE = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Key:
    """One API key, without its secret. Times are Unix times in seconds.

    `tenant`: its name. `models`, `collections`: glob patterns. `secret_sha256`: the digest of the secret's ASCII
    characters, 32 bytes.
    `expires_s`: None for a key without an end. `is_signed`: requests with this key carry a signature. `replaced_by`: id
    of the key that a rotation made for it; "" without a rotation.
    """

    key_id: str
    tenant: str
    scopes: frozenset[Scope]
    secret_sha256: bytes
    created_s: float
    models: tuple[str, ...] = ("*",)
    expires_s: float | None = None
    is_signed: bool = False
    replaced_by: str = ""
    collections: tuple[str, ...] = ("*",)


class InvalidEnvironmentKey(Exception):
    """The text of ROUNDHOUSE_API_KEY cannot be a key. The message does not contain it."""


def split_key(text: bytes) -> tuple[str, bytes] | None:
    """Return the id and the secret of a presented key; None for a text that no key has.

    A text of another form than `rh_<id>_<secret>` is the secret of ENVIRONMENT_ID.
    """
    parts = _KEY.fullmatch(text)
    if parts is not None:
        return parts[1].decode(), parts[2]
    if MIN_ENVIRONMENT_KEY_CHARACTERS <= len(text) <= MAX_ENVIRONMENT_KEY_CHARACTERS:
        return ENVIRONMENT_ID, text
    return None


def with_new_secret(key: Key) -> tuple[Key, str]:
    """Return the key with a random id and a random secret, and the text that clients send."""
    key_id = "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    return replace(key, key_id=key_id, secret_sha256=hash_secret(secret.encode())), key_text(key_id, secret)


def key_text(key_id: str, secret: str) -> str:
    """Return the text that clients send."""
    return f"rh_{key_id}_{secret}"


def create_key(
    tenant: str,
    scopes: frozenset[Scope],
    now_s: float,
    models: tuple[str, ...] = ("*",),
    lifetime_s: float | None = None,
    is_signed: bool = False,
    collections: tuple[str, ...] = ("*",),
) -> tuple[Key, str]:
    """Return a new key, and the text that clients send. `lifetime_s`: None for a key without an end."""
    expires_s = None if lifetime_s is None else now_s + lifetime_s
    return with_new_secret(Key("", tenant, scopes, b"", now_s, models, expires_s, is_signed, "", collections))


def rotate_key(key: Key, now_s: float, overlap_s: float) -> tuple[Key, Key, str]:
    """Return the key with its end after `overlap_s`, a new key with the same rights, and the text of the new one.

    The new key has the lifetime of the old one, from now on.
    """
    lifetime_s = None if key.expires_s is None else key.expires_s - key.created_s
    new, text = create_key(key.tenant, key.scopes, now_s, key.models, lifetime_s, key.is_signed, key.collections)
    end_s = now_s + overlap_s if key.expires_s is None else min(key.expires_s, now_s + overlap_s)
    return replace(key, expires_s=end_s, replaced_by=new.key_id), new, text


def hash_secret(secret: bytes) -> bytes:
    """Return the digest that the keys file holds, 32 bytes."""
    return sha256(secret).digest()


def environment_key(text: str) -> Key:
    """Return the key of ROUNDHOUSE_API_KEY, which may do all and has no end. Raises InvalidEnvironmentKey."""
    known = split_key(text.encode("utf-8", "replace")) if _VISIBLE.fullmatch(text) else None
    if known is None:
        raise InvalidEnvironmentKey(
            f"ROUNDHOUSE_API_KEY: expected {MIN_ENVIRONMENT_KEY_CHARACTERS} to {MAX_ENVIRONMENT_KEY_CHARACTERS} "
            f"visible ASCII characters, got {len(text)} characters; set the output of `openssl rand -hex 32`"
        )
    key_id, secret = known
    return Key(key_id, ENVIRONMENT_TENANT, frozenset(Scope), hash_secret(secret), created_s=0.0)
