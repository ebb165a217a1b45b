"""The keys of a running server: their tenants, and changes of the file."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.auth.key_file import FileVersion, InvalidKeysFile, editing, file_version
from app.auth.key_store import KeyStore
from app.auth.keys import Key, create_key, environment_key
from app.auth.principal import Scope
from app.config import AuthSettings, TenantSettings

SEARCH = TenantSettings(name="search", weight=3.0, models=("minilm*",))


def add_key(file: Path, tenant: str = "search", models: tuple[str, ...] = ("*",)) -> Key:
    """Add a key with the scope `infer` to the file."""
    key, _ = create_key(tenant, frozenset({Scope.INFER}), 0.0, models)
    with editing(file) as keys:
        keys[key.key_id] = key
    return key


def loaded_store(file: Path, tenants: Sequence[TenantSettings] = (), environment: str = "") -> KeyStore:
    key = environment_key(environment) if environment else None
    store = KeyStore(file, AuthSettings(tenants=tuple(tenants)), key)
    store.load()
    return store


def refresh(store: KeyStore, times: int = 1) -> None:
    async def run() -> None:
        for _ in range(times):
            await store.refresh()

    asyncio.run(run())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def test_found_key_has_principal_of_tenant(file: Path) -> None:
    key = add_key(file, models=("*-onnx",))
    store = loaded_store(file, [SEARCH])
    found = store.find(key.key_id)
    assert found is not None
    assert found.key == key
    principal = found.principal
    assert principal.tenant is store.tenants["search"]
    assert (principal.tenant.name, principal.tenant.weight) == ("search", 3.0)
    assert (principal.key_id, principal.scopes) == (key.key_id, frozenset({Scope.INFER}))
    allowed = [name for name in ("minilm-onnx", "minilm", "digits-onnx") if principal.may_use(name)]
    assert allowed == ["minilm-onnx"]
    assert store.find("000000000000") is None


def test_keys_of_unconfigured_tenants_are_ignored(file: Path) -> None:
    key, other = add_key(file), add_key(file, "other")
    store = loaded_store(file, [SEARCH])
    assert store.find(key.key_id)
    assert not store.find(other.key_id)
    assert (len(store), store.ignored, set(store.tenants)) == (1, 1, {"search"})
    store = loaded_store(file)
    assert store.find(other.key_id)
    assert (len(store), store.ignored, set(store.tenants)) == (2, 0, {"search", "other"})


def test_environment_key_valid_with_other_tenants(file: Path) -> None:
    store = loaded_store(file, [SEARCH], "a" * 20)
    found = store.find("environment")
    assert found is not None
    assert found.principal.tenant.name == "default"
    assert found.principal.scopes == set(Scope)
    assert found.principal.sees_all
    assert store.required
    refresh(store)
    assert store.find("environment")


def test_default_tenant_is_operator_unless_configured(file: Path) -> None:
    default, search = add_key(file, "default"), add_key(file)
    store = loaded_store(file)
    seen = [store.find(key.key_id) for key in (default, search)]
    assert [each.principal.counts_of for each in seen if each is not None] == [None, "search"]
    store = loaded_store(file, [SEARCH, TenantSettings(name="default")])
    found = store.find(default.key_id)
    assert found is not None
    assert found.principal.counts_of == "default"


def test_changed_file_replaces_keys(file: Path) -> None:
    first = add_key(file)
    store = loaded_store(file)
    found, tenant = store.find(first.key_id), store.tenants["search"]
    refresh(store)
    assert store.reloads == {}
    second = add_key(file)
    refresh(store, times=2)
    assert store.find(second.key_id)
    assert store.find(first.key_id) is found
    with editing(file) as keys:
        del keys[first.key_id]
    refresh(store)
    assert not store.find(first.key_id)
    assert store.find(second.key_id)
    assert store.tenants["search"] is tenant
    assert store.reloads == {"loaded": 2}


@pytest.mark.parametrize(
    "content", [b"[[keys]]\n", b"[[", b"\xff", pytest.param(b"#" * (16 * 1024**2 + 1), id="large"), None]
)
def test_broken_file_keeps_last_good_keys(content: bytes | None, file: Path) -> None:
    key = add_key(file)
    good = file.read_bytes()
    store = loaded_store(file)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    refresh(store, times=3)
    assert store.find(key.key_id)
    assert store.reloads == {"failed": 1}
    file.write_bytes(good)
    second = add_key(file)
    refresh(store, times=2)
    assert store.find(key.key_id)
    assert store.find(second.key_id)
    assert store.reloads == {"failed": 1, "loaded": 1}


def test_unreadable_path_keeps_last_good_keys(file: Path) -> None:
    key = add_key(file)
    store = loaded_store(file)
    file.unlink()
    file.mkdir()
    refresh(store, times=3)
    assert store.find(key.key_id)
    assert store.reloads == {"failed": 1}


def test_file_removed_during_read_keeps_keys(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = add_key(file)
    store = loaded_store(file)
    add_key(file)

    def version_and_remove(path: Path) -> FileVersion | None:
        version = file_version(path)
        path.unlink(missing_ok=True)
        return version

    monkeypatch.setattr("app.auth.key_store.file_version", version_and_remove)
    refresh(store, times=2)
    assert store.find(key.key_id)
    assert store.reloads == {"failed": 1}


def test_ten_thousand_keys_are_read(file: Path) -> None:
    made = [create_key(f"tenant-{number % 100}", frozenset({Scope.INFER}), 0.0)[0] for number in range(10_000)]
    with editing(file) as keys:
        keys |= {key.key_id: key for key in made}
    store = loaded_store(file)
    assert (len(store), len(store.tenants)) == (10_000, 100)
    assert all(store.find(key.key_id) for key in made)


def test_broken_file_stops_start(file: Path) -> None:
    file.write_text("[[keys]]\n")
    with pytest.raises(InvalidKeysFile, match=r"keys\[0\]\.id: expected a value, got none"):
        loaded_store(file)


def test_auto_requires_keys_from_first_on(file: Path) -> None:
    store = loaded_store(file)
    assert not store.required
    key = add_key(file)
    refresh(store)
    states = [store.required]
    with editing(file) as keys:
        del keys[key.key_id]
    refresh(store)
    assert [*states, store.required] == [True, True]
    assert len(store) == 0


def test_watch_applies_change(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.auth.key_store._CHECK_PERIOD_S", 0.001)
    store = loaded_store(file)
    key = add_key(file)

    async def watch() -> None:
        task = asyncio.create_task(store.watch())
        while store.find(key.key_id) is None:  # noqa: ASYNC110 - the store has no event
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(asyncio.wait_for(watch(), 60))


def test_watch_with_mode_off_ends(file: Path) -> None:
    store = KeyStore(file, AuthSettings(mode="off"))
    asyncio.run(asyncio.wait_for(store.watch(), 60))
    assert not store.required
