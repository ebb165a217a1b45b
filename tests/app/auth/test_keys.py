"""Texts of API keys, and the rotation of a key."""

import re
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.auth.keys import (
    ENVIRONMENT_ID,
    InvalidEnvironmentKey,
    create_key,
    environment_key,
    hash_secret,
    rotate_key,
    split_key,
)
from app.auth.principal import Scope

INFER = frozenset({Scope.INFER})
DAY_S = 86_400.0


def test_created_key_splits_into_id_and_secret() -> None:
    key, text = create_key("search", INFER, 100.0, ("minilm*",), lifetime_s=DAY_S, is_signed=True)
    assert re.fullmatch("rh_[a-z0-9]{12}_[A-Za-z0-9_-]{43}", text)
    parts = split_key(text.encode())
    assert parts is not None
    assert parts[0] == key.key_id
    assert sha256(parts[1]).digest() == key.secret_sha256
    assert (key.tenant, key.scopes, key.models, key.is_signed) == ("search", INFER, ("minilm*",), True)
    assert (key.created_s, key.expires_s, key.replaced_by) == (100.0, 100.0 + DAY_S, "")


def test_created_keys_share_no_id_and_secret() -> None:
    made = [create_key("search", INFER, 0.0)[0] for _ in range(200)]
    assert len({key.key_id for key in made}) == len({key.secret_sha256 for key in made}) == 200


@given(st.binary(max_size=600))
def test_split_key_of_other_text_is_environment(text: bytes) -> None:
    assert split_key(text) == ((ENVIRONMENT_ID, text) if 16 <= len(text) <= 512 else None)


@given(st.integers(0, 58), st.sampled_from([b"", b"=", b"\n", b"\xff", b"A"]))
def test_split_key_of_changed_key_has_no_id(position: int, change: bytes) -> None:
    whole = b"rh_" + b"a" * 12 + b"_" + b"B" * 43
    changed = whole[:position] + change + whole[position + 1 :]
    is_other_secret = change == b"A" and position >= 16
    assert split_key(changed) == (("a" * 12, changed[16:]) if is_other_secret else (ENVIRONMENT_ID, changed))


def test_rotated_key_ends_after_overlap() -> None:
    key, _ = create_key("search", INFER, 0.0, ("a", "b"), lifetime_s=90 * DAY_S, is_signed=True)
    old, new, text = rotate_key(key, 10 * DAY_S, overlap_s=DAY_S)
    assert (old.key_id, old.expires_s, old.replaced_by) == (key.key_id, 11 * DAY_S, new.key_id)
    assert (new.tenant, new.scopes, new.models, new.is_signed) == ("search", INFER, ("a", "b"), True)
    assert (new.created_s, new.expires_s) == (10 * DAY_S, 100 * DAY_S)
    assert new.secret_sha256 not in (key.secret_sha256, b"")
    parts = split_key(text.encode())
    assert parts is not None
    assert (parts[0], hash_secret(parts[1])) == (new.key_id, new.secret_sha256)


def test_rotation_never_extends_old_key() -> None:
    key, _ = create_key("search", INFER, 0.0, lifetime_s=100.0)
    assert rotate_key(key, 50.0, overlap_s=DAY_S)[0].expires_s == 100.0
    endless, _ = create_key("search", INFER, 0.0)
    old, new, _ = rotate_key(endless, 50.0, overlap_s=0.0)
    assert (old.expires_s, new.expires_s) == (50.0, None)


def test_environment_key_has_all_scopes() -> None:
    key = environment_key("a" * 16)
    assert (key.key_id, key.tenant, key.scopes) == (ENVIRONMENT_ID, "default", frozenset(Scope))
    assert (key.models, key.expires_s, key.secret_sha256) == (("*",), None, sha256(b"a" * 16).digest())
    _, text = create_key("search", INFER, 0.0)
    assert environment_key(text).key_id == text[3:15]


@pytest.mark.parametrize(
    "text", ["fifteen-letters", "x" * 513, "sixteen or more with spaces", "ä" * 20, "x" * 20 + "\n"]
)
def test_invalid_environment_key_is_not_shown(text: str) -> None:
    with pytest.raises(InvalidEnvironmentKey, match="openssl rand -hex 32") as refused:
        environment_key(text)
    assert text not in str(refused.value)
